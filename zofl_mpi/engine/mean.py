"""Exact weighted mean: its bits depend neither on the order of the terms nor on which process adds which.

Each w_i x_i is rounded to a whole multiple of one power of two, the quantum, so that m such multiples fit into 62 bits;
sums of whole numbers are exact and associative. Each w_i x_i is rounded twice: as a float64 product, and by at most
half a quantum, which is below m 2^-61 times the largest contribution. A `Sum` needs no such bound in advance.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine import messages
from zofl_mpi.engine.fields import check_finite, not_finite, without_warnings
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.engine.ledger import Report
from zofl_mpi.errors import UserError

BLOCK = 1 << 16  # entries that are rounded and added at once: 512 kB of int64 stay in cache
MANY = 32  # participants from which ranks add up their own terms of a `Sum`: the server would do so one by one
OCTAVES = 8  # of the largest entries of vectors that a `Sum` rounds to the same quantum

Path = tuple[str, ...]
Add = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # the sum of the processes' whole numbers, at the server


def refuse_stream(step: Callable[..., Any], what: str = "mean") -> None:
    """Refuses a step that streams: which of its items would `mean` average, or `sum` add?"""
    if inspect.isgeneratorfunction(step):
        raise TypeError(
            f"{what} needs a step that returns its reply, {step.__name__!r} streams: "
            f"keep the result in client.memory and take the {what} of a second step that returns it"
        )


def normalised(to: Sequence[int], weights: Mapping[int, float] | None) -> dict[int, float]:
    """Each participant's share, summing to 1; ValueError for a negative weight or a sum that is not positive."""
    raw = {i: 1.0 if weights is None else float(weights[i]) for i in to}
    total = math.fsum(raw.values())
    if min(raw.values(), default=0.0) < 0 or not 0 < total < math.inf:
        raise ValueError(f"mean needs weights >= 0 with a positive sum, not {raw}")
    return {i: w / total for i, w in raw.items()}


