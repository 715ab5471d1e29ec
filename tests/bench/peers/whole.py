"""A step of a whole language model by forward passes, here and in the official codes, over two bare passes.

    python -m tests.bench.peers.whole [--size 124] [--turns 4] [--out FOLDER]
        [--decomfl FOLDER] [--mezo FOLDER] [--fedkseed FOLDER]

A GPT-2 of that many million parameters with random weights, 8 texts of 64 tokens, the loss on all of them, one thread.
A folder is a checkout of the official code of DeComFL, MeZO, or FedKSeed (its FedKSeed branch); what is measured of it
is read from there, and nothing of it lies here. Each way has a process of its own, in which steps and pairs of bare
passes of transformers take turns; the ratio is that of their least CPU seconds. `limit` is two bare passes and one draw
of as many normal numbers. Resident is by how much two steps raise the process, which holds the models, at most.

Numbers: those that train. Where the embedding and the unembedding are one matrix in transformers, a way may train two.
"""

import argparse
import ast
import ctypes
import json
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.bench.tables import write

SIZES = {1: (1000, 64, 3, 2), 30: (16384, 384, 13, 6), 124: (50257, 768, 12, 12)}
"""Millions of parameters: vocabulary, width, blocks, heads."""
TEXTS, TOKENS, RATE, RADIUS = 8, 64, 1e-6, 1e-3
Step = Callable[[], Any]


def model_of(size: int) -> Any:
    from transformers import GPT2Config

    from zofl_mpi.problems import lm_models

    V, width, blocks, heads = SIZES[size]
    config = GPT2Config(n_embd=width, n_layer=blocks, n_head=heads, n_positions=256)
    return lm_models.random_model(config, V, 0).eval()


