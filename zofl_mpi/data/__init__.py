"""Data sets, their readers, and their partition among server and clients."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.arrays import Array
from zofl_mpi.errors import UserError

LONGEST_NAME = 200
"""Maximum length of a client's name, in characters."""


@final
@dataclass(frozen=True)
class Raw:
    """A data set as stored: not scaled, not partitioned. Its arrays may be read-only memory maps."""

    inputs: Array  # (N, p) bytes, float32 or float64; uint16 or uint32 for encoded texts
    labels: NDArray[np.int64]  # (N,) 0 <= label < classes
    classes: int  # C
    official_test: int = 0  # size of the official test part, the last samples; 0: none
    levels: int | None = None  # divisor that brings bytes to [0, 1] (255; 16 for the digits); None for floats
    channels: int = 1  # equal blocks of features stored one after the other (3 colour planes, else 1)
    targets: Array | None = None  # (N, ...) regression targets, with all labels 0; None for classes
    official_validation: int = 0  # size of the official validation part, just before the test part; 0: none
    tokens: NDArray[np.int64] | None = None  # (V,) encoded texts: tokeniser ids of the stored ids 0 to V - 1
    shape: tuple[int, ...] = ()  # of one input: (channels, height, width), or (p,) of a table; (): square images
    clients: NDArray[np.int64] | None = None  # (N,) client of each sample; None: the data name no clients
    names: NDArray[np.str_] | None = None  # client names, indexed by `clients`; None: the indices are the names
    fingerprint: str = ""  # sizes and checksums, stored in the cache; "": compute it from the arrays

    @property
    def is_table(self) -> bool:
        """True if the input columns are separate quantities, not pixels."""
        return len(self.shape) == 1 or (not self.shape and self.levels is None)

    @property
    def known(self) -> str:
        """`fingerprint`, computed from the arrays if it is empty."""
        if self.fingerprint:
            return self.fingerprint
        parts = ("validation", self.official_validation), ("test", self.official_test)
        held_out = "".join(f", {name} {size}" for name, size in parts if size)
        of_clients = "" if self.clients is None else f", clients crc32 {_crc32(self.clients):08x}"
        return (
            Dataset(self.inputs, self.labels, self.classes, targets=self.targets).fingerprint() + held_out + of_clients
        )

    def client(self, number: int) -> str:
        """A client's name or number in the data, in printable characters."""
        name = str(number if self.names is None else self.names[number])
        return name if name.isprintable() else ascii(name)


