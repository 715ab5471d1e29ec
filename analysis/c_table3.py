"""[C] Table III: memory and work of a client's step of GPT-2 small and medium, measured, beside the paper's numbers.

python analysis/c_table3.py [--sizes small medium] [--settings paper short] [--out NAME]

Nothing is trained: weights are random, since neither memory nor work depends on them. Two settings: "paper" is that in
which [C]'s operations can be counted again: 96 texts of 128 tokens, logits at all positions, heads without blocks and
with [C]'s 3 (small: 1). "short" is a step as the runs here take it: 8 texts (medium: 4), padded to 80 tokens, logits at
the 45 of completions alone, heads of 1 block (medium: 3). Beside each backward pass stands the one that computes blocks
again (gradient checkpointing), which a client that is short of memory would run. Takes minutes.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from shared import command, wording
from shared.files import Report
from shared.heron import NAMES

from zofl_mpi.engine.streams import Streams
from zofl_mpi.problems.saving import recomputing
from zofl_mpi.problems.split_lm import SplitLM
from zofl_mpi.rounds.split.client import CutLoss, HeadLoss, NetworkLoss
from zofl_mpi.rounds.split.costs import macs, peak_bytes, step_macs
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.rules import Backprop
from zofl_mpi.settings.split_lm import LM

VOCABULARY = 50257
STEPS = {
    "splitlora": (CutLoss, Backprop),
    "cse_fsl": (HeadLoss, Backprop),
    "heron": (HeadLoss, TwoPoint),
    "decomfl": (NetworkLoss, TwoPoint),
}
"""The loss and the gradient rule of a client's step; FSL-SAGE's are CSE-FSL's."""
PAPER = {"splitlora": (4.59, 5.68), "cse_fsl": (9.09, 9.48), "heron": (4.03, 5.26)}
"""Table III, GPT-2 medium: peak in GB, 10^12 operations."""
GIB = 2**30
NOTE = (
    "step: peak of bytes that a step makes, activations and gradients, tensors counted; weights: all that the client "
    "holds, an unembedding that is the embedding once. 2 operations a multiply-accumulate. 3F: a backward pass as two "
    "forward ones (HERON and DeComFL: two forward passes, no more); computed: as torch computes it, which asks for "
    "no gradient of frozen weights. [C] tells neither texts, lengths nor the head of its table. Its operations fit 96 "
    "texts of 128 tokens and a head without blocks, 3F, for SplitLoRA and CSE-FSL, not for HERON, whose 2F is 6.32 "
    "there; the text's head has 3 blocks."
)


class Setting(NamedTuple):
    """What is in a step.

    Attributes:
        name: "paper" or "short".
        texts, longest, targets: B, T, and how many of the T positions have logits.
        heads: blocks of the auxiliary heads that are looked at.
    """

    name: str
    texts: int
    longest: int
    targets: int
    heads: tuple[int, ...]


def settings_of(size: str, names: Sequence[str]) -> list[Setting]:
    """The settings of a size."""
    usual, batch = (3, 4) if size == "medium" else (1, 8)
    known = {
        "paper": Setting("paper", 96, 128, 128, (0, usual)),
        "short": Setting("short", batch, 80, 45, (usual,)),
    }
    return [known[name] for name in names]


def report(flags: Any) -> Report:
    """The table."""
    rows = [row for size in flags.sizes for row in rows_of(size, settings_of(size, flags.settings))]
    return Report(wording.table(rows, COLUMNS, left=3), NOTE, rows)


FLAGS = {
    "--sizes": command.flag(["small", "medium"], "of GPT-2", choices=("tiny", "small", "medium")),
    "--settings": command.flag(["paper", "short"], "of a step", choices=("paper", "short")),
}
main = command.script("c_table3", __doc__, report, FLAGS)

# --- measuring