def loss_of(model: Any, inputs: Any, labels: Any) -> Any:
    """() the mean loss of all tokens, in a bare pass."""
    with torch.no_grad():
        logits = model(inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


# --- here


def here(size: int, tokens: Any, kept: bool, **given: Any) -> tuple[Step, int]:
    """A client's passes and the server's step, in one process; and the numbers that train."""
    from zofl_mpi.engine.clients import Client
    from zofl_mpi.rounds.split.unsplit import ModelBroadcast

    of = method_of(size, tokens, kept, **given)
    x, client, rounds = of.loss.flat.initial()[0], Client(0, of.setting.data[0]), iter(range(10**6))

    def step() -> None:
        message = ModelBroadcast(x, {}, torch.zeros(0), next(rounds), of.rule.span, of.problem.arithmetic)
        of.replay(x, {}, message.r, of.train(client, message).differences)

    return step, len(x)


def method_of(size: int, tokens: Any, kept: bool, **given: Any) -> Any:
    """DeComFL with one client, whose one batch these tokens are; `kept`: whether directions are."""
    from zofl_mpi.engine.setting import Setting
    from zofl_mpi.engine.streams import Streams
    from zofl_mpi.methods.decomfl import DeComFL
    from zofl_mpi.numerics.optimisers import Optimiser
    from zofl_mpi.problems import lm, lm_checks
    from zofl_mpi.problems.split_lm import SplitLM
    from zofl_mpi.rounds.split.training import Training

    model = model_of(size)
    own = lm_checks.own_logits(model, TOKENS, "random")
    parts = lm.cut_model(model, lm.outline(model), max(1, SIZES[size][2] // 4), 0, own, tied=True)
    problem, data = SplitLM(parts, TOKENS, TOKENS, 0.0), [0] * TEXTS
    vars(problem)["samples"] = lambda *_: (tokens[:, :-1], tokens[:, 1:])
    setting = Setting(problem, Streams(1), (data,))
    training = Training(setting, batch=TEXTS, h=1, lr_client=RATE, optimiser=Optimiser("sgd"), weights="uniform")
    of = DeComFL(setting, training=training, n_p=1, mu=RADIUS, **given)
    vars(of)["kept_steps"] = int(kept)
    return of


# --- the official codes, in the checkouts that the command line names


def decomfl(size: int, tokens: Any, folder: Path, which: str, how: str) -> tuple[Step, int]:
    """DeComFL's estimator, which keeps its direction (Batch) or draws it anew (Paramwise), and its step."""
    sys.path.insert(0, str(folder))
    from cezo_fl.gradient_estimators import (  # type: ignore[import-not-found]
        random_gradient_estimator_splitted as theirs,
    )

    model = model_of(size)
    estimator = getattr(theirs, f"RandomGradientEstimator{which}")(
        model.parameters(), mu=RADIUS, grad_estimate_method=f"rge-{how}"
    )
    optimizer, seeds = torch.optim.SGD(model.parameters(), lr=RATE), iter(range(10**6))

    def loss(inputs: Any, labels: Any) -> Any:
        return loss_of(model, inputs, labels)

    def step() -> None:
        seed, batch = next(seeds), (tokens[:, :-1], tokens[:, 1:])
        with torch.no_grad():
            if which == "Batch":
                estimator.compute_grad(*batch, loss, seed)
                optimizer.step()
            else:
                scalars = estimator._zo_grad_estimate_paramwise(*batch, loss, seed)
                estimator.sgd_no_optim_update_model(scalars, seed, RATE)

    return step, estimator.total_dimensions


def mezo(size: int, tokens: Any, folder: Path) -> tuple[Step, int]:
    """MeZO's functions alone: the imports of their file ask for a transformers of 2023."""
    source = (folder / "large_models/trainer.py").read_text()
    (cls,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    names = ("zo_perturb_parameters", "zo_step", "zo_update")
    found = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name in names]
    theirs: dict[str, Any] = {"torch": torch, "np": np}
    exec(compile(ast.Module(found, []), "trainer.py", "exec"), theirs)
    model = model_of(size)

    class Trainer:
        args = Namespace(zo_eps=RADIUS, gradient_accumulation_steps=1, weight_decay=0.0)
        lr_scheduler = Namespace(step=lambda: None)
        zo_perturb_parameters, zo_step, zo_update = (theirs[name] for name in names)

        def zo_forward(self, model: Any, inputs: Any) -> Any:
            return loss_of(model, *inputs)

        def _get_learning_rate(self) -> float:
            return RATE

    trainer = Trainer()

    def step() -> None:
        trainer.zo_step(model, (tokens[:, :-1], tokens[:, 1:]))
        trainer.zo_update(model)

    return step, model.num_parameters()


def fedkseed(size: int, tokens: Any, folder: Path) -> tuple[Step, int]:
    """FedKSeed's step of a client."""
    sys.path.insert(0, str(folder))
    from optimizers.mezo_optimizer import MeZOFramework  # type: ignore[import-not-found]

    model = model_of(size)
    args = Namespace(zo_eps=RADIUS, grad_clip=-100.0, weight_decay=0.0)
    frame = MeZOFramework(model, args, RATE, np.arange(10**6))
    frame.zo_forward = lambda batch: (torch.zeros(()), loss_of(model, *batch))
    return lambda: frame.zo_step((tokens[:, :-1], tokens[:, 1:])), model.num_parameters()


def ways(options: Namespace) -> dict[str, Callable[[int, Any], tuple[Step, int]]]:
    """{name: what makes the step, (size, tokens)}."""
    signs, found = {"distribution": "rademacher"}, dict[str, Any]()
    for words, flags in (("signs", signs), ("normals", {}), ("normals, central", {"estimate": "central"})):
        for kept in (True, False):
            found[f"here, {words}, {'kept' if kept else 'drawn again'}"] = (here, {"kept": kept, **flags})
    if options.decomfl:
        for which, words in (("Batch", "kept"), ("Paramwise", "drawn again")):
            for how in ("forward", "central"):
                given = {"folder": options.decomfl, "which": which, "how": how}
                found[f"DeComFL's code, {how}, {words}"] = (decomfl, given)
    if options.mezo:
        found["MeZO's code, central, drawn again"] = (mezo, {"folder": options.mezo})
    if options.fedkseed:
        found["FedKSeed's code, central, drawn again"] = (fedkseed, {"folder": options.fedkseed})
    return {
        name: lambda size, tokens, make=make, given=given: make(size, tokens, **given)
        for name, (make, given) in found.items()
    }


# --- measured, in a process of its own


def measured(name: str, options: Namespace) -> dict[str, Any]:
    """A row of the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens, bare = torch.randint(0, SIZES[options.size][0], (TEXTS, TOKENS + 1)), model_of(options.size)

    def two() -> None:
        for _ in range(2):
            loss_of(bare, tokens[:, :-1], tokens[:, 1:])

    if name == "limit":
        numbers = sum(p.numel() for p in bare.parameters())

        def step() -> None:
            two()
            torch.randn(numbers)
    else:
        step, numbers = ways(options)[name](options.size, tokens)
    two()  # what is made once is made now
    ctypes.CDLL(None).malloc_trim(0)  # else what the C library keeps for later hides some of the step's own
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    for _ in range(2):
        step()
    resident = status("VmHWM") - before
    own, pairs = zip(*((seconds(step), seconds(two)) for _ in range(options.turns)), strict=True)
    return {
        "way": name,
        "million": numbers / 1e6,
        "ratio": min(own) / min(pairs),
        "s": min(own),
        "resident": resident / 1e6,
    }


def seconds(work: Step) -> float:
    """CPU seconds."""
    start = time.process_time()
    work()
    return time.process_time() - start


def status(name: str) -> int:
    """Bytes that Linux tells of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, choices=SIZES, default=124)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out", type=Path, help="folder for whole_step.csv and .txt")
    for peer in ("decomfl", "mezo", "fedkseed"):
        parser.add_argument(f"--{peer}", type=Path, help="a checkout of its official code")
    parser.add_argument("--only", default="", help="the ways with this word in their name")
    parser.add_argument("--way", help="measure this one alone, in this process")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measured(options.way, options)))
        return
    rows, lines = [], [f"{'':42} {'million':>8} {'x passes':>9} {'CPU s':>7} {'resident, MB':>13}"]
    print(lines[0])
    for name in (each for each in ("limit", *ways(options)) if options.only in each):
        words = [sys.executable, "-m", "tests.bench.peers.whole", *sys.argv[1:], "--way", name]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            print(f"{name:42} not run: {done.stderr.strip().splitlines()[-1]}", flush=True)
            continue
        rows.append(row := json.loads(done.stdout.splitlines()[-1]))
        numbers = f"{row['million']:8.1f} {row['ratio']:9.2f} {row['s']:7.2f} {row['resident']:13.0f}"
        lines.append(f"{name:42} {numbers}")
        print(lines[-1], flush=True)
    if options.out:
        write(options.out / "whole_step", lines, rows)


if __name__ == "__main__":
    main()
