"""The method of jobs/scalars.py: DeComFL's rule with derivatives in place of differences; and softmax cut in two."""

from typing import Any

import numpy as np
import pytest
import torch

from jobs.linear import Linear
from jobs.scalars import Scalars
from tests.numerics.first_order import STREAMS, close, gradient, n, one, point, run, toy
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags

USUAL = {"n_p": 3, "step": 0.2}


def test_a_round_steps_along_the_mean_of_k_projections_of_the_gradient() -> None:
    """v_k ~ N(0, I/K), so sum_k (v_k'g) v_k is DeComFL's mean of K estimates. Mutations: the factor 1/K twice, or left
    out; a direction of each client's own; weights by size; a mini-batch."""
    of = from_flags(Scalars, toy(noise=1.0), **USUAL)
    x, V = point(of.setting), of.directions_of(0)
    u = STREAMS(Purpose.DIRECTION).standard_normal((3, n))
    close(V.T @ V, u.T @ u / 3)
    g = np.mean([gradient(data, x) for data in of.setting.data], axis=0)
    close(one(of, x=x), x - 0.2 * V.T @ (V @ g))
    assert not np.allclose(of.directions_of(1), V)
    reply = of.derive(Client(1, of.setting.data[1]), GlobalModel(x, 1))
    close(reply.scalars, of.directions_of(1) @ gradient(of.setting.data[1], x))


def test_clipped_replies_have_a_signal_below_one() -> None:
    """Where all are clipped, that of their directions; a norm that none reaches changes nothing. Mutations: of the sum;
    of the noised mean; the step on unclipped replies."""
    x, data = point(toy()), toy(noise=1.0)
    plain = from_flags(Scalars, data, **USUAL)
    V = plain.directions_of(0)
    s = np.stack([V @ gradient(d, x) for d in data.data])
    unit = (s / np.linalg.norm(s, axis=1)[:, None]).mean(axis=0)
    state = run(from_flags(Scalars, data, clip=0.01, noise_multiplier=5.0, **USUAL), [0], x)
    assert state.signal == pytest.approx(np.linalg.norm(unit), rel=1e-6)
    close(run(from_flags(Scalars, data, clip=0.01, **USUAL), [0], x).x, x - 0.2 * 0.01 * unit @ V, 1e-6)
    close(run(from_flags(Scalars, data, clip=1e6, **USUAL), [0], x).x, one(plain, x=x))


def test_softmax_cut_in_two_is_softmax() -> None:
    """Mutations: a bias; classes in another order; the second part on the first part's scores."""
    parts: Any = Linear((2, 3), 5)
    first, second = parts.client[1].layer, parts.server[0].layer
    for layer in (first, second):
        assert not layer.weight.any() and layer.bias is None
        torch.nn.init.normal_(layer.weight)
    inputs = torch.randn(4, 2, 3)
    W = torch.cat([first.weight, second.weight])
    torch.testing.assert_close(parts.server(parts.client(inputs)), inputs.flatten(1) @ W.T)
