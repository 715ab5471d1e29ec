"""What the methods' table claims, by running each: what a client computes, and whether what travels grows with x."""

import inspect
from collections import Counter
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.numerics import split_methods
from tests.numerics.first_order import STREAMS, clients_of, m, n
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems.analytic.bilevel import BilevelBowls
from zofl_mpi.problems.analytic.nonsmooth import Bowls
from zofl_mpi.problems.analytic.quadratic import Quadratic
from zofl_mpi.run.command.family import FAMILIES
from zofl_mpi.run.command.flags import from_flags, leaves
from zofl_mpi.run.command.plan import role_of

METHODS = {
    f"{family.rpartition('.')[2]} {name}": made
    for family in FAMILIES
    for name, made in import_module(family).METHODS.items()
}
DERIVATIVES = {"gradient", "descend", "solve_client", "gradient_h", "gradients_f"}
SECOND = {"hessian_h", "cross_h"}
FEW = {
    "tau": (2.0,),
    "H": 2,
    "batch": 2,
    "batch_lower": 2,
    "T_lower": "2",
    "T": 1,
    "N": 2,
    "p": 1.0,
    "h": 2,
    "gamma_lower": 0.1,
}
"""Flags of a short round, where a method has them."""


def wide() -> split_methods.Parts:
    """`split_methods.mlp` with more units at the cut."""
    client = nn.Sequential(nn.Flatten(), nn.Linear(split_methods.SIDE**2, 9), nn.Tanh())
    return (
        client,
        nn.Linear(9, split_methods.C),
        nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, split_methods.C)),
    )


def setting_of(role: str, large: bool) -> Setting[Any]:
    """A small problem of this role with numbers of its own, or a larger one."""
    size = 11 if large else n
    if role == "Split":
        return split_methods.setting(wide if large else split_methods.mlp)
    if role in ("Hierarchical", "Smooth"):
        bowl, own, bowls = Quadratic.random(STREAMS, size, m, samples=8, noise=1.0)
        return Setting(bowl, STREAMS, bowls, own, bowls[0], None, np.dtype(np.float64))
    random: Any = Bowls.random if role == "Lipschitz" else BilevelBowls.random
    problem, server, data = random(STREAMS, size, m, noise=1.0)
    return Setting(problem, STREAMS, data, server, data, None, np.dtype(np.float64))


def made(cls: Any, large: bool = False) -> Any:
    known = {leaf.name for leaf in leaves(cls)}
    own = {name: value for name, value in FEW.items() if name in known}
    return from_flags(cls, setting_of(role_of(cls) or "", large), **own)


def at_a_client() -> bool:
    """Whether a client's step is being computed."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("client"), Client):
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("name", METHODS)
def test_clients_compute_what_the_table_says(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """One round in which every derivative at a client is counted: of a problem's members, and of torch's graphs.

    Mutations: a word of another row; ZO-HFL or FedRZO's lower level called free of gradients; a backward pass in a step
    that says it evaluates."""
    cls, of = METHODS[name], made(METHODS[name])
    seen: Counter[str] = Counter()

    def counting(kind: str, original: Any) -> Any:
        def counted(*values: Any, **more: Any) -> Any:
            seen[kind] += at_a_client()
            return original(*values, **more)

        return counted

    for kind, members in (("gradients", DERIVATIVES), ("second derivatives", SECOND)):
        for member in members & set(dir(type(of.setting.problem))):
            monkeypatch.setattr(
                type(of.setting.problem), member, counting(kind, getattr(type(of.setting.problem), member))
            )
    monkeypatch.setattr(torch.autograd, "grad", counting("gradients", torch.autograd.grad))
    clients = clients_of(of)
    of.round(of.start(), 0, clients)
    for kind in ("gradients", "second derivatives"):
        assert (seen[kind] > 0) == (kind in cls.computes), (kind, seen)
    row, _ = clients.account()
    assert (cls.computes == "nothing") == (not row.bytes_up.any())


@pytest.mark.parametrize("name", METHODS)
def test_what_travels_grows_with_the_model_or_not_as_the_table_says(name: str) -> None:
    """Bytes that the ledger counts, for two sizes. Mutations: scalars called models; a model that travels unsaid."""
    down, up = METHODS[name].travels.removesuffix(" up").split(" down, ")
    rows = []
    for large in (False, True):
        of = made(METHODS[name], large)
        clients = clients_of(of)
        state = of.start()
        for r in range(2):  # of DeComFL's scalars the first ones travel down in the second round
            state = of.round(state, r, clients)
        row, _ = clients.account()
        rows.append((int(row.bytes_down.sum()), int(row.bytes_up.sum())))
    for words, small, grown in ((down, rows[0][0], rows[1][0]), (up, rows[0][1], rows[1][1])):
        assert (grown > small) == (words not in ("nothing", "scalars", "two values"))
        assert (small == 0) == (words == "nothing")
