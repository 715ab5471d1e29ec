"""[C]'s language figures from tiny real results: the numbers are those computed by hand from the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import Grids
from tests.conftest import ROOT
from zofl_mpi.run import grid

ROUNDS = [1, 2, 3]
TWO = {"start": "random", "seed": "1"}
"""Runs: of HERON, and of its control."""

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def with_data(data_dir: Path) -> None:
    """The texts need GPT-2's tokens."""


# --- what models write


def test_bleu_of_what_a_model_writes(made: Grids, script: Any, wrote: Any) -> None:
    """All references of a context count. Mutations: the first alone; the context within the text."""
    module = script("c_bleu")
    runs = made("c_lm", **TWO).runs(**TWO)
    paths = [str(run.out) for run in runs]
    words = ["--contexts", "2", "--samples", "1", "--beams", "2", "--own", str(runs[0].flags["data"])]
    words += ["--data-dir", str(runs[0].flags["data_dir"])]
    told = wrote("c_bleu", [*paths, *words])
    rows = told.rows
    assert [row["contexts"] for row in rows] == ["2", "2"] and [row["part"] for row in rows] == ["test", "test"]
    assert told.out.count("context 1: ") == 1 and "context 2" not in told.out and told.out.count("  reference: ") == 2
    Prompt = script("shared.prompts").Prompt
    prompts = [
        Prompt((1,), "a", ("one two three four five .", "six seven eight nine ten .")),
        Prompt((2,), "b", ("eleven twelve thirteen fourteen fifteen .",)),
    ]
    assert module.bleu(["six seven eight nine ten .", "eleven twelve thirteen fourteen fifteen ."], prompts) > 99.9
    assert module.bleu(["eleven twelve thirteen fourteen fifteen .", "six seven eight nine ten ."], prompts) < 30


def test_a_model_ends_its_text_or_is_ended(script: Any) -> None:
    """What comes behind the context, up to the end. Mutation: the context written again."""
    import torch

    module = script("c_bleu")
    Prompt = script("shared.prompts").Prompt

    class Words:
        end = 3

        def decode(self, tokens: list[int]) -> str:
            return " ".join(str(token) for token in tokens if token != self.end)

    class Corpus:
        vocabulary = Words()

    class Model:
        class config:
            max_position_embeddings = 9

        def generate(self, given: Any, **flags: Any) -> Any:
            assert flags["num_beams"] == 7 and flags["length_penalty"] == 0.8 and flags["no_repeat_ngram_size"] == 4
            assert flags["max_new_tokens"] == 9 - given.shape[1]
            new = [5, 6, 3] if given.shape[1] == 2 else [7, 8, 8]
            return torch.cat([given, torch.tensor([new])], dim=1)

    prompts = [Prompt((1, 3), "a", ("x",)), Prompt((1, 2, 3), "b", ("y",))]
    written = module.write(Model(), Corpus(), prompts, 7)
    assert written.texts == ("5 6", "7 8 8") and written.ended == 1


def test_results_that_bleu_cannot_use_are_refused(made: Grids, refuses: Any) -> None:
    (line,) = refuses("c_bleu", [str(made("c_methods", cell="iid").runs(cell="iid")[0].out)])
    assert "is no result of --problem split_lm" in line
    (line,) = refuses("c_bleu", [str(made("c_lm", **TWO).runs(**TWO)[0].out), "--beams", "0"])
    assert "beams 0: must be a whole number, at least 1" in line


# --- Table III


def test_table_3_measures_what_dry_run_tells(script: Any, capsys: pytest.CaptureFixture[str], wrote: Any) -> None:
    """Of the tiny model. Mutations: a multiply-accumulate for an operation; an embedding counted twice; 3F for 2F."""
    module = script("c_table3")
    told = wrote("c_table3", ["--sizes", "tiny", "--settings", "short"])
    capsys.readouterr()
    rows = {(row["method"], row["recomputes"]): row for row in told.rows}
    assert len(rows) == 2 + 2 + 1 + 1
    width, vocabulary, texts, tokens, targets = 192, 50257, 8, 80, 45
    block = tokens * 12 * width**2 + 2 * tokens**2 * width
    lora = tokens * 2 * 2 * 8 * width  # q and v: A and B
    client = texts * (block + lora)
    head = client + texts * targets * width * vocabulary
    heron, cse, split = (rows[key] for key in (("heron", "False"), ("cse_fsl", "False"), ("splitlora", "False")))
    assert float(heron["operations_3f"]) == 2 * 2 * (client + head) == float(heron["operations_computed"])
    assert float(cse["operations_3f"]) == 2 * 3 * (client + head)
    assert float(split["operations_3f"]) == 2 * 3 * client
    embedding, places, adapters = vocabulary * width, 256 * width, 4 * 8 * width
    weights = 12 * width**2 + 13 * width  # of a block: matrices, biases and norms
    assert float(split["weight_bytes"]) == 4 * (embedding + places + weights + adapters)
    assert float(heron["weight_bytes"]) == 4 * (embedding + places + 2 * (weights + adapters) + 2 * width)
    assert float(heron["step_bytes"]) < float(rows["cse_fsl", "True"]["step_bytes"]) < float(cse["step_bytes"])
    assert (module.PAPER["heron"], module.PAPER["cse_fsl"]) == ((4.03, 5.26), (9.09, 9.48))


# --- the grids of the repository


def test_the_language_grids_in_the_repository_are_those_of_the_scripts(script: Any) -> None:
    axes = {name: script(name).STUDY.axes for name in ("c_fig5", "c_fig6")} | {"c_lm_tuned": script("c_lm_tuned").AXES}
    for name in ("c_lm", "c_lm_random", "c_fig6", "c_lm_tuned"):
        study = grid.read(ROOT / "jobs" / f"{name}.toml", trust=True)
        assert set(study.axes) - {"seed"} <= set(axes.get(name, axes["c_fig5"]))


def test_what_is_not_there_is_nothing(script: Any) -> None:
    """Of a group without results. Mutation: 0 in place of -."""
    language, Group = script("shared.language"), script("shared.groups").Group
    none = Group({"method": "heron", "start": "random"}, 2, {}, ())
    assert language.told(np.array([]), 2) == "-" and language.start(none) == "random weights, LoRA"
    assert language.signed(np.array([1.0]), 2) == "+1.000 (1 of 2 seeds)"
    assert script("shared.study").alike(none, [none], "start", method="cse_fsl") is None