def rows_of(size: str, settings: Sequence[Setting]) -> Iterator[dict[str, Any]]:
    """The rows of a size."""
    for setting in settings:
        for blocks in setting.heads:
            problem = problem_of(size, blocks, setting)
            for method, (_, rule) in STEPS.items():
                if blocks != setting.heads[0] and method in ("splitlora", "decomfl"):  # these have no head
                    continue
                for again in (False, True) if rule is Backprop else (False,):
                    yield row(size, setting, blocks, problem, method, again)


def problem_of(size: str, blocks: int, setting: Setting) -> SplitLM:
    """GPT-2 with random weights, cut as [C] does."""
    flags = LM(model=f"random:{size}", auxiliary_blocks=blocks)
    model = flags.uncut(*flags.begun(), Streams(1), VOCABULARY, VOCABULARY - 1, setting.longest)
    return flags.problem(model, setting.longest, setting.targets)


def row(size: str, setting: Setting, blocks: int, problem: SplitLM, method: str, again: bool) -> dict[str, Any]:
    """A row of the CSV."""
    loss = STEPS[method][0](problem)
    rule = STEPS[method][1](slice(0, loss.flat.n))
    forward = isinstance(rule, TwoPoint)
    client, head, server = macs(problem)
    each = {"splitlora": client, "decomfl": client + server}.get(method, client + head)
    passes = 2 if forward else 3
    with recomputing(problem.blocks if again else ()):
        computed = passes * each if forward else step_macs(loss, rule)
        step_bytes = peak_bytes(loss, rule, setting.texts)
    reading = size == "medium" and setting.name == "paper" and not again
    paper = PAPER.get(method, (None, None)) if reading else (None, None)
    return {
        "size": size,
        "setting": setting.name,
        "texts": setting.texts,
        "tokens": setting.longest,
        "targets": setting.targets,
        "method": method,
        "head_blocks": "" if method in ("splitlora", "decomfl") else blocks,
        "recomputes": again,
        "step_bytes": step_bytes,
        "weight_bytes": weight_bytes(problem, method),
        "operations_3f": 2.0 * passes * each * setting.texts,
        "operations_computed": 2.0 * computed * setting.texts,
        "paper_gb": paper[0],
        "paper_operations": paper[1],
    }


def weight_bytes(problem: SplitLM, method: str) -> int:
    """Bytes of the weights that a client holds, each frozen tensor once; those that train are in vectors."""
    parts, own = problem.parts, problem.client_side.sizes()
    held, moving = {
        "splitlora": ((parts.client,), own[0]),
        "decomfl": ((parts.client, parts.server), own[0] + problem.server_side.n),
    }.get(method, ((parts.client, parts.auxiliary), sum(own)))
    frozen = {p.data_ptr(): p.numel() for part in held for p in part.parameters() if not p.requires_grad}
    return 4 * (sum(frozen.values()) + moving)


# --- table

COLUMNS: dict[str, wording.Cell] = {
    "GPT-2": "size",
    "texts x tokens": lambda r: f"{r['texts']} x {r['tokens']}",
    "method": lambda r: NAMES[r["method"]] + (", computing blocks again" if r["recomputes"] else ""),
    "head": lambda r: r["head_blocks"] if r["head_blocks"] != "" else "-",
    "step, GiB": wording.four("step_bytes", GIB),
    "weights, GiB": wording.four("weight_bytes", GIB),
    "together": lambda r: wording.digits((r["step_bytes"] + r["weight_bytes"]) / GIB)[0],
    "[C], GB": lambda r: "" if r["paper_gb"] is None else f"{r['paper_gb']:.2f}",
    "3F, 10^12": lambda r: "" if r["recomputes"] else wording.digits(r["operations_3f"] / 1e12)[0],
    "computed": wording.four("operations_computed", 1e12),
    "[C]": lambda r: "" if r["paper_operations"] is None else f"{r['paper_operations']:.2f}",
}
"""Of the table on screen."""


if __name__ == "__main__":
    main()
