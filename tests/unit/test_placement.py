"""Placement: each client lives on one rank, the same on all, and ranks get equal work as far as that can be."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numerics.first_order import SIZES, m, method, softmax, toy
from tests.numerics.split_methods import setting as split_setting
from tests.numerics.test_fednest import logistic
from zofl_mpi.engine.setting import Loads, Setting
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.fednest import FedNest
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.command.plan import loads_of
from zofl_mpi.run.mpi.placement import dealt, packed, place_clients

WORK = st.lists(st.integers(0, 40), max_size=40)
RANKS = st.integers(1, 7)


def totals(work: Sequence[float], placement: Sequence[int], ranks: int) -> list[float]:
    """(P,) the work on each client rank."""
    held = list(zip(work, placement, strict=True))
    return [sum(each for each, home in held if home == rank) for rank in range(1, ranks + 1)]


@given(work=WORK, ranks=RANKS, paced=st.booleans())
def test_every_client_has_one_home(work: list[int], ranks: int, paced: bool) -> None:
    """Mutations: rank 0 given clients; a rank beyond the last; a client left out."""
    placement = place_clients(len(work), ranks, Loads(work, paced))
    assert len(placement) == len(work) and set(placement) <= set(range(1, ranks + 1))


@given(each=st.sampled_from([0, 1, 7, 0.1]), count=st.integers(0, 40), ranks=RANKS, paced=st.booleans())
def test_clients_of_equal_work_live_on_1_plus_i_mod_P(each: float, count: int, ranks: int, paced: bool) -> None:
    """Mutations: equal ones in descending order; ties to the highest rank; no work at all, all on rank 1."""
    expected = [1 + i % ranks for i in range(count)]
    for loads in (None, Loads([each] * count, paced)):
        assert place_clients(count, ranks, loads) == expected
    assert dealt([each] * count, ranks) == expected
    if each:
        assert packed([each] * count, ranks) == expected


@given(work=st.lists(st.integers(1, 9), min_size=1, max_size=7), ranks=st.integers(1, 3))
def test_packed_work_is_within_Grahams_bound_of_the_best(work: list[int], ranks: int) -> None:
    """The best of all ways. Mutations: the shortest first; to the rank with the most work; work not added up."""
    best = min(
        max(totals(work, placement, ranks)) for placement in itertools.product(range(1, ranks + 1), repeat=len(work))
    )
    found = max(totals(work, packed(work, ranks), ranks))
    assert found <= (Fraction(4, 3) - Fraction(1, 3 * ranks)) * best


@given(work=WORK, ranks=RANKS)
def test_dealt_clients_with_an_item_left_are_spread_evenly_at_any_moment(work: list[int], ranks: int) -> None:
    """So a round in lockstep takes sum_q ceil(n_q / P) turns, the least possible, n_q the clients with a q-th item.
    Mutations: two of P clients to one rank; in order of i; always the lowest rank first (the sums)."""
    placement = dealt(work, ranks)
    for least in {-1, *work}:
        count = Counter(home for each, home in zip(work, placement, strict=True) if each > least)
        assert max(count[rank] for rank in range(1, ranks + 1)) - min(count[r] for r in range(1, ranks + 1)) <= 1
    sums = totals(work, placement, ranks)
    assert max(sums) - min(sums) <= max(work, default=0)


def test_paced_work_is_dealt_and_other_work_is_packed() -> None:
    """Mutation: the two exchanged; one of them for both."""
    work = [1, 8, 1, 1, 1]
    assert place_clients(5, 2, Loads(work)) == [2, 1, 2, 2, 2]
    assert place_clients(5, 2, Loads(work, paced=True)) == [2, 1, 2, 1, 2]


def test_first_order_methods_count_samples() -> None:
    """Mutations: --batch 0 forgotten; one --tau for all; option I's gradient on all data left out."""
    sizes = list(SIZES)
    assert loads_of(method(FedAvg, softmax(), batch=0, tau=(2.0,))) == Loads([2 * size for size in sizes])
    assert loads_of(method(FedAvg, softmax(), batch=8, tau=(1.0, 2.5, 0.0, 9.0))) == Loads([8, 24, 0, 72])
    assert loads_of(method(Scaffold, softmax(), batch=8, tau=(2.0,), option="II")) == Loads([16] * m)
    assert loads_of(method(Scaffold, softmax(), batch=8, tau=(2.0,), option="I")) == Loads([16 + s for s in sizes])
    steps = from_flags(Scaffnew, softmax()).steps(0)
    assert loads_of(from_flags(Scaffnew, softmax(), batch=0)) == Loads([steps * size for size in sizes])
    assert loads_of(from_flags(Scaffnew, softmax(), batch=3)) == Loads([steps * 3] * m)
    assert loads_of(from_flags(ZOHFL, toy(), batch=4, tau=(1.0, 2.5, 0.0, 9.0))) == Loads([8, 24, 0, 72])


