"""Frozen random convolutional features: images in, vectors out, on which a linear model gets far above one on pixels.

The features of an image: its correlations with random filters, where they are positive, averaged over the cells of a
coarse grid. Nothing is learned; random filters with pooling are a baseline known since Coates, Lee, Ng, An analysis of
single-layer networks in unsupervised feature learning (2011). They are computed once on each node and kept in the
cache, so that the fast softmax kernels run on them as on any other data set.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Array, Dataset, Federation, Raw, cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, demand

BLOCK = 16  # images that are filtered together: their responses stay in the cache, twice the speed of 64
CHUNK = 4096  # rows that are looked at together
SQUARED_NORM = 100.0  # mean of |input|^2; 102 for MNIST in [0, 1], which the papers' step sizes go with


@final
@dataclass(frozen=True)
class Filters:
    """Number and shape of random filters.

    Attributes:
        filters: number of random filters; an input of the regression has filters * pool^2 numbers.
        filter_size: height and width of a filter in pixels.
        pool: the filters' positive responses are averaged over pool x pool cells of an image.
        features_seed: of the filters; runs with other seeds share them.
    """

    filters: int = 256
    filter_size: int = 6
    pool: int = 2
    features_seed: int = 0

    def __post_init__(self) -> None:
        demand(
            0 <= self.features_seed < 2**53, "features_seed", self.features_seed, "a whole number from 0 to 2^53 - 1"
        )
        for name in ("filters", "filter_size", "pool"):
            demand(getattr(self, name) >= 1, name, getattr(self, name), "a whole number, at least 1")

    def draw(self, channels: int) -> NDArray[np.float32]:
        """(filters, channels, size, size) normal entries, then each filter with mean 0 and norm 1."""
        shape = (self.filters, channels, self.filter_size, self.filter_size)
        drawn = Streams(self.features_seed)(Purpose.FILTERS).standard_normal(shape)
        if drawn[0].size > 1:  # a filter of one number would be 0
            drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
        return np.asarray(drawn / np.sqrt(np.square(drawn).sum(axis=(1, 2, 3), keepdims=True)), np.float32)


def image_shape(features: int, channels: int) -> tuple[int, int, int]:
    """(channels, height, width) of square images that are stored as `features` numbers, one channel after the other.

    Raises:
        UserError: there is no such square.
    """
    side = math.isqrt(features // channels)
    if channels * side * side != features:
        each = f"{features} numbers" + (f" in {channels} channels" if channels > 1 else "")
        raise UserError(f"an input of this data set has {each}, which is no square image: another --problem takes it")
    return channels, side, side


def sources(images: Sources, filters: Filters, cache_dir: Path | None = None) -> Sources:
    """Where the features of a data set come from, which lies in the cache already when they are made."""
    names = ("count", "size", "pool", "seed")  # as the cache has always known them
    facts = {name: float(value) for name, value in zip(names, vars(filters).values(), strict=True)}
    derived = cache.identify(f"features-{images.key}", partial(_read, images, filters, cache_dir), parameters=facts)
    return replace(derived, name=f"the random features of {images.name}")


def _read(images: Sources, filters: Filters, cache_dir: Path | None) -> Raw:
    return random_features(cache.open(images, cache_dir), filters)


def random_features(raw: Raw, filters: Filters) -> Raw:
    """Inputs (N, filters * pool^2) float32: the mean over each cell of max(0, filter correlated with image).

    About half a minute for CIFAR-10 on one core. Machines of different kinds may round differently.

    Raises:
        UserError: the inputs are no square images, or too small for such filters; the features exceed the memory.
    """
    shape = image_shape(raw.inputs.shape[1], raw.channels)
    positions = shape[1] - filters.filter_size + 1
    if positions < filters.pool:
        side = f"{shape[1]} x {shape[1]}"
        raise UserError(
            f"--filter-size {filters.filter_size}: such filters have {max(0, positions)} positions along images of "
            f"{side}, --pool {filters.pool} needs as many: take smaller ones"
        )
    cells = filters.pool**2
    size = 4 * len(raw.inputs) * filters.filters * cells
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:  # the system would promise it, and kill the process later
        raise UserError(
            f"--filters {filters.filters}: {filters.filters} x {cells} features of {len(raw.inputs)} images take "
            f"{size / 2**30:.3g} GiB, this machine has {memory / 2**30:.3g}: ask for fewer"
        )
    weights = filters.draw(raw.channels)
    inputs = np.empty((len(raw.inputs), filters.filters * cells), np.float32)
    for start in range(0, len(inputs), BLOCK):
        images = np.asarray(raw.inputs[start : start + BLOCK], np.float32) / np.float32(raw.levels or 1)
        inputs[start : start + BLOCK] = _filtered(images.reshape(-1, *shape), weights, filters.pool)
    return Raw(inputs, raw.labels, raw.classes, raw.official_test)


def _filtered(images: Array, weights: Array, pool: int) -> Array:
    """(B, filters * pool^2) of images (B, channels, height, width)."""
    from torch import channels_last, from_numpy
    from torch.nn.functional import adaptive_avg_pool2d, conv2d

    side_by_side = from_numpy(images).contiguous(memory_format=channels_last)  # colours: a quarter to a half faster
    responses = conv2d(side_by_side, from_numpy(weights)).relu_()
    return np.asarray(adaptive_avg_pool2d(responses, pool).flatten(1).numpy())


def standardised(federation: Federation, squared_norm: float = SQUARED_NORM) -> Federation:
    """The data on another scale: each feature with mean 0 and equal variances over the training part (server and
    clients), such that the mean of |input|^2 is `squared_norm`; a constant feature becomes 0.

    Only `scale` and `shift` change: the inputs stay where all ranks of the node have mapped them. All ranks get the
    same bits: no BLAS.
    """
    parts = (federation.server, *federation.clients)
    mean, variance = _moments(federation.server.inputs, np.sort(np.concatenate([_rows(part) for part in parts])))
    varies = variance > 0
    scale = np.where(varies, math.sqrt(squared_norm / max(1, varies.sum())) / np.sqrt(np.where(varies, variance, 1)), 0)

    def seen(part: Dataset) -> Dataset:
        return replace(part, scale=scale, shift=-mean * scale)

    validation = None if federation.validation is None else seen(federation.validation)
    clients = tuple(map(seen, federation.clients))
    return Federation(seen(federation.server), clients, seen(federation.test), validation=validation)


def _rows(part: Dataset) -> NDArray[np.int64]:
    return np.arange(len(part)) if part.rows is None else part.rows


def _moments(inputs: Array, rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance (p,) of some rows, the deviations summed in a second pass: no cancellation."""

    def chunks() -> Iterator[NDArray[np.float64]]:
        for start in range(0, len(rows), CHUNK):
            yield inputs[rows[start : start + CHUNK]].astype(np.float64)

    mean = sum(chunk.sum(axis=0) for chunk in chunks()) / np.float64(len(rows))
    variance = sum(np.square(chunk - mean).sum(axis=0) for chunk in chunks()) / np.float64(len(rows))
    return mean, variance
