"""[B]'s theory: many runs at once are Algorithm 1, and smoothing costs what Lemma 1 allows."""

import math
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import check_figure
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients


@pytest.mark.parametrize("name", ["bowls", "kinks"])
def test_all_runs_at_once_are_algorithm_1(script: Any, name: str) -> None:
    """With the directions and samples that the package draws, iterate for iterate; mutations: eta, n, the mean, H."""
    module, K, m = script("b_theory"), 1024, 4
    family, seeds = getattr(module, name)(m), (1, 2)
    generator = np.random.default_rng(0)
    noise = generator.standard_normal(family.noise.shape)
    family = family._replace(noise=noise - noise.mean(axis=1, keepdims=True))
    make: Any = Bowls.random if name == "bowls" else MaxAffine.random
    problem, _, data = make(Streams(1), 2, m)
    data = tuple(module.replace(own, noise=family.noise[i]) for i, own in enumerate(data))
    flags = {"K": K, "eta": 0.1, "batch": 1, "x0": "zero"}

    def draw(r: int, H: int) -> tuple[Any, Any]:
        v, batch = np.empty((2, m, H, 2)), np.empty((2, m, H), np.int64)
        for s, seed in enumerate(seeds):
            for i in range(m):
                own = Streams(seed)(Purpose.DIRECTION, r=r, i=i)
                v[s, i] = [zo.direction(own, 2) for _ in range(H)]
                batch[s, i] = Streams(seed)(Purpose.BATCH, r=r, i=i).integers(len(data[i]), size=(H, 1))[:, 0]
        return v, batch

    points = module.course(family, module.theorem1(K, m), 0.1, 40, draw)
    H, _ = module.theorem1(K, m)
    assert H == 2 and points.shape == (40, 2, 2)
    for s, seed in enumerate(seeds):
        method = from_flags(FedRZONN, Setting(problem, Streams(seed), data, dtype=np.float64), **flags)
        clients, state = LocalClients(list(data)), method.start()
        for r in range(20):
            assert points[r * H, s] == pytest.approx(state.x, abs=1e-12)
            state = method.round(state, r, clients)
    assert np.abs(points[-1] - points[0]).max() > 0.1


@pytest.mark.parametrize("name", ["bowls", "kinks", "alike"])
def test_the_gradients_of_the_theory_are_those_of_the_smoothed_losses(script: Any, name: str) -> None:
    """Against differences of f^eta, which is integrated over the disc."""
    module = script("b_theory")
    family = getattr(module, name)(3)
    radius, angle = np.sqrt((np.arange(60) + 0.5) / 60), 2 * np.pi * (np.arange(240) + 0.5) / 240
    disc = (radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)).reshape(-1, 2)

    def smoothed(x: Any) -> float:
        return float(family.losses((x + module.ETA * disc)[:, None]).mean())

    for x in (np.array([0.3, -0.2]), np.array([-1.0, 0.7])):
        around = [(smoothed(x + 1e-3 * e) - smoothed(x - 1e-3 * e)) / 2e-3 for e in np.eye(2)]
        assert family.gradient(x[None])[0] == pytest.approx(around, abs=0.02)


def test_smoothing_costs_what_lemma_1_allows(script: Any) -> None:
    module = script("b_theory")
    for eta in (0.01, 0.3):
        gap, bound = module.kink(eta)
        assert 0 < gap <= bound
    lines = module.smoothing((0.01, 0.1))
    assert [round(line.slope, 1) for line in lines] == pytest.approx([1.0, 1.0, 1.0], abs=0.11)
    # E max(w, 0) over the unit ball in three dimensions is 3/16, in each component
    assert lines[1].y[1] == pytest.approx(0.1 * 3 / 16 * math.sqrt(3), rel=0.1)


def test_theory_is_drawn_and_written(script: Any, wrote: Any) -> None:
    module = script("b_theory")
    told = wrote("b_theory", ["--seeds", "2", "--powers", "6", "7", "8", "--clients", "1", "2"])
    out = told.out
    check_figure(told.stem)
    rows = [line.split(",") for line in told.path(".csv").read_text().strip().split("\n")]
    assert len(rows) == 1 + 3 * len(module.ETAS) + 2 * 3 + 2 * 2
    assert "mean over 2 runs" in " ".join(out.split()) and f"{float(rows[1][4]):+.3f}" in out
