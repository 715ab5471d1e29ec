"""Exact weighted mean: its bits depend neither on the order of the terms nor on which process adds which.

Each term is rounded on arrival to whole multiples of a power of two, its quantum; sums of whole numbers are exact and
associative. The quantum follows from the term's own largest entry, to OCTAVES octaves, and not from other terms. Terms
need not be kept: those with equal quanta share a vector of int64. Multiples of different quanta are added in float64
at the end, in ascending order.

A mean rounds w_i x_i twice: as a float64 product, and by at most half a quantum, 2^-54 of the largest entry of x_i.
Since the shares sum to 1, a weighted sum needs no more headroom than one term.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.fields import check_finite, not_finite, without_warnings
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.engine.ledger import CostReport
from zofl_mpi.errors import UserError

ENTRIES_AT_ONCE = 1 << 16  # entries rounded and added at once: 512 kB of int64 stay in cache
SUM_ON_RANKS_FROM = 32  # participants from which ranks add up their own terms of a `Sum`, in place of the server
OCTAVES = 8  # octaves of largest entries that share a quantum
EDGE = 4  # a mean's quanta change above 16, 16^3, ..., 1/16, ...: away from 1, where models' largest entries lie

Path = tuple[str, ...]
Add = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # sums the processes' whole numbers, at the server


def refuse_stream(step: Callable[..., Any], what: str = "mean") -> None:
    """Refuse a step that streams: it is unclear which item `mean` or `sum` should take."""
    if inspect.isgeneratorfunction(step):
        raise TypeError(
            f"{what} needs a step that returns its reply, {step.__name__!r} streams: its mean comes from a reply with "
            "a reduced part, Reply(sent, reduced), by clients.ask(..., into=Reduction(...))"
        )


def normalised(to: Sequence[int], weights: Mapping[int, float] | None) -> dict[int, float]:
    """Each participant's share, summing to 1; ValueError for a negative weight or a non-positive sum."""
    raw = {i: 1.0 if weights is None else float(weights[i]) for i in to}
    total = math.fsum(raw.values())
    if min(raw.values(), default=0.0) < 0 or not 0 < total < math.inf:
        raise ValueError(f"mean needs weights >= 0 with a positive sum, not {raw}")
    return {i: w / total for i, w in raw.items()}


