"""Joins in-memory data of all clients: arrays, torch Datasets or Hugging Face datasets."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError

PAIR = "a pair (x, y) of arrays, or a data set whose samples are such pairs"
DTYPES = {"f": np.float32, "u": np.uint8, "i": np.int64, "b": np.uint8}


class Together(NamedTuple):
    """All samples, and the rows of each holder."""

    inputs: Array  # (N, p)
    labels: NDArray[np.int64]  # (N,)
    targets: Array | None  # (N, ...) float64, with all labels 0; None for classes
    classes: int
    shape: tuple[int, ...]  # of one input
    rows: dict[str, NDArray[np.int64]]  # of each client, then of "the server", "the test part", "the validation part"
    checksum: str  # of `rows`


def put_together(
    clients: Mapping[Any, Any] | Sequence[Any],
    test: Any,
    server: Any,
    validation: Any,
    columns: tuple[str, str] | None,
    seed: int,
) -> Together:
    """Joins the samples of clients, server and held-out parts; arguments as in `Federation.of_clients`."""
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    given, m = {f"client {name}": each for name, each in named}, len(clients)
    if not given:
        raise UserError("Federation.of_clients: there is no client; give {name: (x, y), ...}")
    if len(given) < m:
        raise UserError("Federation.of_clients: two clients have names that read alike; give each its own")
    given |= {"the server": server} if server is not None else {}
    for what, part in (("test", test), ("validation", validation)):
        if _is_share(part):
            if not 0 < float(part) < 1:
                raise UserError(f"{what} {part}: must be {PAIR}, or a share of the clients' samples between 0 and 1")
        elif part is not None:
            given[f"the {what} part"] = part
        elif what == "test":
            raise UserError(f"test: must be {PAIR}, or a share of the clients' samples between 0 and 1")
    arrays = {who: _pair(who, each, columns) for who, each in given.items()}
    x, y, shape, classes, is_regression = _joined(arrays)
    ends = np.cumsum([len(pair[0]) for pair in arrays.values()])
    rows = dict(zip(arrays, np.split(np.arange(len(x), dtype=np.int64), ends[:-1]), strict=True))
    generator = Streams(seed)(Purpose.SPLIT)
    for what, share in (("test", test), ("validation", validation)):
        if _is_share(share):
            drawn = list[NDArray[np.int64]]()
            for who in list(rows)[:m] + (["the server"] * (server is not None and what == "validation")):
                order = generator.permutation(rows[who])
                taken = round(float(share) * len(order))
                drawn.append(order[:taken])
                rows[who] = np.sort(order[taken:])
            rows[f"the {what} part"] = np.sort(np.concatenate(drawn))
    for who, own in rows.items():
        if not len(own):
            raise UserError(f"{who} has no sample; leave it out, or hold out a smaller share")
    checksum = zlib.crc32(repr([(who, len(own), zlib.crc32(own.tobytes())) for who, own in rows.items()]).encode())
    labels, targets = (np.zeros(len(x), np.int64), y) if is_regression else (y, None)
    return Together(x.reshape(len(x), -1), labels, targets, classes, shape, rows, f"parts crc32 {checksum:08x}")


def _is_share(part: Any) -> bool:
    return isinstance(part, int | float | np.number)


def _pair(who: str, given: Any, columns: tuple[str, str] | None) -> tuple[Array, Array]:
    """Inputs and labels or targets of one part."""
    if isinstance(given, tuple | list) and len(given) == 2 and not hasattr(given, "column_names"):
        x, y = map(_array, given)
    elif hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        samples = list(_samples(who, given, columns))
        if not samples:
            raise UserError(f"{who} has no sample; leave it out")
        x, y = (np.stack([_array(sample[k]) for sample in samples]) for k in (0, 1))
    else:
        raise UserError(f"{who} is a {type(given).__name__}; it must be {PAIR}")
    if x.ndim < 2 or len(x) != len(y) or not len(x):
        shapes = f"x has the shape {x.shape}, y {y.shape}"
        raise UserError(f"{who}: {shapes}; x must be (samples, ...) with at least one sample, y (samples, ...)")
    return x, y


def _samples(who: str, given: Any, columns: tuple[str, str] | None) -> Iterator[tuple[Any, Any]]:
    """Yields (x, y) of each sample of a torch Dataset, or of a Hugging Face data set with `columns`."""
    for k in range(len(given)):
        sample = given[k]
        if isinstance(sample, Mapping):
            if columns is None or not set(columns) <= sample.keys():
                asked = "" if columns is None else f", not {' and '.join(columns)}"
                found = ", ".join(sample)
                raise UserError(
                    f"{who} has the columns {found}{asked}: name those of x and y by columns=('...', '...')"
                )
            yield sample[columns[0]], sample[columns[1]]
        elif isinstance(sample, tuple | list) and len(sample) == 2:
            yield sample[0], sample[1]
        else:
            raise UserError(f"sample {k} of {who} is a {type(sample).__name__}; it must be a pair (x, y)")


def _array(values: Any) -> Array:
    """NumPy array of a torch tensor, a picture or a list."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _joined(arrays: Mapping[str, tuple[Array, Array]]) -> tuple[Array, Array, tuple[int, ...], int, bool]:
    """Joined inputs; labels 0..C-1 or targets; shape of one input; C; True if y are targets."""
    first, (x0, y0) = next(iter(arrays.items()))
    for who, (x, y) in arrays.items():
        if x.shape[1:] != x0.shape[1:] or y.shape[1:] != y0.shape[1:]:
            both = (
                f"{who} has inputs {x.shape[1:]} and y {y.shape[1:]} a sample, {first} {x0.shape[1:]}, {y0.shape[1:]}"
            )
            raise UserError(f"{both}: they must be equal")
    x = np.concatenate([pair[0] for pair in arrays.values()])
    y = np.concatenate([pair[1] for pair in arrays.values()])
    if x.dtype.kind not in DTYPES:
        raise UserError(f"x is {x.dtype}; it must be numbers")
    if x.dtype != np.float64 and x.dtype != np.uint8:
        x = x.astype(DTYPES[x.dtype.kind])
    for who, values in (("x", x), ("y", y)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UserError(f"{who} is NaN or infinite in some sample: remove or repair it")
    shape = (1, *x.shape[1:]) if x.ndim == 3 and x.dtype.kind in "fu" else x.shape[1:]
    if y.ndim > 1 or y.dtype.kind == "f":
        if y.dtype.kind not in "fiub":
            raise UserError(f"y is {y.dtype} of shape {y.shape}: targets must be numbers")
        return x, y.astype(np.float64), shape, 1, True
    if y.dtype.kind not in "biuUS":
        raise UserError(f"y is {y.dtype}; it must be classes (whole numbers or words) or targets (floats)")
    words, labels = np.unique(y, return_inverse=True)
    if y.dtype.kind in "iu" and y.min() >= 0 and y.max() < max(2 * len(words), 1000):  # numbered from 0 already
        return x, y.astype(np.int64), shape, int(y.max()) + 1, False
    return x, labels.reshape(-1).astype(np.int64), shape, len(words), False
