"""Memory and work of a step on a whole language model: forward passes alone, beside inference and beside AdamW.

python analysis/c_lm_memory.py [--sizes 10 30 124] [--out NAME]

All parameters train, of GPT-2s with random weights (the number is that of its parameters in millions, embedding and
unembedding one matrix; the methods here train two). Each way runs in a process of its own (Linux), on one thread, on 8
texts of 64 tokens. Takes minutes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared import command, wording
from shared.files import Report

from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.counting import Allocations
from zofl_mpi.rounds.split.training import Training

SIZES = {1: (1000, 64, 3, 2), 10: (8192, 256, 10, 4), 30: (16384, 384, 13, 6), 124: (50257, 768, 12, 12)}
"""Millions of parameters: vocabulary, width, blocks, heads."""
TEXTS, TOKENS = 8, 64
WAYS = {
    "inference": "one forward pass of transformers",
    "decomfl": "DeComFL",
    "decomfl-signs": "DeComFL, random signs",
    "hiso": "HiSo",
    "fedkseed": "FedKSeed",
    "adamw": "AdamW",
    "adamw-checkpointed": "AdamW, gradient checkpointing",
}
NOTE = (
    "counted: most bytes of tensors that a step makes at once, beyond weights and moments; a pass: of its unperturbed "
    "pass alone; layer: weights of the largest layer; resident: by how much a step raises the process (Linux; "
    "allocator and libraries too); before: the process before the step, torch and transformers in it (the methods here "
    "also keep the initial model); x passes: CPU seconds of a step over those of two forward passes of transformers on "
    "the same batch, in turns, the least of four, one thread. MB are 10^6 bytes."
)


def report(flags: Any) -> Report:
    """The table."""
    rows = [alone(way, size) for size in flags.sizes for way in WAYS]
    return Report(table(rows), NOTE, rows)


FLAGS = {"--sizes": command.flag([10, 30, 124], "millions of parameters", choices=SIZES)}
main = command.script("c_lm_memory", __doc__, report, FLAGS)


def alone(way: str, size: int) -> dict[str, Any]:
    """The row that a process of its own measures."""
    told = subprocess.run([sys.executable, __file__, way, str(size)], capture_output=True, text=True, check=True)
    return json.loads(told.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def table(rows: list[dict[str, Any]]) -> str:
    """A row per size and way."""
    header = (
        "million",
        "step",
        "weights, MB",
        "counted, MB",
        "its passes",
        "layer",
        "resident, MB",
        "before",
        "x passes",
    )
    names = ("weights", "counted", "passes", "layer", "resident", "before")
    told = [
        (row["size"], WAYS[row["way"]], *(f"{row[n] / 1e6:.0f}" if row[n] else "" for n in names), row["ratio"] or "")
        for row in rows
    ]
    return wording.text_table(header, [tuple(map(str, row)) for row in told], left=2)


# --- in a process of its own


def measured(way: str, size: int) -> dict[str, Any]:
    """A row of the CSV."""
    torch.set_num_threads(1)
    V, width, blocks, heads = SIZES[size]
    from transformers import GPT2Config

    from zofl_mpi.problems import lm, lm_checks, lm_models

    shape: dict[str, Any] = {"n_embd": width, "n_layer": blocks, "n_head": heads, "n_positions": 256}
    config = GPT2Config(**shape, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model, tokens = lm_models.random_model(config, V, 0).eval(), torch.randint(0, V, (TEXTS, TOKENS + 1))

    def loss(bare: Any) -> Any:
        logits = bare(tokens[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    row = {"way": way, "size": size, "weights": 4 * model.num_parameters(), "passes": 0, "layer": 0, "ratio": ""}
    if way in ("inference", "adamw", "adamw-checkpointed"):
        step = bare_step(way, model, loss)
    else:
        own = lm_checks.own_logits(model, TOKENS, "random")
        parts = lm.cut_model(model, lm.outline(model), max(1, blocks // 4), 0, own, tied=True)
        step, passes, row["layer"], row["weights"] = step_of(way, parts, tokens)
        with Allocations() as counted:
            passes()
        row["passes"] = counted.peak
    step()  # what is made once is made now
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    step()
    row |= {"before": before, "resident": max(0, status("VmHWM") - before)}
    with Allocations() as counted:
        step()
    row["counted"] = counted.peak
    if row["passes"]:
        bare = lm_models.random_model(config, V, 0).eval()
        bare_pass = partial(no_graph, loss, bare)
        times = [(seconds(step), seconds(bare_pass) + seconds(bare_pass)) for _ in range(4)]
        row["ratio"] = f"{min(own for own, _ in times) / min(two for _, two in times):.2f}"
    return row


def bare_step(way: str, model: Any, loss: Callable[[Any], Any]) -> Callable[[], Any]:
    """A step of transformers and torch alone."""
    if way == "inference":
        return partial(no_graph, loss, model)
    optimiser = torch.optim.AdamW(model.parameters(), foreach=False)
    if way == "adamw-checkpointed":
        model.train().gradient_checkpointing_enable()

    def step() -> None:
        loss(model).backward()
        optimiser.step()
        optimiser.zero_grad()

    return step


def step_of(way: str, parts: Any, tokens: Any) -> tuple[Callable[[], Any], Callable[[], Any], int, int]:
    """A client's step and the model's by its scalars; the unperturbed pass; bytes of the largest layer and of all."""
    from zofl_mpi.methods.decomfl import DeComFL, HiSo
    from zofl_mpi.methods.fedkseed import FedKSeed, SeededModel
    from zofl_mpi.problems.split_lm import SplitLM
    from zofl_mpi.rounds.split import unsplit
    from zofl_mpi.rounds.split.unsplit import ModelBroadcast

    unsplit.DIRECTIONS_SHARE = 0.0  # the way with the least memory: directions are drawn again, not kept
    problem, data, none = SplitLM(parts, TOKENS, TOKENS, 0.0), [0] * TEXTS, torch.zeros(0)
    setting = Setting(problem, Streams(1), (data,))
    training = Training(setting, batch=TEXTS, h=1, optimiser=Optimiser("sgd"), weights="uniform")
    SplitLM.samples = lambda *_: (tokens[:, :-1], tokens[:, 1:])  # type: ignore[method-assign]
    shared: dict[str, Any] = {"training": training}
    if way == "fedkseed":
        of: Any = FedKSeed(setting, **shared, seeds=4)
    else:
        shared |= {"distribution": "rademacher"} if way.endswith("signs") else {}
        of = (HiSo if way == "hiso" else DeComFL)(setting, **shared, n_p=1)
    x, client = of.loss.flat.initial()[0], Client(0, data)
    ends = of.rule.span, of.problem.arithmetic
    if way == "fedkseed":
        message: Any = SeededModel(x, {}, none, 0, *ends, np.zeros((0, 4), np.float32))
    else:
        message = ModelBroadcast(x, of.first_moments(x), none, 0, *ends)
    local = of.local(client, message)
    moments = of.received(message)[1]

    def step() -> None:
        if way == "fedkseed":
            (sums,) = of.train(client, message).differences
            (k,) = np.flatnonzero(sums)
            estimate = of.rule.estimate(of.rule.draw_pieces(x, of.key(int(k))), [float(sums[k])])
            training.optimiser.step_by_parts(x, estimate, {}, 1.0)
        else:
            of.replay(x, moments, 0, of.train(client, message).differences)

    layer = max(part.stop - part.start for part in of.loss.flat.places.values())
    return step, lambda: local.forward(tokens[:, :-1], tokens[:, 1:]), 4 * layer, 4 * len(x)


def no_graph(loss: Callable[[Any], Any], model: Any) -> None:
    """A forward pass."""
    with torch.no_grad():
        loss(model)


def seconds(step: Callable[[], Any]) -> float:
    """Seconds of computing."""
    start = time.process_time()
    step()
    return time.process_time() - start


def status(name: str) -> int:
    """Bytes that Linux tells of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in WAYS:
        print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
