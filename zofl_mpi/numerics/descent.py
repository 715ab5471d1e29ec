"""The one inner loop of all methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Any)


def identity(y: T) -> T:
    """The projection onto the whole space."""
    return y


def descend(
    y: T,
    gradient: Callable[[T, int], T],
    *,
    steps: int,
    stepsize: Callable[[int], float],
    project: Callable[[T], T] = identity,
) -> T:
    """Takes the steps y <- project(y - stepsize(t) gradient(y, t)), t = 0, ..., steps - 1.

    Source: [A] Algorithm 2, [B] Algorithms 1 to 3. The start y is an array or tensor of any shape, and not changed;
    `gradient` is the (stochastic) gradient at y in step t. Returned is the last y; the start itself without steps.
    """
    for t in range(steps):
        y = project(y - stepsize(t) * gradient(y, t))
    return y
