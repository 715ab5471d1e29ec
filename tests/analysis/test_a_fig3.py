"""[A]'s figure 3: the smoothing is a mean over a ball, and descent leaves the plateau only where it sees the slope."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.made import check_figure
from zofl_mpi.numerics import zo


def test_figure_3_is_drawn(wrote: Any) -> None:
    told = wrote("a_fig3", [])
    check_figure(told.stem, 7.0)


@pytest.mark.parametrize("eta", [0.1, 0.5])
def test_the_smoothing_of_figure_3_is_the_mean_over_the_ball_and_its_slope_the_estimate(
    script: Any, eta: float
) -> None:
    module = script("a_fig3")
    for x in (-1.3, -0.4, -0.05, 0.0, 0.05, 0.3, 0.7):
        ball = x + eta * (np.arange(4000) + 0.5) / 2000 - eta
        assert module.smoothed(np.array([x]), eta)[0] == pytest.approx(module.implicit(ball).mean(), abs=1e-7)
        around = module.smoothed(np.array([x - 1e-5, x + 1e-5]), eta)
        estimate = zo.central(lambda z: float(module.implicit(z)[0]), np.array([x]), np.array([-1.0]), eta)
        assert (around[1] - around[0]) / 2e-5 == pytest.approx(estimate[0], abs=1e-4)


def test_the_descent_of_figure_3_leaves_the_plateau_only_below_eta(script: Any, monkeypatch: Any) -> None:
    module = script("a_fig3")
    monkeypatch.setattr(module, "STEPS", 400)
    for eta, start, end in ((0.5, 0.3, -1.0), (0.1, 0.3, 0.3), (0.5, 0.8, 0.8), (0.1, -2.0, -1.0), (0.1, 0.05, -1.0)):
        points = module.descent(start, eta)
        assert len(points) == 401 and points[0] == start
        assert points[-1] == pytest.approx(end, abs=1e-6)
