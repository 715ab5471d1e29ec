"""The mean of many clients: near the exact one, the same bits in any order and grouping, and never an overflow."""

import math
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zofl_mpi.engine import mean, messages
from zofl_mpi.errors import UserError

LARGEST = float(np.finfo(np.float64).max) / 2
"""Short of the very largest: shares like 1/1000 may add up to a little more than 1."""
FINITE = st.floats(-LARGEST, LARGEST)


@dataclass(frozen=True)
class Reply:
    a: Any
    k: Any = 0.0


def contributions_of(
    groups: Sequence[Sequence[int]], replies: Mapping[int, Any], shares: Mapping[int, float]
) -> list[mean.Contribution]:
    """Contributions of processes that each hold one group of the clients."""
    contributions = [mean.Contribution() for _ in groups]
    for own, group in zip(contributions, groups, strict=True):
        for i in group:
            own.add(i, replies[i], shares[i])
    return contributions


def averaged(
    replies: Mapping[int, Any], groups: Sequence[Sequence[int]], weights: Mapping[int, float] | None = None
) -> Any:
    """The mean over processes that each hold one group of the clients."""
    contributions = contributions_of(groups, replies, mean.normalised(list(replies), weights))
    targets, sent = mean.fields_of([own.without_arrays() for own in contributions]), list[list[np.ndarray[Any, Any]]]()
    for own in contributions:
        sent.append([])
        mean.field_means(targets, own, lambda block, seen=sent[-1]: seen.append(block.copy()) or block)
    assert all(block.dtype == np.int64 for block in sent[0])
    sums = iter([np.sum(blocks, axis=0) for blocks in zip(*sent, strict=True)])
    means = mean.field_means(targets, contributions[0], lambda block: next(sums))
    return messages.replace_arrays(next(iter(replies.values())), means)


def exact(values: Sequence[float], shares: Sequence[float]) -> Fraction:
    return sum((Fraction(x) * Fraction(w) for x, w in zip(values, shares, strict=True)), Fraction(0))


