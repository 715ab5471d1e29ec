"""Partition of samples among test part, server and clients, and the scaling of inputs.

Draws depend on the seed only, so every rank computes the same federation. Each part lists its rows in ascending order:
memory maps are read forwards.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf, isinf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.data import Dataset, Federation, Raw
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, demand

BY_CLASS, BY_MIX, NATURAL, SHARDS, QUANTITY = "by_class", "by_mix", "natural", "shards", "quantity"
REDRAWS = 10_000  # 40 us each; finds ten clients with one class each (alpha near 0, ten classes) about 4 times
ROWS_AT_ONCE = 512  # rows per chunk of channel sums
MOMENT_ROWS = 4096  # rows per chunk of column sums
MIXED = 1000  # class proportions per call: computing this many takes as long as the call's overhead

Rows = NDArray[np.int64]


def split(
    raw: Raw,
    streams: Streams,
    *,
    m: int,
    alpha: float,
    partition: str = "by_class",
    test_fraction: float = 0.1,
    server_fraction: float = 0.3,
    server_samples: int = 0,
    server_lacks: int = 0,
    validation: float = 0.0,
    official_split: bool = False,
    min_samples: int = 10,
    pixels: str = "unit",
) -> Federation:
    """Splits a data set into test part, validation part, server's samples, and the samples of m clients, in this order.

    Args:
        m, alpha, partition, min_samples: see `client_rows`; a regression requires alpha = inf.
        test_fraction: of all samples; 0 < fraction < 1.
        server_fraction: of the training part; 0 <= fraction < 1; 0: the server has no samples.
        server_samples: number of the server's samples, instead of a fraction; 0: use the fraction.
        server_lacks: number of classes (the last ones) that the server lacks; its share is of the other classes.
        validation: of all but the test part; 0 <= fraction < 1; 0: no validation part.
        official_split: use the data set's own test part, not a random one.
        pixels: see `as_dataset`; statistics are of the training part, server and clients together.

    Raises:
        UserError: an argument is out of range or leaves a part empty.
    """
    kind, _ = parsed(partition)
    if raw.targets is not None and (not isinf(alpha) or kind in (BY_MIX, SHARDS)):
        flag = f"--partition {partition}" if isinf(alpha) else f"--alpha {alpha:g}"
        fault = f"{flag}: a regression has no classes to spread unevenly"
        raise UserError(f"{fault}; leave the flag out (samples are distributed uniformly)")
    rows, last = np.arange(len(raw.labels)), raw.official_test
    if not official_split:
        train, test = _cut(rows, test_fraction, streams, Purpose.SPLIT, "--test-fraction")
    elif 0 < last < len(rows):
        train, test = rows[:-last], rows[-last:]
    else:
        raise UserError("--split official: this data set has no official test part; leave the flag out")
    held_out = train[:0]
    if validation != 0:
        train, held_out = _cut(train, validation, streams, Purpose.VALIDATION, "--validation", "or 0 for no part")
    demand(0 <= server_lacks < raw.classes, "server_lacks", server_lacks, f"0 or more, and below {raw.classes} classes")
    known = raw.labels[train] < raw.classes - server_lacks
    rest, server = train, train[:0]
    pool = train[known]
    if server_samples:
        allowed = f"0 or more, and below the {len(pool)} samples of its classes in the training part"
        demand(0 < server_samples < len(pool), "server_samples", server_samples, allowed)
        rest, server = _drawn(pool, server_samples, streams, Purpose.SERVER)
    elif server_fraction != 0:
        rest, server = _cut(pool, server_fraction, streams, Purpose.SERVER, "--server-fraction", "or 0 for no part")
    if len(server):
        rest = np.sort(np.concatenate([rest, train[~known]]))
    parts = client_rows(raw, rest, streams, m=m, alpha=alpha, partition=partition, min_samples=min_samples)
    data = as_dataset(raw, pixels, train)
    clients = tuple(map(data.subset, parts))
    chosen_by = data.subset(held_out) if len(held_out) else None
    return Federation(
        data.subset(server),
        clients,
        data.subset(test),
        raw.channels,
        chosen_by,
        raw.shape,
        fingerprint=raw.known,
        scaling=scaling(raw, pixels),
    )


def parsed(partition: str) -> tuple[str, float]:
    """Parses --partition: its kind, and its number or nan (UserError: unknown partition)."""
    kind, colon, text = partition.partition(":")
    try:
        number = float(text)
    except ValueError:
        number = nan
    whole = kind == SHARDS and number >= 1 and number.is_integer()
    if (kind in (BY_CLASS, BY_MIX, NATURAL) and not colon) or whole or (kind == QUANTITY and number > 0):
        return kind, number
    raise UserError(
        f"--partition {partition}: choose {BY_CLASS}, {BY_MIX}, {SHARDS}:K with a whole number K of shards, at least "
        f"1, {QUANTITY}:ALPHA with a Dirichlet concentration above 0, or {NATURAL}"
    )


def client_rows(
    raw: Raw, rest: Rows, streams: Streams, *, m: int, alpha: float, partition: str = "by_class", min_samples: int = 10
) -> list[Rows]:
    """Partitions the rows `rest` (k,), ascending, among m clients (UserError: argument out of range, or too few rows).

    - `by_class`: Dirichlet(alpha) over the clients for each class, redrawn until every client has min_samples.
    - `by_mix`: Dirichlet(alpha) over the classes for each client, all clients of equal size; fewer than m rows are
      left over.
    - both with alpha = inf: uniform, sizes differ by at most one. The other partitions take no alpha.
    - `shards:K`: rows sorted by label are cut into m K shards of equal size (up to one row); each client gets K
      (McMahan et al., AISTATS 2017).
    - `quantity:ALPHA`: labels are ignored; each client gets min_samples and a Dirichlet(ALPHA) share of the rest.
    - `natural`: the data's own clients, ordered by number or name, without those that have fewer than min_samples.
    """
    demand(alpha > 0, "alpha", alpha, "a Dirichlet concentration above 0 (inf for iid clients)")
    kind, number = parsed(partition)
    if kind not in (BY_CLASS, BY_MIX) and not isinf(alpha):
        raise UserError(f"--alpha {alpha:g}: --partition {partition} has no use for it; leave one of the two flags out")
    if kind == NATURAL:
        return _by_client(raw, rest, min_samples)
    _check_enough(len(rest), m, min_samples)
    labels = raw.labels[rest]
    if kind == SHARDS:
        return _by_shards(labels, rest, streams, m, int(number), min_samples)
    if isinf(alpha) and not number < inf:
        dealt = streams(Purpose.PARTITION).permutation(len(rest))
        return [rest[np.sort(share)] for share in np.array_split(dealt, m)]
    pool = np.bincount(labels, minlength=raw.classes)
    if kind == QUANTITY:  # treats all rows as one class
        labels = np.zeros_like(labels)
        counts = min_samples + _counts_by_class(np.array([len(rest) - m * min_samples]), streams, m, number, 0)
    elif kind == BY_CLASS:
        counts = _counts_by_class(pool, streams, m, alpha, min_samples)
    else:
        counts = _counts_by_mix(pool, streams, m, alpha)
    return [rest[share] for share in _deal(labels, counts, streams)]


def _by_client(raw: Raw, rest: Rows, min_samples: int) -> list[Rows]:
    """Rows of each of the data's own clients, ordered by number; drops clients with too few."""
    if raw.clients is None:
        raise UserError(
            "--partition natural: these data name no clients; give an .npz file with an array client, one "
            "integer or text a sample (numpy.savez(path, x=..., y=..., client=...)), or choose another --partition"
        )
    _, places, sizes = np.unique(raw.clients[rest], return_inverse=True, return_counts=True)
    parts = np.split(rest[np.argsort(places, kind="stable")], sizes.cumsum()[:-1])
    if sizes.max() < min_samples:
        fault = f"--min-samples {min_samples}: none of the data's {len(sizes)} clients has that many"
        raise UserError(f"{fault}; choose at most {sizes.max()}")
    return [part for part in parts if len(part) >= min_samples]


