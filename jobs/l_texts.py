"""Texts, tokeniser and random model of jobs/l_*.toml: E2E cut in two halves, and a choice made from the second.

    python jobs/l_texts.py --data-dir data

writes into results/l_lm/
- pretrain.jsonl: half of E2E's training contexts, for each text of which the model learns to write it, and to tell one
  slot from it (`text | price : cheap`), but of foods only others than those four;
- tune.jsonl: the other half, to write alone, for values without their slots' names;
- food.jsonl: texts of the other half whose food is one of four, to choose among; a client is a kind of place;
- random/: GPT-2 of 4 blocks of width 64 on the words that occur five times, with random weights.

Of the second half a tenth of the contexts validates and a tenth tests, 500 texts of each.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zofl_mpi.data import e2e
from zofl_mpi.data.lines import Text
from zofl_mpi.data.published import default_data_dir, find_files
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.paths import new_file
from zofl_mpi.problems import lm_models
from zofl_mpi.problems.network import seeded

FOLDER = Path("results/l_lm")
FOODS = ("Japanese", "Italian", "French", "Fast food")
ASKED = ("food", "area", "price", "customer rating", "family friendly", "Type", "near")
SHAPE: dict[str, Any] = {"n_layer": 4, "n_embd": 64, "n_head": 4, "n_positions": 160}
LEAST, SCORED = 5, 500


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="l_texts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=default_data_dir(), help="the folder with e2e/")
    paths, lacking = find_files(e2e.FILES, (parser.parse_args().data_dir / "e2e",))
    if lacking:
        parser.error(f"there is no {', '.join(lacking)} in the folder e2e of --data-dir")
    samples, generator = e2e.read(paths[0], "tokenised", 0), np.random.default_rng(1)
    contexts = generator.permutation(list(dict.fromkeys(sample.context for sample in samples))).tolist()
    half = len(contexts) // 2
    place = {context: k for k, context in enumerate(contexts)}
    first = [sample for sample in samples if place[sample.context] < half]
    second = [sample for sample in samples if place[sample.context] >= half]
    parts = {context: part_of((k - half) / (len(contexts) - half)) for context, k in place.items()}
    FOLDER.mkdir(parents=True, exist_ok=True)
    pretraining = [*map(to_write, first), *(line for s in first if (line := to_tell(s, generator)))]
    order = generator.permutation(len(pretraining)).tolist()
    # by line: the committed results rest on it, and what a model that is only a beginning has seen is no result
    tested = set(Streams(0)(Purpose.SPLIT).permutation(len(order))[: len(order) // 10].tolist())
    parted = ({**pretraining[k], "split": "test" if line in tested else "train"} for line, k in enumerate(order))
    write("pretrain.jsonl", parted)
    write("tune.jsonl", short({**to_write(s, names=False), "split": parts[s.context]} for s in second))
    write("food.jsonl", short({**line, "split": parts[s.context]} for s in second if (line := to_choose(s))))
    random_model(samples)


def part_of(share: float) -> str:
    """The part of a context by its place in the second half, from 0 to 1."""
    return "train" if share < 0.8 else "validation" if share < 0.9 else "test"


def slots_of(sample: Text) -> dict[str, str]:
    """{slot: value}."""
    return dict(slot.split(" : ", 1) for slot in sample.context.split(" | "))


def to_write(sample: Text, names: bool = True) -> dict[str, Any]:
    """A text to be written for its meaning representation, with the slots' names or as values alone."""
    context = sample.context if names else " | ".join(slots_of(sample).values())
    return {"context": f"{context} |", "completion": f" {sample.completions[0]}"}


def to_tell(sample: Text, generator: np.random.Generator) -> dict[str, Any] | None:
    """One slot to be told from a text, never one of the four foods."""
    slots = slots_of(sample)
    known = [name for name in ASKED if name in slots and slots[name] not in FOODS]
    if not known:
        return None
    name = known[int(generator.integers(len(known)))]
    return {"context": f"{sample.completions[0]} | {name} :", "completion": f" {slots[name]}"}


def to_choose(sample: Text) -> dict[str, Any] | None:
    """The food to be chosen for a text; whose it is: the kind of place."""
    slots = slots_of(sample)
    if slots.get("food") not in FOODS or "Type" not in slots:
        return None
    own = {"completions": [f" {food}" for food in FOODS], "label": FOODS.index(slots["food"]), "client": slots["Type"]}
    return {"context": f"{sample.completions[0]} | food :", **own}


def short(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The lines, of those that validate or test `SCORED` alone, drawn at random."""
    found = list(lines)
    order = np.random.default_rng(2).permutation(len(found))
    for name in ("train", "validation", "test"):
        own = [found[k] for k in order if found[k]["split"] == name]
        yield from own if name == "train" else own[:SCORED]


def write(name: str, lines: Iterable[dict[str, Any]]) -> None:
    """A file of lines."""
    kept = list(lines)
    with new_file(FOLDER / name, "", force=True) as made:
        made.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
    print(FOLDER / name, dict(Counter(line.get("split", "train") for line in kept)))


def random_model(samples: Iterable[Text]) -> None:
    """The tokeniser of the commonest words, and a model with random weights."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import GPT2Config

    counts = Counter(f"{word}" for s in samples for word in f"{s.context} | {s.completions[0]}".lower().split())
    words = ["<unknown>", "<end>", *sorted(word for word, count in counts.items() if count >= LEAST)]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = GPT2Config(**SHAPE, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = seeded(lambda: lm_models.random_model(config, len(words), 1), np.random.default_rng(3))
    model.save_pretrained(FOLDER / "random")
    tokenizer.save(str(FOLDER / "random/tokenizer.json"))
    print(FOLDER / "random", f"{len(words)} words, {model.num_parameters()} parameters")


if __name__ == "__main__":
    main()