VALUES = st.lists(st.tuples(FINITE, st.floats(0.0, 1e6)), min_size=1, max_size=40).filter(
    lambda pairs: any(w > 1e-3 for _, w in pairs)
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_the_mean_is_the_exact_one_but_for_the_quantum_and_float64(pairs: list[tuple[float, float]]) -> None:
    """2^-54 of each client's largest entry, half a unit in the last place for each product, for what each quantum has,
    and for their sums, of which none is larger than all terms together. Mutations: a coarser quantum; a share of it."""
    m, weights = len(pairs), {i: w for i, (_, w) in enumerate(pairs)}
    values, shares = [x for x, _ in pairs], mean.normalised(range(m), weights)
    found = averaged({i: Reply(np.array([x])) for i, x in enumerate(values)}, [range(m)], weights)
    right = exact(values, [shares[i] for i in range(m)])
    rounded = sum((Fraction(abs(x)) / 2**54 for x in values), m * Fraction(2) ** -1001)
    of_floats = sum(abs(Fraction(x) * Fraction(shares[i])) for i, x in enumerate(values)) / 2**53
    quanta = len({mean.mean_quantum(abs(x)) for x in values})
    assert abs(Fraction(float(found.a[0])) - right) <= rounded + (2 + 2 * quanta) * of_floats + m * Fraction(5e-324)


def test_the_quantum_costs_nothing_that_float64_would_keep() -> None:
    """Values within 2^5 of each other, 16 clients that weigh 1/16 each: products and sum are exact, so is the mean."""
    values = [float(k) + 2.0**-40 for k in range(1, 17)]
    found = averaged({i: Reply(np.array([x])) for i, x in enumerate(values)}, [range(16)])
    assert found.a[0] == math.fsum(values) / 16


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_order_and_grouping_of_the_clients_change_no_bit(data: Any) -> None:
    m = data.draw(st.integers(1, 12))
    rows = data.draw(st.lists(st.lists(FINITE, min_size=3, max_size=3), min_size=m, max_size=m))
    replies = {i: Reply(np.array(rows[i]), rows[i][0]) for i in range(m)}
    weights = {i: data.draw(st.floats(0.5, 2)) for i in range(m)}
    first = averaged(replies, [range(m)], weights)
    order = data.draw(st.permutations(range(m)))
    cuts = sorted(data.draw(st.lists(st.integers(0, m), max_size=3)))
    groups = [order[low:high] for low, high in zip([0, *cuts], [*cuts, m], strict=True)]
    groups.sort(key=len, reverse=True)  # a process without clients has no template of its own
    again = averaged({i: replies[i] for i in order}, groups, weights)
    assert first.a.tobytes() == again.a.tobytes()
    assert np.float64(first.k).tobytes() == np.float64(again.k).tobytes()


@pytest.mark.parametrize(("block", "calls"), [(1 << 16, [8]), (4, [4, 4]), (3, [3, 3, 2]), (7, [7, 1]), (5, [5, 3])])
def test_small_fields_are_added_in_one_call_with_the_bits_of_each_alone(
    monkeypatch: pytest.MonkeyPatch, block: int, calls: list[int]
) -> None:
    """Mutations: a call for each field; a sum given to another field; the quantum of another field; a longer block."""
    monkeypatch.setattr(mean, "ENTRIES_AT_ONCE", block)
    rows = np.random.default_rng(4).normal(size=(3, 7)).astype(np.float32)
    replies = {i: Reply(row, 1e7 * (i + 1.1)) for i, row in enumerate(rows)}
    own = contributions_of([[0, 1, 2]], replies, mean.normalised([0, 1, 2], None))[0]
    seen = list[int]()
    found = mean.field_means(mean.fields_of([own]), own, lambda total: seen.append(total.size) or total)
    assert seen == calls
    assert found["a",].dtype == np.float32 and found["k",].shape == ()
    np.testing.assert_allclose(found["a",], rows.mean(axis=0, dtype=np.float64), atol=1e-7)
    np.testing.assert_allclose(found["k",], 2.1e7, rtol=1e-12)
    monkeypatch.setattr(mean, "ENTRIES_AT_ONCE", 1)
    for target in mean.fields_of([own]):
        alone = mean.field_means([target], own, lambda total: total)[target.path]
        assert alone.tobytes() == found[target.path].tobytes()


@settings(max_examples=500, deadline=None)
@given(st.floats(0, LARGEST), st.integers(1, 100_000), st.integers(0, 7))
def test_m_terms_of_the_largest_size_stay_below_2_to_the_62(bound: float, m: int, edge: int) -> None:
    """And no power of two below would do by more than a factor 4, of which 2 are those of the bound's and of m's own
    powers, and 2^7 for bounds of 8 octaves, unless the values are below 2^-938. Mutations: a bit less; one more where m
    is a power of two; nine octaves."""
    quantum = Fraction(mean.quantum(bound, m, edge))
    assert (quantum == 0) == (bound == 0)
    if bound:
        assert m * Fraction(bound) <= quantum * 2**62
        assert math.frexp(float(quantum))[0] == 0.5
        assert quantum * 2**62 <= 2**8 * (2 * m - 1) * Fraction(bound) or quantum == Fraction(2) ** -1000


def test_models_of_one_size_have_one_quantum_in_common() -> None:
    """A second one is a second vector and a second reduction. Mutation: the edge at 1, where norms' weights are."""
    assert len({mean.mean_quantum(bound) for bound in (0.07, 0.5, 0.99, 1.0, 1.01, 15.9)}) == 1
    assert len({mean.mean_quantum(bound) for bound in (0.06, 1.0, 16.0)}) == 3


@pytest.mark.parametrize("largest", [0.99, 1.0, 7.9, 255.0, 3e9])
def test_a_sum_is_rounded_to_the_nearest_and_never_overflows(largest: float) -> None:
    """Mutations: entries cut off in place of rounded; the quantum of an octave below the largest entry's."""
    m, x = 64, largest * np.linspace(-1, 1, 33)
    own = mean.Sum(m=m, term=lambda i, reply: x.copy())
    for i in range(m):
        own.add(i, Reply(np.zeros(1)))
    ((unit, total),) = own.parts[()].items()
    assert total.tolist() == [m * round(Fraction(value) / Fraction(unit)) for value in x.tolist()]
    assert total.max() < 2**62


def test_the_first_failure_is_that_of_the_first_client() -> None:
    """Mutations: of the first rank; of the first contribution."""
    others = [mean.Contribution(failed=[(3, 1, "a"), (5, 1, "b")]), mean.Contribution(failed=[(2, 2, "c")])]
    assert mean.first_failure([mean.Contribution(), *others]) == (2, 2, "c")
    assert mean.first_failure([]) is None


def test_replies_are_added_as_they_arrive_and_not_kept() -> None:
    """60 replies of 1 MB take two int64 vectors, of the two quanta that they have, and what one reply takes.

    Mutations: a reply kept; a vector for each client; a temporary of a reply's size in float64."""
    n, m, own = 2**18, 60, mean.Contribution()
    x = np.linspace(-1, 1, n, dtype=np.float32)
    tracemalloc.start()
    for i in range(m):
        own.add(i, Reply(x * np.float32(100 if i % 2 else 1)), 1 / m, i == 0)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(own.parts["a",]) == 2
    assert most < (2 * 8 + 4 + 1) * n + 4 * 8 * mean.ENTRIES_AT_ONCE


def test_shape_dtype_and_kind_of_each_field_are_kept() -> None:
    replies = {i: Reply(torch.full((2, 2), float(i)), np.full((1, 0, 2), 1.0, np.float32)) for i in range(3)}
    found = averaged(replies, [range(3)])
    assert isinstance(found.a, torch.Tensor) and found.a.dtype == torch.float32
    assert found.a.tolist() == [[1.0, 1.0]] * 2
    assert found.k.shape == (1, 0, 2) and found.k.dtype == np.float32


@pytest.mark.parametrize("weights", [{0: 1.0, 1: -0.5}, {0: 0.0, 1: 0.0}, {0: math.nan, 1: 1.0}, {0: math.inf, 1: 1.0}])
def test_weights_that_make_no_mean_are_refused(weights: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="mean needs weights >= 0 with a positive sum"):
        mean.normalised([0, 1], weights)
    with pytest.raises((ValueError, KeyError)):
        mean.normalised([0, 1], {0: 1.0})
    assert mean.normalised([4, 7], None) == {4: 0.5, 7: 0.5}
    assert mean.normalised([4, 7], {4: 0.0, 5: 9.0, 7: 6.0}) == {4: 0.0, 7: 1.0}
    found = averaged({0: Reply(np.array([1.0])), 1: Reply(np.array([5.0]))}, [[0, 1]], {0: 6.0, 1: 2.0})
    assert found.a[0] == 2.0


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(np.arange(3)), r"mean cannot average Reply\.a; it takes floating-point tensors and numbers"),
        (Reply(np.zeros(2), "text"), r"Reply\.k"),
        (Reply(np.zeros(2), True), r"Reply\.k"),
        (Reply(np.zeros(2), None), r"Reply\.k"),
        (Reply(np.zeros(2, complex)), r"Reply\.a"),
        (Reply(torch.zeros(2, dtype=torch.bfloat16)), r"Reply\.a"),
    ],
)
def test_a_field_without_a_mean_is_named(reply: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        mean.Contribution().add(0, reply, 1.0)
    for bad in (math.nan, math.inf, -math.inf):
        for other, name in ((Reply(np.array([0.0, bad])), "a"), (Reply(np.zeros(2), bad), "k")):
            with pytest.raises(UserError, match=rf"Reply\.{name} is not finite, so it has no mean"):
                mean.Contribution().add(0, other, 1.0)


def test_replies_of_different_shapes_have_no_mean() -> None:
    one, other = mean.Contribution(), mean.Contribution()
    one.add(0, Reply(np.zeros(3), 1.0), 0.5, True)
    with pytest.raises(TypeError, match="different shapes"):
        one.add(1, Reply(np.zeros(4), 1.0), 0.5, True)
    other.add(1, Reply(np.zeros(4), 1.0), 0.5, True)
    with pytest.raises(TypeError, match="different shapes"):
        mean.fields_of([one, other])