def _by_shards(labels: NDArray[np.int64], rest: Rows, streams: Streams, m: int, K: int, min_samples: int) -> list[Rows]:
    """K shards per client of the rows sorted by label, equal labels in random order."""
    least = K * (len(rest) // (m * K))
    if least < max(1, min_samples):
        raise UserError(
            f"--partition shards:{K}: with {m} clients and {len(rest)} samples a client may have {least}, and each "
            f"must have --min-samples {min_samples}; choose fewer shards or clients (--m)"
        )
    chance = streams(Purpose.PARTITION)
    shuffled = chance.permutation(len(rest))
    shards = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], m * K)
    dealt = chance.permutation(m * K).reshape(m, K)
    return [rest[np.sort(np.concatenate([shards[s] for s in own]))] for own in dealt]


def _check_enough(samples: int, m: int, min_samples: int) -> None:
    if samples < m * min_samples:
        fewer = f"at most {samples // min_samples} clients or " if min_samples <= samples else ""
        smaller = f"at most --min-samples {samples // m}" if m <= samples else "a smaller --min-samples"
        raise UserError(
            f"--m {m}: {samples} samples are left for the clients, too few to give each --min-samples {min_samples}; "
            f"choose {fewer}{smaller}"
        )


def _cut(
    rows: Rows, fraction: float, streams: Streams, purpose: Purpose, flag: str, further: str = ""
) -> tuple[Rows, Rows]:
    """Splits rows into the rest and a uniformly drawn `fraction`; `further` names another allowed value of the flag."""
    if not 0 < fraction < 1:
        raise UserError(f"{flag} {fraction}: it must lie between 0 and 1, both excluded{further and ', ' + further}")
    taken = round(fraction * len(rows))
    if not 0 < taken < len(rows):
        raise UserError(f"{flag} {fraction}: {taken} of {len(rows)} samples leave a part empty; change the fraction")
    return _drawn(rows, taken, streams, purpose)


