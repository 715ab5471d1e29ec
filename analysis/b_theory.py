"""[B] Lemma 1 and Theorem 1 on problems whose truth is known: what smoothing costs, and how fast the gradient falls.

python analysis/b_theory.py [--seeds 32] [--powers 8 9 10 11 12 13] [--clients 1 2 4 8 16] [--out NAME]

Three panels, each with a slope fitted in logarithms. Left: against the radius eta, f^eta - f at a kink (max_affine),
the error of the smoothed gradient of a function whose second derivative jumps, and the distance from the solution on a
ball where the ball is only penalised. Middle: E|grad f^eta|^2 at the uniformly drawn iterate of Algorithm 1 against its
local iterations K, with the theorem's gamma = sqrt(m/K) and H. Right: the same against m, clients alike, at equal K and
at equal m K. Everything runs in this process; no results are needed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.numerics import zo
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.analytic.quadratic import Quadratic, QuadraticData
from zofl_mpi.rounds.zeroth_order import Local, theorem1

Gradient = Callable[[Array], Array]
ETAS = (0.003, 0.01, 0.03, 0.1, 0.3)
DIRECTIONS = 4000
ETA = 0.1  # of the runs
NOISE = 0.5  # standard deviation of a sample's gradient in the runs with clients alike
M = 4


class Line(NamedTuple):
    """Points that a power law may go through.

    Attributes:
        expected: the exponent that the theory gives.
    """

    name: str
    x: Array
    y: Array
    expected: float

    @property
    def slope(self) -> float:
        """The exponent, fitted by least squares in logarithms."""
        return float(np.polyfit(np.log(self.x), np.log(self.y), 1)[0])


def report(flags: Any) -> Report:
    """The slopes, the points and the figure."""
    panels = {
        "eta": smoothing(ETAS),
        "K": iterations([2**p for p in flags.powers], flags.seeds),
        "m": speed_up(flags.clients, 2 ** (flags.powers[-1] - 2), flags.seeds),
    }
    return Report(text(panels), about(flags.seeds), rows(panels), draw(panels))


FLAGS = {
    "--seeds": command.flag(32, "runs that are averaged"),
    "--powers": command.flag([8, 9, 10, 11, 12, 13], "log2 of K"),
    "--clients": command.flag([1, 2, 4, 8, 16], "m"),
}
main = command.script("b_theory", __doc__, report, FLAGS)

# --- the smoothing radius


def smoothing(etas: Sequence[float]) -> list[Line]:
    """The three errors against eta."""
    at = np.array(etas)
    return [
        Line("f^η - f at a kink", at, np.array([kink(eta)[0] for eta in etas]), 1.0),
        Line("|∇f^η - ∇f|", at, np.array([gradient_error(eta) for eta in etas]), 1.0),
        Line("set penalised", at, np.array([penalty_error(eta) for eta in etas]), 1.0),
    ]


def kink(eta: float) -> tuple[float, float]:
    """f^eta - f at the minimiser of a `MaxAffine`, a kink; and L_0 eta, which it must not exceed."""
    problem, _, data = MaxAffine.random(Streams(1), 3, M)
    generator = Streams(1)(Purpose.PROBE)
    w = np.stack([zo.direction(generator, problem.n) for _ in range(DIRECTIONS // 2)])
    w *= generator.uniform(size=(len(w), 1)) ** (1 / problem.n)  # uniform in the ball
    points = problem.minimiser + eta * np.concatenate([w, -w])
    f = np.mean([problem.losses(i, points, own) for i, own in enumerate(data)], axis=0)
    return float(f.mean()) - problem.value, problem.lipschitz * eta


def gradient_error(eta: float) -> float:
    """|grad f^eta(0) - grad f(0)| of f(x) = |max(x, 0)|^2/2 in three dimensions, whose second derivative jumps.

    From `DIRECTIONS` central estimates, with a standard error of about 2 %; grad f(0) = 0.
    """
    generator = Streams(2)(Purpose.PROBE)
    directions = (zo.direction(generator, 3) for _ in range(DIRECTIONS))
    g = [zo.central(lambda x: float(np.square(np.maximum(x, 0)).sum() / 2), np.zeros(3), v, eta) for v in directions]
    return float(np.linalg.norm(np.mean(g, axis=0)))


def penalty_error(eta: float) -> float:
    """The limit of exact steps on f + dist^2/(2 eta) against the minimiser of f over the ball, f a `Bowls`."""
    problem, _, data = Bowls.random(Streams(1), 3, M)
    radius, gamma = np.linalg.norm(problem.minimiser) / 2, 0.9 * eta
    setting = Setting(problem, Streams(1), data, dtype=np.float64)
    local = Local(setting, gamma=gamma, eta=eta, x_set=(f"ball:{radius}",))
    ball, *_ = local.sets

    def slope(x: Array) -> Array:
        return np.asarray(np.mean([problem.gradient(x, own) for own in data], axis=0))

    def limit(step: Callable[[Array], Array]) -> Array:
        x = problem.minimiser
        for _ in range(100_000):
            x, before = step(x), x
            if np.linalg.norm(x - before) < 1e-10 * eta:
                break
        return x

    penalised = limit(lambda x: x - gamma * (slope(x) + local.pull(x, ball)))
    constrained = limit(lambda x: np.asarray(ball.project(x - 0.1 * slope(x))))
    return float(np.linalg.norm(penalised - constrained))


# --- the rate


class Family(NamedTuple):
    """m clients' losses at many points at once, and the truth.

    Attributes:
        losses: x (..., m, n) -> (..., m) without noise.
        gradient: (k, n) -> (k, n) grad f^eta.
        noise: (m, N, n) of the clients' samples.
        start: (n,).
    """

    losses: Gradient
    gradient: Gradient
    noise: Array
    start: Array


def iterations(Ks: Sequence[int], seeds: int) -> list[Line]:
    """E|grad f^eta|^2 against K, m = 4 unequal clients."""
    families = {"quadratic": bowls(M), "max of affine": kinks(M)}
    found = {name: np.array([squared(family, K, seeds) for K in Ks]) for name, family in families.items()}
    return [Line(name, np.array(Ks, np.float64), y, -0.5) for name, y in found.items()]


def speed_up(clients: Sequence[int], K: int, seeds: int) -> list[Line]:
    """E|grad f^eta|^2 against m, equal clients: at equal K, and at equal m K."""
    ms, work = np.array(clients, np.float64), K * max(clients) // 2
    fixed = np.array([squared(alike(m), K, seeds) for m in clients])
    shared = np.array([squared(alike(m), work // m, seeds) for m in clients])
    return [Line(f"K = {K}", ms, fixed, -0.5), Line(f"m K = {work}", ms, shared, 0.0)]


def bowls(m: int) -> Family:
    """Unequal quadratics, n = 2, of which f^eta is f and a constant."""
    problem, _, data = Bowls.random(Streams(1), 2, m)
    return quadratic(problem, data)


def alike(m: int) -> Family:
    """m clients with the same quadratic and the same samples, whose mini-batches and directions are their own."""
    _, _, (bowl,) = Quadratic.random(Streams(1), 2, 1, noise=NOISE)
    own = replace(bowl, noise=bowl.noise - bowl.mean_noise())
    return quadratic(Bowls.of([own] * m), [own] * m)


def quadratic(problem: Bowls, data: Sequence[QuadraticData]) -> Family:
    """The family of a `Bowls`: what `Bowls.losses` computes, for all clients at once."""
    A, a = np.stack([own.A for own in data]), np.stack([own.a for own in data])
    mean = A.mean(axis=0)

    def losses(x: Array) -> Array:
        d = x - a
        return np.asarray((np.matmul(d[..., None, :], A)[..., 0, :] * d).sum(axis=-1) / 2)

    return Family(
        losses, lambda x: (x - problem.minimiser) @ mean, np.stack([own.noise for own in data]), np.zeros(problem.n)
    )


def kinks(m: int) -> Family:
    """Unequal sums of absolute values, n = 2; grad f^eta is a mean over the circle, here over 256 points of it."""
    problem, _, data = MaxAffine.random(Streams(1), 2, m)
    slopes, offsets = np.stack([own.slopes for own in data]), np.stack([own.offsets for own in data])
    angles = 2 * np.pi * (np.arange(256) + 0.5) / 256
    v = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def losses(x: Array) -> Array:
        heights = (slopes * x[..., None, None, :]).sum(axis=-1) + offsets
        return np.asarray(heights.max(axis=-1).sum(axis=-1))

    def gradient(x: Array) -> Array:
        f = losses((x[:, None] + ETA * v)[:, :, None]).mean(axis=-1)  # (k, 256)
        return np.asarray(2 / ETA * f @ v / len(v))

    return Family(losses, gradient, np.stack([own.noise for own in data]), np.zeros(problem.n))


Draw = Callable[[int, int], tuple[Array, NDArray[np.int64]]]
"""(round, H) -> directions (seeds, m, H, n) of norm 1 and positions (seeds, m, H) of one sample each."""


def squared(family: Family, K: int, seeds: int) -> float:
    """E|grad f^eta|^2 at the iterate that Theorem 1 draws from K, over `seeds` runs.

    Given a run, the expectation over the draw is the mean over its iterates: it is taken, over 2,048 or
    some more of them at equal distances, and nothing drawn.
    """
    m, samples, n = family.noise.shape
    generator = Streams(K)(Purpose.DIRECTION)

    def draw(r: int, H: int) -> tuple[Array, NDArray[np.int64]]:
        v = generator.standard_normal((seeds, m, H, n))
        return v / np.linalg.norm(v, axis=-1, keepdims=True), generator.integers(samples, size=(seeds, m, H))

    points = course(family, theorem1(K, m), ETA, K, draw)[:K]
    stride = max(1, K // 2048)  # much shorter than the way from the start, which is a good part of the mean
    points = points[stride // 2 :: stride].reshape(-1, n)
    parts = np.array_split(points, math.ceil(len(points) / 512))
    return math.fsum(float(np.square(family.gradient(part)).sum()) for part in parts) / len(points)


def course(family: Family, schedule: tuple[int, float], eta: float, K: int, draw: Draw) -> Array:
    """(K or more, seeds, n) the mean iterates of Algorithm 1, before each local step: all seeds and clients at once.

    These are the numbers of `FedRZONN` for the same directions and samples, a thousand times as fast.
    """
    m = len(family.noise)
    H, gamma = schedule
    points, x, everyone = [], family.start, np.arange(m)
    for r in range(-(-K // H)):
        v, batch = draw(r, H)
        y = np.broadcast_to(x if x.ndim == 1 else x[:, None], v[:, :, 0].shape)
        for k in range(H):
            points.append(y.mean(axis=1))
            u = v[:, :, k]
            noise = (family.noise[everyone, batch[:, :, k]] * u).sum(axis=-1) * eta
            F = family.losses(np.stack([y + eta * u, y]))
            y = y - (gamma * u.shape[-1] / eta * (F[0] - F[1] + noise))[..., None] * u
        x = y.mean(axis=1)
    return np.stack(points)


# --- words

Panels = dict[str, list[Line]]


def rows(panels: Panels) -> list[dict[str, Any]]:
    """A row for each point."""
    return [
        {
            "axis": axis,
            "line": line.name,
            "at": float(line.x[k]),
            "value": float(line.y[k]),
            "slope_fitted": line.slope,
            "slope_expected": line.expected,
        }
        for axis, lines in panels.items()
        for line in lines
        for k in range(len(line.x))
    ]


def text(panels: Panels) -> str:
    """Table of the slopes."""
    body = [
        [axis, line.name, f"{line.slope:+.3f}", f"{line.expected:+.3f}", *wording.digits(line.y[0], line.y[-1])]
        for axis, lines in panels.items()
        for line in lines
    ]
    largest = max(kink(eta)[0] / kink(eta)[1] for eta in ETAS)
    header = ("against", "what", "slope", "theory", "first", "last")
    return f"{wording.text_table(header, body, left=2)}\n\nLargest (f^eta - f)/(eta L_0), at most 1: {largest:.3f}."


def about(seeds: int) -> str:
    """The note: what was measured."""
    return (
        f"Runs: Algorithm 1, n = 2, one sample a step, eta = {ETA:g}, gamma = sqrt(m/K), H = ceil((K/m^3)^(1/4)), "
        f"mean over {seeds} run{'' if seeds == 1 else 's'} and the iterates of each of |grad f^eta|^2. Against K: "
        f"m = {M} unequal clients without noise. Against m: clients alike, noise {NOISE:g}."
    )


# --- figure


@figures.styled
def draw(panels: Panels) -> Any:
    """Draws a panel for each axis."""
    figure, axes = figures.canvas(1, 3, figures.PAGE, 2.5)
    for panel, lines in zip(axes[0], panels.values(), strict=True):
        for k, line in enumerate(lines):
            curve(panel, line, k)
        panel.set(xscale="log", yscale="log")
        low, high = panel.get_ylim()
        panel.set_ylim(low, high * (high / low) ** (0.12 + 0.11 * len(lines)))  # for the legend
        panel.legend(frameon=False, loc="upper left", fontsize=7, handlelength=2.4)
    axes[0, 0].set(xlabel="smoothing radius $\\eta$", ylabel="error", title="smoothing")
    axes[0, 1].set(xlabel="local iterations $K$", title=f"rate, $m = {M}$")
    axes[0, 1].set_ylabel("$\\mathrm{E}\\,|\\nabla f^\\eta|^2$")
    axes[0, 2].set(xlabel="clients $m$", title="speed-up")
    ticks(axes[0, 1], panels["K"][0].x, "$2^{{{:.0f}}}$", np.log2)
    ticks(axes[0, 2], panels["m"][0].x, "{:g}", np.abs)
    return figure


def ticks(panel: Any, at: Array, form: str, number: Gradient) -> None:
    """Puts marks where the points are, and plain numbers on the vertical axis: it is hardly a decade long."""
    panel.set_xticks(at, [form.format(value) for value in number(at)])
    panel.minorticks_off()
    low, high = panel.get_ylim()
    panel.set_yticks([tick for tick in (0.005, 0.01, 0.02, 0.05, 0.1) if low < tick < high])
    panel.yaxis.set_major_formatter("{x:g}")


def curve(panel: Any, line: Line, k: int) -> None:
    """Draws points, fit, and the theory's slope through the first point in grey."""
    panel.plot(line.x, line.y, label=f"{line.name}: {line.slope:+.2f}", **figures.look(k))
    panel.plot(line.x, line.y[0] * (line.x / line.x[0]) ** line.expected, color="0.6", linewidth=0.8, zorder=1)


if __name__ == "__main__":
    main()
