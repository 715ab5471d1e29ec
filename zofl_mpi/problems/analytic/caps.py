"""Hierarchical problem with active constraints, on which implicit differentiation fails."""

from dataclasses import dataclass
from typing import final

import numpy as np

from zofl_mpi.arrays import Vector
from zofl_mpi.engine.fields import above, at_least
from zofl_mpi.problems import Array, Batch
from zofl_mpi.problems.analytic.known import KnownHierarchical


@final
@dataclass(frozen=True)
class Caps(KnownHierarchical):
    """Caps on clients' wishes: client i wants t_i and gets at most x, so y_i(x) = min(t_i, x).

    h_i = 1/2 |y - t_i|^2 over Y_i(x) = {y <= x}. The server pays for the caps, f_1 = cost/2 |x|^2, and for the clients'
    distance from a common level, f_{2,i} = 1/2 |y - level|^2. The wishes are evenly spaced from 1 to 2, equal in every
    entry of x. Entry by entry F(x) = cost/2 x^2 + (1/m) sum_i 1/2 (min(t_i, x) - level)^2 is convex. It has a kink at
    each t_i, where a client's constraint becomes inactive. The minimiser x* > 0 may be a kink, without a gradient.

    x occurs only in the constraint of h_i. The implicit function theorem on grad_y h_i(x, y) = 0 therefore gives
    dy_i/dx = 0, and descent along grad f_1 + (dy/dx)' grad_y f_2 = cost x ends at x = 0. That is no stationary point:
    all constraints are active there, and F has the slope -level < 0 in every entry. Data are ignored.

    Attributes:
        m: number of clients, which differ in t_i.
        n: length of x.
        cost: weight of |x|^2/2.
        level: at least 2, the largest wish.
    """

    m: int = at_least(1, 10)
    n: int = at_least(1, 4)
    cost: float = above(0, 1.1, "a weight")
    level: float = at_least(2, 3.0, remark="(the largest wish of a client)")

    @property
    def wishes(self) -> Vector:
        """Wishes t_i (m,), ascending."""
        return np.linspace(1.0, 2.0, self.m)

    def f1(self, x: Array, data: object) -> float:
        return float(self.cost / 2 * x @ x)

    def gradient_f1(self, x: Array, data: object, batch: Batch) -> Array:
        return np.asarray(self.cost * x)

    def f2(self, i: int, x: Array, y: Array) -> float:
        return float((y - self.level) @ (y - self.level) / 2)

    def gradient_h(self, i: int, data: object, x: Array, y: Array, batch: Batch) -> Array:
        return np.asarray(y - self.wishes[i])

    def project(self, i: int, x: Array, y: Array) -> Array:
        return np.minimum(y, x)

    def solution(self, i: int, data: object, x: Array) -> Array:
        return np.asarray(np.minimum(self.wishes[i], x))

    def implicit(self, x: Array) -> float:
        """F(x) for x (n,)."""
        f2 = [self.f2(i, x, self.solution(i, None, x)) for i in range(self.m)]
        return self.f1(x, None) + float(np.mean(f2))

    def slopes(self, x: float) -> tuple[float, float]:
        """Left and right slope of an entry's F at x; they differ at each t_i."""
        from_left, from_right = (float(np.mean(binds)) for binds in (self.wishes >= x, self.wishes > x))
        return self.cost * x + from_left * (x - self.level), self.cost * x + from_right * (x - self.level)

    def minimiser(self) -> Vector:
        """Minimiser x* (n,): the kink at which the slope changes sign, else the stationary point between two kinks."""
        k = next(k for k, t in enumerate(self.wishes) if self.slopes(float(t))[1] >= 0)
        t = float(self.wishes[k])
        if self.slopes(t)[0] < 0:
            return np.full(self.n, t)
        binding = (self.m - k) / self.m  # below t the constraints of clients k, ..., m - 1 are active
        return np.full(self.n, binding * self.level / (self.cost + binding))

    def score(self, x: Array, data: object, mix: Vector | None = None) -> dict[str, float]:
        return {"loss": self.implicit(x)}