def test_split_methods_count_local_steps_that_are_met_in_turn() -> None:
    """Mutations: samples, by which equally many steps would be unequal; not paced; a part of a part not found."""
    given = split_setting()
    sizes = [len(data) for data in given.data]
    assert len(set(sizes)) > 1
    for cls in (HERON, SFLV2):
        assert loads_of(from_flags(cls, given, batch=2, h=0)) == Loads(
            [math.ceil(size / 2) for size in sizes], paced=True
        )
        assert loads_of(from_flags(cls, given, batch=2, h=3)) == Loads([3] * len(sizes), paced=True)


def test_bilevel_methods_count_samples_of_both_levels() -> None:
    """Three clients of 30, 20 and 25 samples. Mutations: one level's --batch 0 left out; FedRZO's second solve."""
    given = logistic()
    data = tuple(given.data[k].subset(np.arange(size)) for k, size in enumerate((30, 20, 25)))
    given, sizes = replace(given, data=data), np.array([30, 20, 25])
    nest = {"H": 2, "H_lower": 3, "T": 5, "N": 4}  # 6 derivatives of f_i, 5 x 7 + 4 of h_i
    assert loads_of(from_flags(FedNest, given, batch=0, batch_lower=2, **nest)) == Loads([*(6 * sizes + 39 * 2)])
    assert loads_of(from_flags(FedNest, given, batch=2, batch_lower=0, **nest)) == Loads([*(12 + 39 * sizes)])
    rzo = {"H": 3, "T_lower": "4", "lower": "local_sgd", "eta": 0.005}
    assert loads_of(from_flags(FedRZOBL, given, batch=0, batch_lower=2, **rzo)) == Loads([*(3 * sizes + 16)])
    assert loads_of(from_flags(FedRZOBL, given, batch=2, batch_lower=0, **rzo)) == Loads([*(6 + 8 * sizes)])
    assert loads_of(from_flags(FedRZONN, given, H=3, batch=0)) == Loads([*(3 * sizes)])
    assert loads_of(from_flags(FedRZONN, given, H=3, batch=2)) == Loads([6] * 3)


@dataclass(frozen=True)
class Own:
    """A method of a user's."""

    setting: Setting[Any]
    work: tuple[float, ...]

    def loads(self) -> Loads:
        return Loads(self.work)


@pytest.mark.parametrize("work", [(1.0, 2.0), (1.0, 1.0, -1.0, 1.0), (1.0, math.nan, 1.0, 1.0), (math.inf,) * 4])
def test_loads_that_are_none_are_refused(work: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"Own\.loads\(\): work must be 4 finite numbers, one for each client"):
        loads_of(Own(softmax(), work))
    assert loads_of(Own(softmax(), (1.0, 2.0, 0.0, 1.0))) == Loads((1.0, 2.0, 0.0, 1.0))