def numbered(names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
    """Index (N,) of each name, and the sorted distinct names: whole numbers by value, then other names."""

    def order(name: str) -> tuple[bool, int, str]:
        is_number = re.fullmatch("-?[0-9]{1,18}", name) is not None
        return not is_number, int(name) if is_number else 0, name

    known = sorted(set(names), key=order)
    places = {name: k for k, name in enumerate(known)}
    return np.array([places[name] for name in names], np.int64), np.array(known, np.str_)


def _crc32(values: Array, before: int = 0) -> int:
    """CRC-32 of an array's bytes, continued from the checksum `before`."""
    return zlib.crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, before)


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled samples, or a subset of their rows; models read `inputs * scale + shift` in their dtype.

    Attributes:
        inputs: (N, p) bytes or floats.
        labels: (N,) integers, 0 <= label < classes.
        classes: C.
        rows: (k,) indices of the samples in this data set; None: all N.
        scale, shift: numbers, or (p,) one per feature.
        targets: (N, ...) floats of a regression or of several labels, or integer tokens; all labels are then 0.
            None for classes.
    """

    inputs: Array
    labels: Array
    classes: int
    rows: NDArray[np.int64] | None = None
    scale: float | NDArray[np.float64] = 1.0
    shift: float | NDArray[np.float64] = 0.0
    targets: Array | None = None

    def __len__(self) -> int:
        return len(self.labels) if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        return f"Dataset({len(self)} samples, {self._kind})"

    @property
    def _kind(self) -> str:
        answers = f"{self.classes} classes" if self.targets is None else f"targets {self.targets.shape[1:]}"
        return f"{self.features} features, {answers}"

    @property
    def features(self) -> int:
        """p, the length of one input."""
        return int(self.inputs.shape[1])

    def fingerprint(self) -> str:
        """Size and checksum of all N samples: labels, inputs and targets."""
        checksum = _crc32(self.inputs, _crc32(self.labels.astype(np.int64)))
        if self.targets is not None:
            checksum = _crc32(self.targets, checksum)
        return f"{self.inputs.shape[0]} x {self.inputs.shape[1]}, crc32 {checksum:08x}"

    def drawn(self, most: int, generator: np.random.Generator) -> Dataset:
        """At most `most` samples, drawn without replacement, in stored order; 0: all."""
        if not 0 < most < len(self):
            return self
        return self.subset(np.sort(generator.choice(len(self), size=most, replace=False)))

    def subset(self, positions: NDArray[np.int64]) -> Dataset:
        """The samples at `positions` (each in 0..len - 1); the inputs are shared."""
        return replace(self, rows=self.rows_of(positions))

    def rows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the N stored samples for `positions` in this data set."""
        return positions if self.rows is None else self.rows[positions]

    def take(self, positions: NDArray[np.int64], dtype: Any) -> tuple[Array, NDArray[np.int64]]:
        """Inputs (B, p) in `dtype`, scaled and shifted, and labels (B,) of the samples at `positions`."""
        inputs, labels = self._stored(positions, dtype)
        if _any_other(self.scale, 1.0):
            inputs *= np.asarray(self.scale, dtype)
        if _any_other(self.shift, 0.0):
            inputs += np.asarray(self.shift, dtype)
        return inputs, labels

    def target(self, positions: NDArray[np.int64], dtype: Any) -> Array:
        """Targets (B, ...) in `dtype` of the samples at `positions` (UserError: the data set has classes)."""
        if self.targets is None:
            raise UserError("these data have classes, not targets: --data must be a .npz file whose y are floats")
        return self.targets[self.rows_of(positions)].astype(dtype)

    def answers(self, positions: NDArray[np.int64], dtype: Any) -> Array:
        """Desired outputs (B, ...): labels and integer targets as int64, other targets in `dtype`."""
        stored = self.labels if self.targets is None else self.targets
        return stored[self.rows_of(positions)].astype(np.int64 if stored.dtype.kind in "iu" else dtype, copy=False)

    @property
    def factor(self) -> float | NDArray[np.float64]:
        """Scale left out of the inputs of `unscaled`; a linear model multiplies its weights by it instead.

        1 if there is a shift: `unscaled` then applies scale and shift, since products would cancel in float32.
        """
        return 1.0 if _any_other(self.shift, 0.0) else self.scale

    def unscaled(self, positions: NDArray[np.int64], dtype: Any) -> tuple[Array, NDArray[np.int64]]:
        """Inputs (B, p) in `dtype`, not yet multiplied by `factor`, and labels (B,) of the samples at `positions`."""
        return self.take(positions, dtype) if _any_other(self.shift, 0.0) else self._stored(positions, dtype)

    def _stored(self, positions: NDArray[np.int64], dtype: Any) -> tuple[Array, NDArray[np.int64]]:
        rows = self.rows_of(positions)
        inputs = np.take(self.inputs, rows, axis=0).astype(dtype, copy=False)  # twice as fast as indexing
        return inputs, self.labels[rows].astype(np.int64, copy=False)

    def counts(self) -> NDArray[np.int64]:
        """Number of samples of each class (C,)."""
        labels = self.labels if self.rows is None else self.labels[self.rows]
        return np.bincount(labels, minlength=self.classes).astype(np.int64)


def _any_other(value: float | NDArray[np.float64], number: float) -> bool:
    """True if a value, or any of its entries, differs from `number`."""
    # plain numbers skip NumPy: np.any takes as long as gathering a batch
    return bool(value != number) if isinstance(value, int | float) else bool(np.any(value != number))


