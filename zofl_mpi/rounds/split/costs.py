"""What the split methods cost: the lines of --dry-run, which the result keeps too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.setting import Setting


def plan_of(
    setting: Setting,
    training: Training,
    rounds: int,
    forwards: float | str,
    backwards: bool,
    returned: bool = False,
    head: bool = True,
    scalars: int | None = None,
    aligned: int = 0,
) -> dict[str, str | float]:
    """The lines of --dry-run.

    Args:
        forwards: forward passes of a local step; in words where steps differ.
        backwards: whether it has a backward pass, which counts as two forward passes.
        returned: whether the server sends a gradient back for each upload.
        head: whether the auxiliary head trains and travels with the client's part.
        scalars: of each local step, which go up in place of the model.
        aligned: rounds from one in which each participant gets a new head to the next; 0: none does.
    """
    problem = setting.problem
    itemsize = np.dtype(setting.dtype).itemsize
    to, each = training.participants(setting, 0), range(setting.m)
    model = ((problem.local.n if head else problem.n_client) + problem.local.b) * itemsize
    moments = _moments_bytes(setting, training, head)
    uploads = {i: [q for q in range(training.steps(setting, i)) if training.uploads(setting, i, q)] for i in each}
    smashed = problem.smashed_bytes
    back = dict.fromkeys(each, model + moments)
    if scalars is not None:
        back = {i: problem.local.b * itemsize + 8 * scalars * training.steps(setting, i) for i in each}
    samples = {i: sum(training.samples(setting, i, q) for q in found) for i, found in uploads.items()}
    return {
        "kernel": problem.kernel_name(training.batch),
        "parameters of client, auxiliary, server": " ".join(map(str, [*problem.local.sizes(), problem.top.n])),
        "a smashed sample": " x ".join(map(str, problem.smashed_shape)),
        "clients, participants in a round": f"{setting.m}, {len(to)}",
        "local steps of a round, client 0": training.steps(setting, 0),
        "bytes down, client 0, a round": model + moments + 8 + returned * samples[0] * smashed,
        "bytes up, client 0, a round": back[0] + 8 + samples[0] * smashed,
        "bytes down and up, all clients, a round": sum(
            model + moments + back[i] + 16 + (1 + returned) * samples[i] * smashed for i in to
        ),
        "bytes of labels, all clients, a round": 8 * sum(samples[i] for i in to),
        **_gibibytes(setting, training, rounds, samples, (1 + returned, head, scalars, aligned)),
        "forward passes of a local step": forwards,
        "backward passes of a local step": int(backwards),
    }


def _moments_bytes(setting: Setting, training: Training, head: bool) -> int:
    """Of a client's optimiser, as they travel each way."""
    if training.state != "average":
        return 0
    part = training.trainable(setting, head)
    return training.rule.memory_bytes(part.stop - part.start, np.dtype(setting.dtype).itemsize)


def _gibibytes(
    setting: Setting,
    training: Training,
    rounds: int,
    samples: Mapping[int, int],
    what: tuple[int, bool, int | None, int],
) -> dict[str, str | float]:
    """Lines of --dry-run: what all clients send and get in all rounds, by kind, and in the sums that [C] prints.

    Args:
        samples: {i: smashed samples that client i sends in a round}.
        what: how often a smashed sample's size travels; and `head`, `scalars`, `aligned` of `plan_of`.
    """
    (times, head, scalars, aligned), problem = what, setting.problem
    itemsize, ways = np.dtype(setting.dtype).itemsize, 1 if scalars is not None else 2
    asked = [training.participants(setting, r) for r in range(rounds)]
    all_asked = [i for to in asked for i in to]
    heads = ways * len(all_asked) if head else sum(map(len, asked[::aligned])) if aligned else 0
    up = sum(samples[i] for i in all_asked)
    steps = 0 if scalars is None else scalars * sum(training.steps(setting, i) for i in all_asked)
    kinds = {
        "the clients' parts": ways * len(all_asked) * problem.n_client * itemsize,
        "auxiliary heads": heads * (problem.local.n - problem.n_client) * itemsize,
        "BatchNorm's statistics": 2 * len(all_asked) * problem.local.b * itemsize,
        "the optimisers' moments": ways * len(all_asked) * _moments_bytes(setting, training, head),
        "scalars in place of models": 8 * steps,
        "smashed samples": up * problem.smashed_bytes,
        "gradients at the cut": (times - 1) * up * problem.smashed_bytes,
        "labels": 8 * up,
    }
    bare = sum(kinds[name] for name in ("the clients' parts", "smashed samples", "gradients at the cut"))
    sums = {
        "as [C] counts, without heads": bare,
        "as [C] counts, with heads": bare + kinds["auxiliary heads"],
        "all but labels": sum(kinds.values()) - kinds["labels"] + 16 * len(all_asked),
    }
    told = {name: size / 2**30 for name, size in {**kinds, **sums}.items()}
    return {
        f"GiB in {rounds} rounds: {name}": f"{size:.3f} ({size / rounds:.5g} a round)" for name, size in told.items()
    }


def measured_of(setting: Setting, training: Training, step: str, forwards: float | str = 1) -> dict[str, str | float]:
    """What --dry-run tells and the result keeps of a step's cost: multiply-accumulates, and bytes live at once.

    Args:
        step: see `costs.peak_bytes`; a backward pass counts as two forward passes.
        forwards: forward passes of a local step; in words where steps differ.
    """
    from zofl_mpi.rounds.split.measured import macs, peak_bytes

    client, auxiliary, server_part = macs(setting.problem)
    each = (client if step == "cut" else client + auxiliary) * training.batch
    what, passes = "multiply-accumulates of each of a client's forward passes", 1.0
    if not isinstance(forwards, str):
        what, passes = STEP_MACS, forwards + 2 * (step != "forward")
    return {
        "multiply-accumulates of a sample at the client": round(client),
        "multiply-accumulates of a sample in the head": round(auxiliary),
        "multiply-accumulates of a sample at the server": round(server_part),
        what: round(passes * each),
        "multiply-accumulates of the server's step": round(3 * server_part * training.batch),
        STEP_BYTES: peak_bytes(setting.problem, training.batch, step),
    }


STEP_MACS = "multiply-accumulates of a client's step"
STEP_BYTES = "peak bytes of a client's step, beyond its model"
