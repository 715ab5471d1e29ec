"""FedNest's outer steps by their formula, and the independence of the mini-batches that its analysis asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.test_fednest import STREAMS, clients_of, close, known, point
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.fednest import FedNest, Vector
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.run.flags import built


@pytest.mark.parametrize("H", [1, 3])
def test_outer_steps_are_their_formula(monkeypatch: pytest.MonkeyPatch, H: int) -> None:
    """FedOut: H steps x <- x - gamma / H (grad f_i(x; xi) - grad f_i(x_r; xi) + h) of each client, then their mean,
    with h the mean of the clients' hypergradients, here one that is given.

    Mutations: gamma in place of gamma / H; the correction's sign, or its point; H steps along the hypergradient alone.
    """
    setting, h = known(BilevelBowls, 1.0), point(7)
    problem = setting.problem
    of = built(FedNest, setting, T=1, H=H, N=1, gamma=0.3, gamma_lower=0.0, batch=2, batch_lower=2)
    state = replace(of.start(), x=point(), y=point(1))

    def hypergradient(self: FedNest, client: Any, message: Any) -> Vector:
        return Vector(h)

    monkeypatch.setattr(FedNest, "hypergradient", hypergradient)
    ends = []
    for i, link in enumerate(setting.data):
        x = state.x
        for batch in STREAMS(Purpose.BATCH, r=0, i=i).integers(len(link.upper), size=(H, 2)):
            here, there = (problem.gradients_f(i, at, state.y, link.upper, batch)[0] for at in (x, state.x))
            x = x - 0.3 / H * (here - there + h)
        ends.append(x)
    close(of.round(state, 0, clients_of(of)).x, np.mean(ends, axis=0))


def test_each_product_of_the_series_has_a_mini_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """E prod_t (I - H_t / L) is the product of the means where the H_t are independent, of each other and of y, which
    the inner rounds made. Mini-batches of 20 samples from 40, T = 3, three products, then the cross derivative; two
    rounds: no two are equal but those that both points of a correction share.

    Mutations: mini-batches of the inner rounds for the products; one for all products; the last product's for the
    cross derivative; those of round 0, or of client 0, for all.
    """
    setting = known(BilevelBowls, 1.0)
    seen: dict[str, list[bytes]] = {"gradient_h": [], "hessian_h": [], "cross_h": []}
    for name, found in seen.items():
        of_all = getattr(BilevelBowls, name)

        def recorded(*values: Any, of_all: Any = of_all, found: list[bytes] = found) -> Any:
            found.append(np.asarray(values[-1]).tobytes())
            return of_all(*values)

        monkeypatch.setattr(BilevelBowls, name, recorded)
    of = built(FedNest, setting, T=3, H_lower=2, N=4, gamma=0.1, batch=2, batch_lower=20)
    state, clients = of.start(), clients_of(of)
    for r in range(2):
        state = of.round(state, r, clients)
    count = 2 * len(setting.data)
    inner = set(seen["gradient_h"])
    assert len(inner) == count * 3 * 2 and len(seen["gradient_h"]) == count * 3 * (1 + 2 * 2)
    later = [*seen["hessian_h"], *seen["cross_h"]]
    assert len(later) == count * (3 + 1) == len(set(later)) and not inner & set(later)
