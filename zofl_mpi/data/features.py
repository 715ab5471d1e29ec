"""Features in place of pixels: frozen random convolutions, on which a linear model gets far above one on pixels, and
principal components, with which it has few parameters.

The random features of an image: its correlations with random filters, where they are positive, averaged over the
cells of a coarse grid. Source: Coates, Lee, Ng, An analysis of single-layer networks in unsupervised feature learning
(2011). They are computed once on each node and kept in the cache.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from zofl_mpi.arrays import Array
from zofl_mpi.data import Dataset, Federation, Raw, cache
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.partition import column_moments
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import World, at_server
from zofl_mpi.errors import UserError

FILTERS, SIZE, POOL = 256, 6, 2  # filters of SIZE x SIZE pixels, averaged over POOL x POOL cells of an image
IMAGES_AT_ONCE = 16  # images that are filtered together: their responses stay in the cache, twice the speed of 64
ROWS_AT_ONCE = 4096  # rows that are looked at together
SQUARED_NORM = 100.0  # mean of |input|^2; 102 for MNIST in [0, 1], which the papers' step sizes go with


def filters(channels: int) -> NDArray[np.float32]:
    """(FILTERS, channels, SIZE, SIZE) normal entries, then each filter with mean 0 and norm 1; the same in all runs."""
    drawn = Streams(0)(Purpose.FILTERS).standard_normal((FILTERS, channels, SIZE, SIZE))
    drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
    return np.asarray(drawn / np.sqrt(np.square(drawn).sum(axis=(1, 2, 3), keepdims=True)), np.float32)


def image_shape(features: int, channels: int, shape: tuple[int, ...] = ()) -> tuple[int, int, int]:
    """(channels, height, width) of images of `shape`, or () of square ones with this many numbers (UserError: none)."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if shape:
        fault = f"an input of this data set is a table's row of {features} numbers, no image"
        raise UserError(f"{fault}: another --problem takes it, or store x as (samples, channels, height, width)")
    side = math.isqrt(features // channels)
    if channels * side * side != features:
        each = f"{features} numbers" + (f" in {channels} channels" if channels > 1 else "")
        raise UserError(f"an input of this data set has {each}, which is no square image: another --problem takes it")
    return channels, side, side


def sources(images: Sources, cache_dir: Path | None = None) -> Sources:
    """Sources of a data set's features, which are made from its copy in the cache."""
    facts = {"count": FILTERS, "size": SIZE, "pool": POOL, "seed": 0}
    key = f"features-{images.key}"
    derived = cache.identify(key, lambda: random_features(cache.open_entry(images, cache_dir)), parameters=facts)
    return derived._replace(name=f"the random features of {images.name}")


def random_features(raw: Raw) -> Raw:
    """Inputs (N, FILTERS * POOL^2) float32: the mean over each cell of max(0, filter correlated with image).

    About half a minute for CIFAR-10 on one core. Machines of different kinds may round differently. Inputs that are no
    square images, or too small, and features beyond the memory are refused by a UserError.
    """
    shape = image_shape(raw.inputs.shape[1], raw.channels, raw.shape)
    least = SIZE + POOL - 1
    if min(shape[1:]) < least:
        raise UserError(
            f"--problem features takes images of {least} x {least} pixels or more, not {shape[1]} x {shape[2]}"
        )
    form = (len(raw.inputs), FILTERS * POOL**2)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 4 * math.prod(form) > memory:  # the system would promise it, and kill the process later
        size, total = (f"{count / 2**30:.3g}" for count in (4 * math.prod(form), memory))
        raise UserError(
            f"--problem features: {form[1]} features of {form[0]} images take {size} GiB, this machine has {total}"
        )
    import torch
    from torch.nn.functional import adaptive_avg_pool2d, conv2d

    weights, inputs = torch.from_numpy(filters(raw.channels)), np.empty(form, np.float32)
    for start in range(0, len(inputs), IMAGES_AT_ONCE):
        images = np.asarray(raw.inputs[start : start + IMAGES_AT_ONCE], np.float32) / np.float32(raw.levels or 1)
        pixels = torch.from_numpy(images.reshape(-1, *shape))
        pixels = pixels.contiguous(memory_format=torch.channels_last)  # colours: a quarter to a half faster
        responses = conv2d(pixels, weights).relu_()
        inputs[start : start + IMAGES_AT_ONCE] = adaptive_avg_pool2d(responses, POOL).flatten(1).numpy()
    return Raw(inputs, raw.labels, raw.classes, raw.official_test, clients=raw.clients)


def standardised(federation: Federation) -> Federation:
    """The data with each feature of mean 0 and equal variances over the training part (server and clients), such that
    the mean of |input|^2 is SQUARED_NORM; a constant feature becomes 0. All ranks get the same bits: no BLAS.
    """
    mean, variance = column_moments(federation.server.inputs, federation.training_rows())
    varies = variance > 0
    scale = np.where(varies, math.sqrt(SQUARED_NORM / max(1, varies.sum())) / np.sqrt(np.where(varies, variance, 1)), 0)
    words = f"{len(mean):,} random features, each with mean 0 and equal variance over the training part"
    return federation.seen_as(
        lambda part: replace(part, scale=scale, shift=-mean * scale), federation.fingerprint, words
    )


# --- principal components


def parsed_components(features: str) -> tuple[int, bool]:
    """K, from "pca:K" or "server-pca:K", or 0 from "all", and whether it is the server's (UserError: it is neither)."""
    kind, _, number = features.partition(":")
    if features == "all":
        return 0, False
    if kind not in ("pca", "server-pca") or not number.isdigit() or int(number) < 1:
        raise UserError(
            f"--features {features}: choose all, pca:K or server-pca:K with a whole number K of components, at least 1"
        )
    return int(number), kind == "server-pca"


def projected(world: World, federation: Federation, K: int, key: str, of_server: bool = False) -> Federation:
    """The samples' first K principal components, centred, and a constant 1; from rank 0, which keeps them in its cache
    (UserError: an input has fewer than K numbers, or the server fewer than K samples).

    Args:
        key: of the samples in the cache.
        of_server: fitted on the server's samples alone; else on the clients', too.
    """
    p, own = federation.server.features, len(federation.server)
    if p < K:
        raise UserError(f"--features pca:{K}: an input has {p} numbers; take at most as many components")
    if of_server and own < K:
        raise UserError(f"--features server-pca:{K}: the server has {own} samples; take at most as many components")
    rows = federation.server.rows_of(np.arange(own)) if of_server else federation.training_rows()
    kept = at_server(world, lambda: _kept(federation.server, np.sort(rows), K, key))
    components, own = world.bcast(kept and (kept.inputs, kept.fingerprint))
    words = f"{K} principal components of {federation.scaling} and a constant 1"
    fingerprint = f"{federation.fingerprint}, components {own}"
    return federation.seen_as(lambda part: replace(part, inputs=components, scale=1.0, shift=0.0), fingerprint, words)


def _kept(samples: Dataset, rows: NDArray[np.int64], K: int, key: str) -> Raw:
    """`_components` from the cache: they depend on the samples, their scale and the rows that they are fitted on."""
    fitted_on = hashlib.sha256(rows.tobytes())
    for numbers in (samples.scale, samples.shift):
        fitted_on.update(np.float64(numbers).tobytes())

    def made() -> Raw:
        return Raw(_components(replace(samples, rows=None), rows, K), samples.labels, samples.classes)

    derived = cache.identify(f"pca-{K}-{key}-{fitted_on.hexdigest()[:16]}", made)
    cache.prepare(derived)
    return cache.open_entry(derived._replace(name=f"{K} principal components of {key}"))


def _components(samples: Dataset, rows: NDArray[np.int64], K: int) -> Array:
    """(N, K + 1) float32 of all N samples, fitted on `rows`. One thread: bits do not depend on how many a rank has."""

    def chunks(positions: NDArray[np.int64]) -> Iterator[Array]:
        return (
            samples.take(own, np.float64)[0]
            for own in np.split(positions, range(ROWS_AT_ONCE, len(positions), ROWS_AT_ONCE))
        )

    with threadpool_limits(1, "blas"):
        mean = sum(chunk.sum(axis=0) for chunk in chunks(rows)) / len(rows)
        covariance = sum((chunk - mean).T @ (chunk - mean) for chunk in chunks(rows)) / len(rows)
        axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :K]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(K)])  # an eigenvector has no sign of its own
        components = [(chunk - mean) @ axes for chunk in chunks(np.arange(len(samples.labels)))]
    return np.pad(np.concatenate(components), ((0, 0), (0, 1)), constant_values=1).astype(np.float32)
