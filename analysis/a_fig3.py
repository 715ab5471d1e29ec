"""[A] figure 3: a nonsmooth implicit function, its smoothing, and where zeroth-order descent ends. No results needed.

python analysis/a_fig3.py [--out NAME]

The client's solution is y(x) = max(x, 0), the implicit function f(x) = |x + 1 - y(x)|^2 / 2 ([A] equation 3 in one
dimension): (x + 1)^2 / 2 for x < 0 and 1/2 for x >= 0, with the minimiser -1 and a plateau of stationary points. Its
smoothing f^eta is the mean of f over [x - eta, x + eta]; descent takes steps gamma along the two-point estimate, which
in one dimension is the derivative of f^eta. It leaves the plateau where x < eta, and nowhere else.
"""

from typing import Any

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array

from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.quadratic import Corner

CORNER = Corner(1)
ETAS, STARTS, STEPS, GAMMA = (0.1, 0.5), (-2.0, -0.5, 0.3, 0.8), 200, 0.05
"""Radii, starts, and the steps of each descent with their size."""


def report(flags: Any) -> Report:
    """Where the descents end, and the figure."""
    return Report(text(), figure=draw())


main = command.script("a_fig3", __doc__, report)

# --- the functions


def solution(x: Array) -> Array:
    """The client's solution y(x)."""
    return CORNER.solution(0, None, x)


def implicit(x: Array) -> Array:
    """f(x), point by point."""
    return np.array([CORNER.f2(0, point, solution(point)) for point in x[..., None]])


def integral(x: Array) -> Array:
    """The integral of f from 0 to x."""
    return np.where(x < 0, ((np.minimum(x, 0) + 1) ** 3 - 1) / 6, x / 2)


def smoothed(x: Array, eta: float) -> Array:
    """f^eta(x), the mean of f over [x - eta, x + eta], exactly."""
    return (integral(x + eta) - integral(x - eta)) / (2 * eta)


def descent(start: float, eta: float) -> Array:
    """(STEPS + 1,) x_0, x_1, ...: x <- x - gamma times the two-point estimate along a random unit vector."""
    x, streams = np.array([start]), Streams(1)
    points = [x]
    for r in range(STEPS):
        v = zo.direction(streams(Purpose.DIRECTION, r=r), 1, np.float64)
        x = x - GAMMA * zo.central(lambda z: float(implicit(z)[0]), x, v, eta)
        points.append(x)
    return np.concatenate(points)


# --- the figure


def text() -> str:
    """Table of where the descents end."""
    ends = [(eta, start, descent(start, eta)[-1]) for eta in ETAS for start in STARTS]
    rows = [[f"{eta:g}", f"{start:g}", f"{end:.4f}", f"{implicit(np.array([end]))[0]:.4f}"] for eta, start, end in ends]
    return wording.text_table(("eta", "start", f"x after {STEPS} steps", "f there"), rows, left=0)


@figures.styled
def draw() -> Any:
    """Draws three panels: y and f; f and its smoothings near the corner, with starts and ends; the descents."""
    figure, panels = figures.canvas(1, 3, figures.PAGE, 2.3)
    functions(panels[0, 0])
    corner(panels[0, 1])
    descents(panels[0, 2])
    return figure


def functions(panel: Any) -> None:
    """Draws y(x) and f(x)."""
    x = np.linspace(-2.5, 1.5, 401)
    panel.plot(x, solution(x), label="$y(x)$", **figures.smooth(1))
    panel.plot(x, implicit(x), label="$f(x)$", **figures.smooth(0))
    panel.set(xlabel="$x$", ylabel="value", title="solution and implicit function")
    panel.legend(frameon=False, loc="upper center")


def corner(panel: Any) -> None:
    """Draws f and f^eta where they differ."""
    x = np.linspace(-1.2, 1.0, 441)
    panel.plot(x, implicit(x), label="$f$", **figures.smooth(0))
    for k, eta in enumerate(ETAS):
        panel.plot(x, smoothed(x, eta), label=rf"$f^\eta$, η = {eta:g}", **figures.smooth(k + 1))
    panel.set(xlabel="$x$", ylabel="value", title="smoothed near the corner")
    panel.legend(frameon=False, loc="lower right")


def descents(panel: Any) -> None:
    """Draws x_r for each start and eta."""
    for k, eta in enumerate(ETAS):
        for number, start in enumerate(STARTS):
            label = f"η = {eta:g}" if number == 0 else None
            panel.plot(descent(start, eta), label=label, **figures.smooth(k + 1))
    panel.axhline(-1, color="0.5", linewidth=0.7)
    panel.annotate("minimiser", (STEPS, -1), (0, -3), textcoords="offset points", ha="right", va="top", color="0.3")
    panel.set(xlabel="steps", ylabel="$x_r$", title=f"descent, γ = {GAMMA:g}")
    panel.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.45))


if __name__ == "__main__":
    main()