def _drawn(rows: Rows, taken: int, streams: Streams, purpose: Purpose) -> tuple[Rows, Rows]:
    """Splits rows into the rest and `taken` uniformly drawn ones."""
    order = streams(purpose).permutation(len(rows))
    return rows[np.sort(order[taken:])], rows[np.sort(order[:taken])]


def _deal(labels: NDArray[np.int64], counts: Rows, streams: Streams) -> Iterator[Rows]:
    """Deals the shuffled samples of each class to the clients by `counts` (m, C)."""
    parts: list[list[Rows]] = []
    for label, column in enumerate(counts.T):
        shuffled = streams(Purpose.PARTITION, i=1 + label).permutation(np.flatnonzero(labels == label))
        parts.append(np.split(shuffled, column.cumsum())[:-1])
    return (np.sort(np.concatenate(share)) for share in zip(*parts, strict=True))


def _counts_by_class(pool: Rows, streams: Streams, m: int, alpha: float, min_samples: int) -> Rows:
    """Counts (m, C) by a Dirichlet(alpha) over the clients for each class, redrawn until every client has enough."""
    for attempt in range(REDRAWS):
        logs = _log_gammas(streams(Purpose.PARTITION, t=attempt), alpha, (len(pool), m))
        cuts = _cumulative(logs, alpha, np.ones(m, bool)) * pool[:, None]
        counts = np.diff(cuts.astype(np.int64), axis=1, prepend=0).T
        if counts.sum(axis=1).min() >= min_samples:
            return np.asarray(counts, np.int64)
    raise UserError(
        f"--alpha {alpha:g}: in {REDRAWS} draws some of {m} clients always had fewer than {min_samples} samples; "
        "choose fewer clients (--m), a larger --alpha or a smaller --min-samples"
    )


