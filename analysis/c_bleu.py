"""[C]'s language task as it is used: BLEU of texts that a result's model writes, and some beside the references.

python analysis/c_bleu.py RESULT [RESULT ...] [--contexts 50] [--samples 3] [--part test] [--beams 10] [--data-dir DIR]
                          [--out NAME]

The model of a result is the joined one, client's part and server's, LoRA added in. It writes by beam search (10 beams,
length penalty 0.8, no 4-gram twice: what LoRA's and SplitLoRA's codes take) to the first contexts of a part. BLEU is
sacrebleu's over all references of each context, on the text pipeline that the model was trained on: so only results of
one pipeline are comparable, and neither is [C]'s or LoRA's number, which are computed by the E2E challenge's script.
Prints BLEU of each result and the samples, to be read by a person.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from export import model_of
from shared import command, wording
from shared.files import Report
from shared.prompts import Prompt, prompts
from shared.restore import OWN

from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError, demand
from zofl_mpi.run.loop import evaluation
from zofl_mpi.settings.split_lm import LM
from zofl_mpi.settings.texts import Corpus, Texts

NOTE = (
    "BLEU by sacrebleu over all references of each context; words: of a text, mean; ended: texts that the model ended "
    "itself. {beams} beams, length penalty 0.8, no 4-gram twice; the first {count} contexts of the {part} part."
)


class Written(NamedTuple):
    """What a model wrote.

    Attributes:
        texts: one for each context.
        ended: how many of them it ended itself, before the longest that is allowed.
    """

    texts: tuple[str, ...]
    ended: int


def report(flags: Any) -> Report:
    """BLEU of each result, and the samples."""
    for flag, least in (("contexts", 0), ("samples", 0), ("beams", 1)):
        given = getattr(flags, flag)
        demand(given >= least, flag, given, f"a whole number, at least {least}")
    found = [(path, *scored(path, flags)) for path in flags.result]
    rows = [row for _, row, _, _ in found]
    if len({row["text"] for row in rows}) > 1:
        raise UserError("the results have texts of both pipelines (--text), whose BLEU does not compare")
    note = NOTE.format(beams=flags.beams, count=rows[0]["contexts"], part=flags.part)
    return Report(f"{table(rows)}\n\n{wording.paragraph(note)}\n\n{samples(found, flags.samples)}".rstrip(), rows=rows)


FLAGS = {
    "result": {"type": Path, "nargs": "+", "help": "finished results of --problem split_lm"},
    "--contexts": command.flag(50, "of the part, the first ones; 0 for all"),
    "--samples": command.flag(3, "contexts whose texts are printed"),
    "--part": command.flag("test", "of the texts", choices=("test", "validation")),
    "--beams": command.flag(10, "of the search"),
    "--data-dir": {"help": "where the runs' data are, if elsewhere by now"},
    "--own": OWN,
}
main = command.script("c_bleu", __doc__, report, FLAGS)


def scored(path: Path, flags: Any) -> tuple[dict[str, Any], list[Prompt], Written]:
    """The row of a result; the contexts, and what its model wrote to them."""
    run, model = model_of(path, flags.data_dir, flags.own)
    corpus = corpus_of(run.config, flags.data_dir, model.config)
    chosen = prompts(corpus, flags.part, flags.contexts)
    written = write(model, corpus, chosen, flags.beams)
    row = {
        "result": path.stem,
        "method": run.config["method"],
        "bleu": bleu(written.texts, chosen),
        "words": sum(len(text.split()) for text in written.texts) / len(chosen),
        "ended": written.ended / len(chosen),
        "contexts": len(chosen),
        "part": flags.part,
        "text": run.config["text"],
    }
    return row, chosen, written


def corpus_of(config: dict[str, Any], data_dir: str | None, of_model: Any) -> Corpus:
    """The texts of a result.

    Raises:
        UserError: they are not where they were.
    """
    flags = {field.name: config[field.name] for field in fields(Texts) if field.name != "data_dir"}
    texts = Texts(**flags | ({"data_dir": data_dir} if data_dir else {}))
    streams, N = Streams(int(config["seed"])), config["eval_samples"]
    own = LM(config["model"]).vocabulary(of_model) if texts.vocabulary == "auto" else None
    corpus = texts.corpus(SingleProcess(), streams, None, own)
    if len(corpus.files) == 1:
        raise UserError(f"--data {config['data']}: BLEU is of E2E's contexts, each with all its references")
    whole = corpus.federation
    test, validation = evaluation.held_out(whole.test, whole.validation, streams, int(N))
    return replace(corpus, federation=replace(whole, test=test, validation=validation))


# --- writing


def write(model: Any, corpus: Corpus, to: Sequence[Prompt], beams: int) -> Written:
    """The texts that a model writes to the contexts, by beam search."""
    import torch

    end, places, texts, ended = corpus.vocabulary.end, int(model.config.max_position_embeddings), [], 0
    for prompt in to:
        given = torch.tensor([prompt.tokens])
        with torch.no_grad():
            found = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                num_beams=beams,
                length_penalty=0.8,
                no_repeat_ngram_size=4,
                early_stopping=True,
                max_new_tokens=min(100, places - given.shape[1]),
                eos_token_id=end,
                pad_token_id=end,
            )
        new = found[0, given.shape[1] :].tolist()
        ended += end in new
        texts.append(corpus.vocabulary.decode(new).strip())
    return Written(tuple(texts), ended)


def bleu(texts: Sequence[str], to: Sequence[Prompt]) -> float:
    """BLEU in per cent over all references.

    Raises:
        UserError: sacrebleu is not installed.
    """
    try:
        import sacrebleu
    except ModuleNotFoundError as exc:
        raise UserError("BLEU needs sacrebleu, which is not installed: pip install 'zofl_mpi[lm]'") from exc
    most = max(len(prompt.references) for prompt in to)
    columns: list[Any] = [[p.references[k] if k < len(p.references) else None for p in to] for k in range(most)]
    return float(sacrebleu.corpus_bleu(list(texts), columns, force=True).score)  # force: the texts are tokenised


# --- what is told


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A row per result."""
    header = ("result", "BLEU", "words", "ended (%)", "contexts", "texts")
    cells = [
        [r["result"], f"{r['bleu']:.1f}", f"{r['words']:.1f}", f"{100 * r['ended']:.0f}", str(r["contexts"]), r["text"]]
        for r in rows
    ]
    return wording.text_table(header, cells)


def samples(found: Sequence[tuple[Path, dict[str, Any], list[Prompt], Written]], most: int) -> str:
    """Of the first contexts: what each model wrote, and the references."""
    lines: list[str] = []
    for k, prompt in enumerate(found[0][2][:most]):
        lines += [f"context {k + 1}: {prompt.context}"]
        lines += [f"  {path.stem}: {written.texts[k]}" for path, _, _, written in found]
        lines += [f"  reference: {text}" for text in prompt.references]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
