"""Processor time of the server's part of ten uploads, with --merge G beside G = 1.

    python -m tests.bench.merge

Prints milliseconds an upload for each G, the least of several turns in which the G follow each other, and the ratio to
G = 1, of a perceptron, a small ResNet and a larger one (with Adam; on one thread).
"""

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.numerics.split_methods import SIDE, C, Parts, method, mlp, resnet, setting, training
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.messages import Smashed
from zofl_mpi.rounds.split.training import Training

M, TURNS = 10, 15  # uploads of 60 samples


def wide() -> Parts:
    """A perceptron whose server has a million parameters: few products for each."""
    client = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.Tanh())
    return (
        client,
        nn.Linear(64, C),
        nn.Sequential(nn.Linear(64, 1000), nn.Tanh(), nn.Linear(1000, 1000), nn.Linear(1000, C)),
    )


def seconds(plan: Training, uploads: list[Smashed]) -> float:
    """Processor time of the server's steps on an upload of each client."""
    of = method(CSEFSL, plan)
    server = of.server(of.start(), 0)
    for _ in range(2):
        before = time.process_time()
        for i, item in enumerate(uploads):
            server.step(i, item)
        server.move()
    return time.process_time() - before


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    for name, make in (("perceptron", mlp), ("ResNet, width 16", lambda: resnet(1, 16)), ("million", wide)):
        own = setting(make, dtype="float32")
        plan = training(own, Optimiser())
        x, labels = own.problem.samples(own.data[2], np.arange(15))
        with torch.no_grad(), own.problem.client_side.bound_to(*own.problem.client_side.initial()):
            uploads = [
                Smashed(own.problem.smash(x).repeat(4, *[1] * len(own.problem.smashed_shape)), labels.repeat(4))
            ] * M
        least: dict[int, Any] = {}
        for _ in range(TURNS):
            for size in (1, 5, 10):
                least[size] = min(least.get(size, math.inf), seconds(replace(plan, merge=size), uploads))
        told = ", ".join(f"G = {size}: {1e3 * s / M:.3f} ms ({s / least[1]:.2f})" for size, s in least.items())
        print(f"{name}, {own.problem.server_side.n} parameters: {told}")


if __name__ == "__main__":
    main()