@dataclass
class Contribution:
    """One process's part of a mean; replies are added one by one, none is kept."""

    # {path: {quantum: (n,) sum in multiples of it}}; infinity: non-finite terms, their sum is NaN
    parts: dict[Path, dict[float, NDArray[np.int64]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # {i: communicated bytes of the reply}
    shapes: dict[Path, tuple[tuple[int, ...], str]] | None = None  # {path: (shape, dtype)} of each reply
    template: messages.Bytes | None = None  # one packed reply with empty arrays, of the first participant
    failed: list[tuple[int, int, Any]] = field(default_factory=list)  # (i, rank, failure) of failed steps
    each: dict[int, dict[str, Any]] = field(default_factory=dict)  # {i: {field: value}} of fields without a mean
    report: CostReport | None = None  # the rank's costs since its last contribution
    # scratch for a piece, float64 and int64: fresh pages take three times as long as the sums
    scratch: tuple[NDArray[np.float64], NDArray[np.int64]] | None = None

    def add(self, i: int, reply: Any, share: float, first: bool = True) -> None:
        """Adds client i's reply, weighted by `share`; `first`: the first participant of all.

        Raises:
            TypeError: a field without a mean (named), or shapes unlike another client's reply.
            UserError: a field that is not finite, named.
        """
        arrays = averaged(reply)
        shapes = {path: (x.shape, x.dtype.str) for path, x in arrays.items()}
        if self.shapes not in (None, shapes):
            raise TypeError(f"{type(reply).__name__}: replies of different shapes have no mean")
        self.shapes = shapes
        for path, x in arrays.items():
            bound = largest_entry(x)
            if not math.isfinite(bound):
                generic = f"{type(reply).__name__}.{'.'.join(path)} is not finite, so it has no mean"
                raise UserError(not_finite(reply, path) or generic)
            self._add(path, x.reshape(-1), share, mean_quantum(bound))
        if values := each_of(reply):
            self.each[i] = values
        if first:
            emptied = {path: x.reshape(-1)[:0] for path, x in arrays.items() if x.ndim}
            self.template = messages.pack(messages.replace_arrays(reply, emptied))

    def _add(self, path: Path, x: NDArray[Any], share: float, unit: float) -> None:
        """Adds share x, x (n,), in multiples of a quantum; 0: x is zero."""
        parts = self.parts.setdefault(path, {})
        if unit and unit not in parts:
            parts[unit] = np.zeros(x.size, np.int64)
        if not 0 < unit < math.inf:
            return
        total, room = parts[unit], min(x.size, ENTRIES_AT_ONCE)
        if self.scratch is None or len(self.scratch[0]) < room:
            self.scratch = np.empty(room), np.empty(room, np.int64)
        for low in range(0, x.size, ENTRIES_AT_ONCE):
            piece = x[low : low + ENTRIES_AT_ONCE]
            scaled, rounded = self.scratch[0][: piece.size], self.scratch[1][: piece.size]
            np.multiply(piece, share / unit, out=scaled, dtype=np.float64)
            rounded[:] = np.rint(scaled, out=scaled)
            total[low : low + ENTRIES_AT_ONCE] += rounded

    def without_arrays(self) -> Contribution:
        """A copy without arrays, for ranks to exchange before they send any array."""
        parts = {path: {unit: x[:0] for unit, x in units.items()} for path, units in self.parts.items()}
        return replace(self, parts=parts, scratch=None)


@dataclass
class Sum(Contribution):
    """One process's part of an exact sum of vectors, each rounded by at most m 2^-53 of its largest entry."""

    m: int = 1  # upper bound on the number of vectors, over all processes
    # (i, reply) -> (n,) the client's vector
    term: Callable[[int, Any], NDArray[np.float64]] | None = None

    def add(self, i: int, reply: Any, share: float = 1.0, first: bool = False) -> None:
        """Adds client i's vector (UserError: its reply is not finite)."""
        check_finite(reply)
        x = cast(Any, self.term)(i, reply)
        bound = largest_entry(x)
        self._add((), x, share, quantum(bound, self.m) if math.isfinite(bound) else math.inf)
        self.shapes = {(): (x.shape, x.dtype.str)}

    def without_arrays(self) -> Contribution:
        return replace(cast(Sum, super().without_arrays()), term=None)


def of_replies(
    replies: Iterable[tuple[int, Any]], to: Sequence[int], weights: Mapping[int, float] | None = None
) -> Any:
    """Mean of replies (i, reply) that the server gets, field by field, with the bits of `Clients.mean`; keeps none.

    Raises:
        TypeError: a field without a mean, or replies of different shapes.
        UserError: a field that is not finite; names the client.
    """
    own, shares = Contribution(), normalised(to, weights)
    for i, reply in replies:
        try:
            own.add(i, reply, shares[i], first=own.template is None)
        except UserError as exc:
            raise UserError(f"client {i}: {exc}") from exc
    return local_mean(own)


def of_tensors(values: Sequence[Tensor]) -> Tensor:
    """Equally weighted mean of tensors of one shape, on their device, with the bits of `of_replies`.

    FloatingPointError: one of them is not finite; its argument is which.
    """
    units = quanta_of([largest(x) for x in values])
    total = values[0].new_zeros(values[0].shape).double()
    for unit in distinct(units):
        own = [x for x, of in zip(values, units, strict=True) if of == unit]
        total += quantised_sum(own, 1.0 / len(values) / unit).double() * unit
    return total.to(values[0].dtype)


def largest(x: Tensor) -> float:
    """The largest magnitude of an entry."""
    return float(x.abs().amax()) if x.numel() else 0.0


def largest_entry(x: NDArray[Any]) -> float:
    """The largest magnitude of an entry; NaN where one is."""
    # array methods: functions take twice as long on small arrays
    return max(float(x.max()), -float(x.min())) if x.size else 0.0


def quanta_of(bounds: Sequence[float]) -> list[float]:
    """Quantum of each term of a mean, from its largest magnitude; 0 for a zero term.

    FloatingPointError: one of them is not finite; its argument is which.
    """
    for which, bound in enumerate(bounds):
        if not math.isfinite(bound):
            raise FloatingPointError(which)
    return [mean_quantum(bound) for bound in bounds]


def distinct(units: Iterable[float]) -> list[float]:
    """Each quantum once, ascending: the order in which different quanta are added."""
    return sorted(set(units) - {0.0})


def quantised_sum(values: Sequence[Tensor], factor: float) -> Tensor:
    """Sum of tensors in whole multiples of the quantum, int64."""
    total = values[0].new_zeros(values[0].shape).long()
    for x in values:
        total += (x.double() * factor).round_().long()
    return total


def local_mean(own: Contribution) -> Any:
    """The mean or sum if one process has all replies; TypeError for different shapes."""
    return combined([own], own, lambda total: total)


def combined(contributions: Sequence[Contribution], own: Contribution, add: Add) -> Any:
    """The mean or sum at the server, which contributes `own`; TypeError for different shapes.

    None: the first participant's reply is missing, as only a `Reduction` allows.
    """
    means = field_means(fields_of(contributions), own, add)
    if isinstance(own, Sum):
        return means[()]
    first = next((c.template for c in contributions if c.template is not None), None)
    if first is None:
        return None
    each = {i: values for c in contributions for i, values in c.each.items()}
    return with_each(messages.replace_arrays(messages.unpack(first), means), each)


def each_of(reply: Any) -> dict[str, Any]:
    """{field: value} of the fields without a mean."""
    return {name: getattr(reply, name) for name in without_mean(reply)}


def without_mean(reply: Any) -> frozenset[str]:
    """Names of the fields without a mean."""
    return messages.marked(type(reply), "each")


def with_each(result: Any, each: Mapping[int, Mapping[str, Any]]) -> Any:
    """A mean in which each field without one holds {client: value}, from `each`, {i: {field: value}}."""
    names = without_mean(result)
    return replace(result, **{name: {i: each[i][name] for i in sorted(each)} for name in names}) if names else result


class Field(NamedTuple):
    """Describes one field of a mean to all processes that add it up."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    quanta: list[float]  # quanta of its terms, ascending


def first_failure(contributions: Sequence[Contribution]) -> tuple[int, int, Any] | None:
    """(i, rank, failure) of the first client whose step failed."""
    return min((f for c in contributions for f in c.failed), default=None, key=lambda f: f[0])


def has_mean(contributions: Sequence[Contribution]) -> bool:
    """True if there are replies, all steps succeeded and all replies have the same shapes."""
    known = [c.shapes for c in contributions if c.shapes is not None]
    return first_failure(contributions) is None and bool(known) and all(shapes == known[0] for shapes in known)


def fields_of(contributions: Sequence[Contribution]) -> list[Field]:
    """Fields to average or add, from all processes' contributions; TypeError for different shapes."""
    if not has_mean(contributions):
        raise TypeError("no replies, or replies of different shapes, have no mean")
    shapes = next(c.shapes for c in contributions if c.shapes is not None)
    return [
        Field(path, shape, dtype, distinct(unit for c in contributions for unit in c.parts.get(path, ())))
        for path, (shape, dtype) in shapes.items()
    ]


@without_warnings()  # for non-finite sums
def field_means(targets: Sequence[Field], own: Contribution, add: Add) -> dict[Path, NDArray[Any]]:
    """The means of fields by path, valid at the server only; all processes call it, each with its own contribution.

    `add` is called for up to ENTRIES_AT_ONCE entries of several fields and quanta.
    """
    found = {
        target.path: np.zeros(math.prod(target.shape), target.dtype if len(target.quanta) < 2 else np.float64)
        for target in targets
    }
    groups, room = list[list[tuple[Path, float, slice]]](), 0
    for path, unit in ((target.path, unit) for target in targets for unit in target.quanta):
        size = found[path].size
        for low in range(0, size, ENTRIES_AT_ONCE):
            piece = slice(low, min(low + ENTRIES_AT_ONCE, size))
            if piece.stop - low > room:
                groups.append([])
                room = ENTRIES_AT_ONCE
            groups[-1].append((path, unit, piece))
            room -= piece.stop - low
    for group in groups:
        parts = [_part(own, *each) for each in group]
        sums, start = add(parts[0] if len(parts) == 1 else np.concatenate(parts)), 0
        for path, unit, piece in group:
            count = piece.stop - piece.start
            found[path][piece] += sums[start : start + count] * unit
            start += count
    return {t.path: found[t.path].astype(t.dtype, copy=False).reshape(t.shape) for t in targets}


def _part(own: Contribution, path: Path, unit: float, piece: slice) -> NDArray[np.int64]:
    """A piece of this process's sum of the terms with one quantum."""
    parts = own.parts.get(path, {})
    return parts[unit][piece] if unit in parts else np.zeros(piece.stop - piece.start, np.int64)


def averaged(reply: Any) -> dict[Path, NDArray[Any]]:
    """{path: array} of a reply's floating-point tensors and numbers (as float64), without the fields marked EACH.

    TypeError: another field.
    """
    arrays: dict[Path, NDArray[Any]] = {}
    without = without_mean(reply)
    for path, value in messages.leaves(reply):
        if path[0] in without:
            continue
        array = messages.as_array(value)
        if array is None and isinstance(value, int | float) and not isinstance(value, bool):
            array = np.array(value, np.float64)
        if array is None or array.dtype.kind != "f":
            name = f"{type(reply).__name__}.{'.'.join(path)}"
            raise TypeError(f"mean cannot average {name}; it takes floating-point tensors and numbers")
        arrays[tuple(path)] = array
    return arrays


def quantum(bound: float, m: int = 1, edge: int = 0) -> float:
    """Power of two in whose multiples m terms with this largest entry stay below 2^62; 0 for 0.

    Bounds within OCTAVES octaves share it; these ranges end at the exponent `edge`, modulo OCTAVES.
    """
    if bound <= 0:
        return 0.0
    exponent = edge - (edge - math.frexp(bound)[1]) // OCTAVES * OCTAVES
    return math.ldexp(1.0, max(exponent + (m - 1).bit_length() - 62, -1000))


def mean_quantum(bound: float) -> float:
    """Quantum of a mean's term with this largest entry; 0 for 0."""
    return quantum(bound, edge=EDGE)
