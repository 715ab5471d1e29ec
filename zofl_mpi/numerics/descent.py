"""Inner loops of methods: projected gradient steps, and local steps of first-order methods."""

from collections.abc import Callable

from zofl_mpi.arrays import Array

Gradient = Callable[[Array, int], Array]  # (point, step) -> gradient
Projection = Callable[[Array], Array]


def descend(
    y: Array, gradient: Gradient, *, steps: int, stepsize: Callable[[int], float], project: Projection = lambda y: y
) -> Array:
    """Projected gradient descent: y <- project(y - stepsize(t) gradient(y, t)), t = 0, ..., steps - 1; returns y.

    Source: [A] Algorithm 2, [B] Algorithms 1 to 3. y has any shape and is not changed; with 0 steps y itself is
    returned. `gradient` may be stochastic.
    """
    for t in range(steps):
        y = project(y - stepsize(t) * gradient(y, t))
    return y


def local_descent(y: Array, gradient: Gradient, stepsizes: Array, mu: float, shift: Array | None) -> Array:
    """Local steps of `problems.base.Problem.descend` from y (n,); `gradient` maps (z (n,), step t) to (n,)."""

    def direction(z: Array, t: int) -> Array:
        g = gradient(z, t)
        g = g if mu == 0 else g + mu * (z - y)
        return g if shift is None else g + shift

    return descend(y.copy(), direction, steps=len(stepsizes), stepsize=lambda t: float(stepsizes[t]))