@final
@dataclass(frozen=True, repr=False)
class Federation:
    """Partition of samples among the server, m clients, and held-out test and validation parts.

    Attributes:
        server: the server's own training samples.
        clients: D_0, ..., D_{m-1}.
        test: held-out test samples.
        channels: equal blocks of features stored one after the other (3 colour planes, else 1).
        validation: held-out samples for choosing step sizes; None for none.
        shape: of one input, as `Raw.shape`.
        fingerprint: of all samples, as `Raw.known`; "": compute it from the server's data set.
        scaling: description of the input scaling; "" for none.
    """

    server: Dataset
    clients: tuple[Dataset, ...]
    test: Dataset
    channels: int = 1
    validation: Dataset | None = None
    shape: tuple[int, ...] = ()
    fingerprint: str = ""
    scaling: str = ""

    def __repr__(self) -> str:
        parts = {"server": self.server, "test": self.test, "validation": self.validation}
        sizes = ", ".join(f"{name} {len(part)}" for name, part in parts.items() if part is not None)
        return f"Federation(m = {len(self.clients)}, samples {sum(map(len, self.clients))}, {sizes}, {self.test._kind})"

    @staticmethod
    def of_clients(
        clients: Mapping[Any, Any] | Sequence[Any],
        *,
        test: Any,
        server: Any = None,
        validation: Any = None,
        columns: tuple[str, str] | None = None,
        seed: int = 0,
    ) -> Federation:
        """Data in memory, by client: arrays, torch Datasets, or Hugging Face data sets.

        Args:
            clients: {name: samples}, or a sequence of samples. Samples are a pair (x, y) of arrays, or a data set of
                pairs or dictionaries. x: (N, ...) numbers. y: (N,) classes (whole numbers or words), or targets, (N,)
                floats or (N, K).
            test: samples held out from training, or the share to hold out of each client's samples.
            server: the server's own samples; None for none.
            validation: as `test`, for choosing step sizes; a share is held out of the server's samples, too.
            columns: keys of x and y in samples that are dictionaries.
            seed: of the held-out shares.

        Raises:
            UserError: parts differ in shape, a part has no sample, or a number is not finite.
        """
        from zofl_mpi.data.memory import put_together

        found = put_together(clients, test, server, validation, columns, seed)
        whole = Dataset(found.inputs, found.labels, found.classes, targets=found.targets)
        parts = {who: whole.subset(rows) for who, rows in found.rows.items()}
        return Federation(
            parts.get("the server", whole.subset(np.zeros(0, np.int64))),
            tuple(parts.values())[: len(clients)],
            parts["the test part"],
            channels=found.shape[0] if len(found.shape) == 3 else 1,
            validation=parts.get("the validation part"),
            shape=found.shape,
            fingerprint=f"{whole.fingerprint()}, {found.checksum}",
        )

    @property
    def weights(self) -> NDArray[np.float64]:
        """Weights (m,) rho_i = N_i / N_tr; N_tr includes the server's samples ([A] section IV; sum about 0.7)."""
        sizes = np.array([len(d) for d in self.clients], np.float64)
        total: float = sizes.sum() + len(self.server)
        return sizes / total

    def training_rows(self) -> NDArray[np.int64]:
        """Rows of the server's and all clients' samples, ascending."""
        parts = (self.server, *self.clients)
        return np.sort(np.concatenate([part.rows_of(np.arange(len(part))) for part in parts]))

    def seen_as(self, change: Callable[[Dataset], Dataset], fingerprint: str, scaling: str) -> Federation:
        """Applies `change` to every part; the inputs then have one channel. Other arguments: see `Federation`."""
        validation = None if self.validation is None else change(self.validation)
        parts = change(self.server), tuple(map(change, self.clients)), change(self.test)
        return Federation(*parts, validation=validation, fingerprint=fingerprint, scaling=scaling)

    def in_words(self) -> str:
        """Sizes of the parts and the input scaling, as one line of text."""
        held = sorted(map(len, self.clients))
        m, each = len(held), f"{held[0]:,}" if held[0] == held[-1] else f"{held[0]:,} to {held[-1]:,}"
        parts = [f"server {len(self.server):,}", f"{m:,} client{'s' * (m > 1)} {sum(held):,} ({each} each)"]
        if self.validation is not None:
            parts.append(f"validation {len(self.validation):,}")
        return "; ".join(filter(None, (f"{', '.join(parts)}, test {len(self.test):,}", self.scaling)))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Label counts of the clients (m, C)."""
        return np.stack([d.counts() for d in self.clients])