def _counts_by_mix(pool: Rows, streams: Streams, m: int, alpha: float) -> Rows:
    """Counts (m, C) by a Dirichlet(alpha) over the classes for each client; every client gets floor(samples / m).

    Clients take turns, one sample at a time, so that exhausted classes affect all clients equally. An exhausted class
    is removed from every client's proportions, which are then renormalised. That happens lazily, for a few clients at
    a time: near the end classes run out faster than all m clients take turns.
    """
    chance = streams(Purpose.PARTITION)
    logs = _log_gammas(chance, alpha, (m, len(pool)))
    left, counts = pool.tolist(), [[0] * len(pool) for _ in range(m)]
    mixes = _cumulative(logs, alpha, pool > 0).tolist()
    is_open, struck, seen = pool > 0, 0, [0] * m  # seen: classes exhausted when the mix was computed
    together = max(1, MIXED // len(pool))
    for turn in chance.random((int(pool.sum()) // m, m)).tolist():
        for client, point in enumerate(turn):
            if seen[client] < struck:
                own = slice(client, client + together)
                mixes[own] = _cumulative(logs[own], alpha, is_open).tolist()
                seen[own] = [struck] * len(seen[own])
            label = bisect_right(mixes[client], point)
            counts[client][label] += 1
            left[label] -= 1
            if not left[label]:
                is_open[label] = False
                struck += bool(is_open.any())
    return np.array(counts, np.int64)


def _log_gammas(chance: np.random.Generator, alpha: float, shape: tuple[int, int]) -> NDArray[np.float64]:
    """min(alpha, 1) * log of Gamma(alpha) variables, which normalise to Dirichlet(alpha).

    Gamma(alpha) = Gamma(alpha + 1) * U^(1/alpha) underflows for small alpha; its logarithm times min(alpha, 1) is
    always finite.
    """
    larger = np.log(chance.standard_gamma(alpha + 1, shape))
    power = np.log1p(-chance.random(shape))
    return min(alpha, 1.0) * larger + min(1.0, 1 / alpha) * power


def _cumulative(logs: NDArray[np.float64], alpha: float, is_open: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Cumulative proportions of the open entries (at least one) of each row, the last exactly 1."""
    masked = np.where(is_open, logs, -inf)
    with np.errstate(over="ignore"):  # a quotient that overflows to -inf gives 0, as it should
        total = np.exp((masked - masked.max(axis=1, keepdims=True)) / min(alpha, 1.0)).cumsum(axis=1)
    return np.asarray(total / total[:, -1:], np.float64)


def as_dataset(raw: Raw, pixels: str, train_rows: NDArray[np.int64]) -> Dataset:
    """All samples with scaled inputs: one scale per channel of images, one per column of tables.

    Args:
        pixels: unit, raw or standardize.
        train_rows: (k,) k >= 1, rows for the mean and variance of `standardize`; constant values become 0.
    """
    stored = Dataset(raw.inputs, raw.labels, raw.classes, targets=raw.targets)
    if pixels != "standardize":
        return replace(stored, scale=1 / raw.levels) if pixels == "unit" and raw.levels else stored
    mean, variance = column_moments(raw.inputs, train_rows) if raw.is_table else _moments(raw, train_rows)
    if not np.isfinite(variance).all():
        raise UserError("--pixels standardize: the variance of the inputs is too large for a float64; rescale them")
    scale = np.where(variance > 0, 1 / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)
    shift = -mean * scale
    if raw.is_table:
        return replace(stored, scale=scale, shift=shift)
    if raw.channels == 1:
        return replace(stored, scale=float(scale[0]), shift=float(shift[0]))
    width = raw.inputs.shape[1] // raw.channels
    return replace(stored, scale=np.repeat(scale, width), shift=np.repeat(shift, width))


def scaling(raw: Raw, pixels: str) -> str:
    """Describes the scaling of `as_dataset` for these inputs."""
    if raw.is_table:
        p = raw.inputs.shape[1]
        each = "each with mean 0 and variance 1 over the training part (0 where it is constant)"
        return f"a table of {p} column{'s' * (p > 1)}, {each if pixels == 'standardize' else 'as stored'}"
    each = "each channel with mean 0 and variance 1 over the training part"
    divided = f"divided by {raw.levels}" if raw.levels else "as stored"
    return f"images, {({'standardize': each, 'unit': divided}).get(pixels, 'as stored')}"


def column_moments(inputs: Array, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance (p,) of the columns over `rows`; the variance of a constant column is exactly 0.

    Two passes avoid cancellation; no BLAS, so the result is bit-identical on all machines.
    """
    n, chunks = np.float64(len(rows)), np.split(rows, range(MOMENT_ROWS, len(rows), MOMENT_ROWS))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        mean = sum(inputs[own].astype(np.float64).sum(axis=0) for own in chunks) / n
        variance = sum(np.square(inputs[own].astype(np.float64) - mean).sum(axis=0) for own in chunks) / n
    first = inputs[rows[:1]]  # rounding the mean can give a constant column nonzero deviations
    constant = np.all([(inputs[own] == first).all(axis=0) for own in chunks], axis=0)
    return np.asarray(mean), np.where(constant, 0.0, variance)


def _moments(raw: Raw, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance of each channel; the variance of a constant one is 0.

    No BLAS (`@`): all ranks' threads would compete for the cores, ten times slower. Sums of bytes are integers and
    exact, whatever the order; a chunk's sums stay below 2^53, exact in float64. Floats take a second pass over the
    deviations, against cancellation.
    """
    n = len(rows) * (raw.inputs.shape[1] // raw.channels)
    if raw.inputs.dtype == np.uint8:
        sums = _sums(raw, rows, lambda _, v: np.array([v.sum(), np.einsum("k,k->", v, v)]).astype(np.int64))
        moments = [(s / n, (n * q - s * s) / (n * n)) for s, q in (map(int, pair) for pair in sums)]
        return np.array(moments)[:, 0], np.array(moments)[:, 1]
    first = [block[0, 0] for block in np.split(raw.inputs[rows[:1]], raw.channels, axis=1)]
    others = _sums(raw, rows, lambda k, v: int((v != first[k]).any()))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses what is not finite
        mean = _sums(raw, rows, lambda _, v: float(v.sum()) / n)
        variance = _sums(raw, rows, lambda k, v: float(np.square(v - mean[k]).sum()) / n)
    return np.array(mean), np.where(np.array(others) > 0, variance, 0.0)


def _sums(raw: Raw, rows: NDArray[np.int64], term: Callable[[int, NDArray[np.float64]], Any]) -> list[Any]:
    """Sum of term(channel, values) over `rows` for each channel, ROWS_AT_ONCE rows at a time."""
    sums: list[Any] = [0] * raw.channels
    for own in np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)):
        for channel, block in enumerate(np.split(raw.inputs[own].astype(np.float64), raw.channels, axis=1)):
            sums[channel] += term(channel, block.ravel())
    return sums
