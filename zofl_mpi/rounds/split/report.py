"""What split training reports: the test samples scored by all clients, and the columns of the result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from zofl_mpi.rounds.split.messages import Scored, Whole
from zofl_mpi.run.clients import Client, Clients, Step
from zofl_mpi.run.setting import Setting

COLUMNS: Mapping[str, tuple[str, str]] = {
    "theta": ("1", "theta_c and theta_a, flat"),
    "buffers": ("1", "BatchNorm's running statistics of the client's part"),
    "theta_s": ("1", "the server's part, flat"),
    "buffers_s": ("1", "BatchNorm's running statistics of the server's part"),
    "test_accuracy": ("1", "share of test samples that server(client(x)) classifies correctly"),
    "test_loss": ("nat", "its mean cross-entropy on the test samples"),
    "server_steps": ("1", "the server's steps in this round"),
    "server_loss": ("nat", "mean over the server's steps of this round of the loss before each"),
    "local_loss": ("nat", "mean over clients and local steps of the loss that the client itself sees"),
    "label_bytes": ("B", "labels that went up in this round; no part of bytes_up"),
}


def scored(setting: Setting, client: Client, message: Whole) -> Scored:
    """Step of an evaluation: client i looks at every m-th test sample."""
    from torch.nn.functional import cross_entropy

    problem, test = setting.problem, setting.test
    theta, buffers, theta_s, buffers_s = (
        problem.placed(t).clone() for t in (message.theta, message.buffers, message.theta_s, message.buffers_s)
    )
    positions = np.arange(client.i, len(test), setting.m)
    loss, hits = 0.0, 0
    with problem.evaluating(), problem.local.at(theta, buffers), problem.top.at(theta_s, buffers_s):
        for start in range(0, len(positions), 256):
            x, labels = problem.samples(test, positions[start : start + 256])
            logits = problem.logits(x)
            loss += float(cross_entropy(logits.double(), labels, reduction="sum"))
            hits += int((logits.argmax(dim=1) == labels).sum())
    return Scored(len(positions), loss, hits)


def report(state: Any, clients: Clients, score: Step) -> dict[str, float]:
    """The columns of COLUMNS but those of the state, which has the fields of `State`.

    Args:
        score: the method's step that returns `scored`.
    """
    whole = Whole(state.theta, state.buffers, state.theta_s, state.buffers_s)
    told = [reply for _, reply in clients.ask(score, whole, counted=False)]
    samples = sum(p.samples for p in told)
    return {
        "test_accuracy": sum(p.hits for p in told) / samples,
        "test_loss": math.fsum(p.loss for p in told) / samples,
    }
