"""The inner loop of all methods: projected steps, and the local steps of the first-order ones."""

from collections.abc import Callable

from zofl_mpi.arrays import Array

Gradient = Callable[[Array, int], Array]  # (point, step) -> gradient
Projection = Callable[[Array], Array]


def descend(
    y: Array, gradient: Gradient, *, steps: int, stepsize: Callable[[int], float], project: Projection = lambda y: y
) -> Array:
    """Takes the steps y <- project(y - stepsize(t) gradient(y, t)), t = 0, ..., steps - 1.

    Source: [A] Algorithm 2, [B] Algorithms 1 to 3. The start y has any shape, and is not changed;
    `gradient` is the (stochastic) gradient at y in step t. Returned is the last y; the start itself without steps.
    """
    for t in range(steps):
        y = project(y - stepsize(t) * gradient(y, t))
    return y


def local_descent(y: Array, gradient: Gradient, stepsizes: Array, mu: float, shift: Array | None) -> Array:
    """Takes the local steps of `problems.base.Problem.descend` from y (n,), by the gradient at z (n,) in step t."""

    def direction(z: Array, t: int) -> Array:
        g = gradient(z, t)
        g = g if mu == 0 else g + mu * (z - y)
        return g if shift is None else g + shift

    return descend(y.copy(), direction, steps=len(stepsizes), stepsize=lambda t: float(stepsizes[t]))