@dataclass
class Contribution:
    """One process's part of a mean."""

    # {i: {path: array}} of its clients' replies
    fields: dict[int, dict[Path, NDArray[Any]]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # {i: communicated bytes of the reply}
    bounds: dict[Path, float] = field(default_factory=dict)  # {path: the largest |w_i x_i|}
    shapes: dict[Path, tuple[tuple[int, ...], str]] | None = None  # {path: (shape, dtype)} of each reply
    # one packed reply, its arrays empty, from the process that has the first participant
    template: messages.Bytes | None = None
    # (i, rank, failure) of the clients whose step failed
    failed: list[tuple[int, int, Any]] = field(default_factory=list)
    each: dict[int, dict[str, Any]] = field(default_factory=dict)  # {i: {field: value}} of those without a mean
    report: Report | None = None  # of the rank's costs since its last one, for the server's account

    def add(self, i: int, reply: Any, share: float, first: bool = True) -> None:
        """Adds client i's reply, which counts by `share`; `first`: it is the first of all participants.

        Raises:
            TypeError: a field that has no mean, named, or shapes that are not those of another client's reply.
            UserError: a field that is not finite, named.
        """
        arrays = averaged(reply)
        shapes = {path: (x.shape, x.dtype.str) for path, x in arrays.items()}
        if self.shapes not in (None, shapes):
            raise TypeError(f"{type(reply).__name__}: replies of different shapes have no mean")
        self.shapes = shapes
        for path, x in arrays.items():
            bound = float(np.max(np.abs(x), initial=0.0))
            if not math.isfinite(bound):
                generic = f"{type(reply).__name__}.{'.'.join(path)} is not finite, so it has no mean"
                raise UserError(not_finite(reply, path) or generic)
            self.bounds[path] = max(self.bounds.get(path, 0.0), bound * share)
        # copies: a client may fill the same buffer for its next reply, or for the next client's
        self.fields[i], self.sizes[i] = {path: np.array(x) for path, x in arrays.items()}, messages.size(reply)
        if values := each_of(reply):
            self.each[i] = values
        if first:
            emptied = {path: x.reshape(-1)[:0] for path, x in arrays.items() if x.ndim}
            self.template = messages.pack(messages.replace_arrays(reply, emptied))

    def without_arrays(self) -> Contribution:
        """Copy without the arrays, which ranks exchange before any array is sent."""
        return replace(self, fields={})


@dataclass
class Sum(Contribution):
    """One process's part of an exact sum of vectors, which are added one by one and not kept.

    The quantum of a vector depends on its own largest entry, to OCTAVES, and on m, not on the other vectors: at most
    m 2^-53 of that entry. Vectors with one quantum share a vector of whole numbers; the server adds those up.
    """

    m: int = 1  # vectors of all processes, at most
    # (i, reply) -> (n,) the client's vector
    term: Callable[[int, Any], NDArray[np.float64]] | None = None
    # {quantum: (n,) sum in multiples of it}; infinity for vectors that are not finite, whose sum is NaN
    parts: dict[float, NDArray[np.int64]] = field(default_factory=dict)

    def add(self, i: int, reply: Any, share: float = 1.0, first: bool = False) -> None:
        """Adds client i's vector (UserError: its reply is not finite)."""
        self.sizes[i] = messages.size(reply)
        check_finite(reply)
        x = cast(Any, self.term)(i, reply)
        bound, unit = max(float(x.max()), -float(x.min())), math.inf
        if math.isfinite(bound):
            unit = quantum(math.ldexp(0.5, -(-math.frexp(bound)[1] // OCTAVES) * OCTAVES), self.m)
        if unit not in self.parts:
            self.parts[unit] = np.zeros(x.shape, np.int64)
        total = self.parts[unit]
        for low in range(0, len(x) if unit < math.inf else 0, BLOCK):
            piece = slice(low, low + BLOCK)
            scaled = x[piece] * (1 / unit)  # not in x, which may be the client's
            total[piece] += np.rint(scaled, out=scaled).astype(np.int64)
        self.shapes = {(): (x.shape, x.dtype.str)}

    def without_arrays(self) -> Contribution:
        return replace(self, term=None, parts={unit: part[:0] for unit, part in self.parts.items()})


def of_replies(replies: Mapping[int, Any], weights: Mapping[int, float] | None) -> Any:
    """Means replies that the server holds, field by field, with the bits of `Clients.mean`.

    Raises:
        TypeError: a field without a mean, or replies of different shapes.
        UserError: a field that is not finite; names the client.
    """
    own, shares = Contribution(), normalised(list(replies), weights)
    for i, reply in replies.items():
        try:
            own.add(i, reply, shares[i], first=own.template is None)
        except UserError as exc:
            raise UserError(f"client {i}: {exc}") from exc
    return local_mean(own, shares)


def of_tensors(values: Sequence[Tensor]) -> Tensor:
    """The mean of tensors of one shape with equal weights, where they are, with the bits of `of_replies`.

    FloatingPointError: one of them is not finite; its argument is which.
    """
    unit, factor = unit_of([largest(x) for x in values])
    return (whole(values, factor).double() * unit).to(values[0].dtype)


def largest(x: Tensor) -> float:
    """The largest magnitude of an entry."""
    return float(x.abs().amax()) if x.numel() else 0.0


def unit_of(bounds: Sequence[float]) -> tuple[float, float]:
    """The quantum of a mean of tensors with these largest magnitudes, and the factor that turns entries into multiples.

    FloatingPointError: one of them is not finite; its argument is which.
    """
    for which, bound in enumerate(bounds):
        if not math.isfinite(bound):
            raise FloatingPointError(which)
    share = 1.0 / len(bounds)
    unit = quantum(max(bounds) * share, len(bounds))
    return unit, share / unit


def whole(values: Sequence[Tensor], factor: float) -> Tensor:
    """The sum of tensors in whole multiples of the quantum, int64."""
    total = values[0].new_zeros(values[0].shape).long()
    for x in values:
        total += (x.double() * factor).round_().long()
    return total


def local_mean(own: Contribution, shares: Mapping[int, float]) -> Any:
    """The mean where one process has all replies; raises TypeError where their shapes differ."""
    return combined([own], own, shares, lambda total: total)


def combined(contributions: Sequence[Contribution], own: Contribution, shares: Mapping[int, float], add: Add) -> Any:
    """The mean, or the sum, at the server, whose contribution is `own`; raises TypeError where shapes differ."""
    means = field_means(fields_of(contributions), own, shares, add)
    if isinstance(own, Sum):
        return sum(means.values())
    first = next(c.template for c in contributions if c.template is not None)
    each = {i: values for c in contributions for i, values in c.each.items()}
    return with_each(messages.replace_arrays(messages.unpack(first), means), each)


def each_of(reply: Any) -> dict[str, Any]:
    """{field: value} of the fields that have no mean."""
    return {name: getattr(reply, name) for name in without_mean(reply)}


def without_mean(reply: Any) -> frozenset[str]:
    """Names of the fields that have no mean."""
    return messages.marked(type(reply), "each")  # type: ignore[arg-type]


def with_each(result: Any, each: Mapping[int, Mapping[str, Any]]) -> Any:
    """A mean whose fields without one have {client: value}, from `each`, {i: {field: value}}."""
    names = without_mean(result)
    return replace(result, **{name: {i: each[i][name] for i in sorted(each)} for name in names}) if names else result


class Field(NamedTuple):
    """Describes one field of a mean to all processes that add it up."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    quantum: float


def first_failure(contributions: Sequence[Contribution]) -> tuple[int, int, Any] | None:
    """(i, rank, failure) of the first client whose step failed."""
    return min((f for c in contributions for f in c.failed), default=None, key=lambda f: f[0])


def exists(contributions: Sequence[Contribution]) -> bool:
    """Whether there is a mean: nobody failed, and all replies have the same shapes."""
    known = [c.shapes for c in contributions if c.shapes is not None]
    return first_failure(contributions) is None and all(shapes == known[0] for shapes in known)


def fields_of(contributions: Sequence[Contribution]) -> list[Field]:
    """Fields to average or parts to add, from all processes' contributions; raises TypeError where shapes differ."""
    if not exists(contributions):
        raise TypeError("replies of different shapes have no mean")
    count = sum(len(c.sizes) for c in contributions)
    shapes = next(c.shapes for c in contributions if c.shapes is not None)
    units = {unit for c in contributions if isinstance(c, Sum) for unit in c.parts}
    if units:
        return [Field((str(unit),), *shapes[()], unit) for unit in sorted(units)]
    return [
        Field(path, shape, dtype, quantum(max(c.bounds.get(path, 0.0) for c in contributions), count))
        for path, (shape, dtype) in shapes.items()
    ]


@without_warnings()  # of sums that are not finite
def field_means(
    targets: Sequence[Field], own: Contribution, shares: Mapping[int, float], add: Add
) -> dict[Path, NDArray[Any]]:
    """The means of fields by path, valid at the server only; every process calls this with its own contribution.

    `add` is called for up to BLOCK entries of several fields.
    """
    flat = {target.path: np.empty(math.prod(target.shape), target.dtype) for target in targets}
    groups, room = list[list[tuple[Field, slice]]](), 0
    for target in targets:
        size = flat[target.path].size
        for low in range(0, size, BLOCK):
            piece = slice(low, min(low + BLOCK, size))
            if piece.stop - low > room:
                groups.append([])
                room = BLOCK
            groups[-1].append((target, piece))
            room -= piece.stop - low
    for group in groups:
        parts = [_whole(target, piece, own, shares) for target, piece in group]
        sums, start = add(parts[0] if len(parts) == 1 else np.concatenate(parts)), 0
        for target, piece in group:
            count = piece.stop - piece.start
            flat[target.path][piece] = sums[start : start + count] * target.quantum
            start += count
    return {target.path: flat[target.path].reshape(target.shape) for target in targets}


def _whole(target: Field, piece: slice, own: Contribution, shares: Mapping[int, float]) -> NDArray[np.int64]:
    """The sum of this process's replies in a piece of a field, in multiples of the quantum."""
    total = np.zeros(piece.stop - piece.start, np.int64)
    if isinstance(own, Sum):
        return own.parts[target.quantum][piece] if target.quantum in own.parts else total
    scaled, rounded = np.empty(total.size), np.empty(total.size, np.int64)
    for i, arrays in own.fields.items():
        x = arrays[target.path].reshape(-1)[piece]
        np.multiply(x, shares[i] / target.quantum, out=scaled, dtype=np.float64)
        np.copyto(rounded, np.rint(scaled, out=scaled), casting="unsafe")
        total += rounded
    return total


def averaged(reply: Any) -> dict[Path, NDArray[Any]]:
    """{path: array} of a reply's floating-point tensors, and its numbers as float64; TypeError for other fields.

    Without the fields that have no mean (`messages.EACH`).
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


def quantum(bound: float, m: int) -> float:
    """The power of two for which m terms of magnitude <= bound, in its multiples, stay below 2^62."""
    if bound <= 0:
        return 1.0
    return math.ldexp(1.0, max(math.frexp(bound)[1] + (m - 1).bit_length() - 62, -1000))
