"""Features for linear models: frozen random convolutions and principal components.

Random convolutions give far better accuracy than pixels, principal components fewer parameters. Random features of an
image are its correlations with random filters, rectified and averaged over the cells of a coarse grid. Source: Coates,
Lee, Ng, An analysis of single-layer networks in unsupervised feature learning (2011). Each node computes them once and
caches them.
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
IMAGES_AT_ONCE = 16  # images per convolution: their responses fit the processor's cache, twice the speed of 64
ROWS_AT_ONCE = 4096  # rows per chunk
SQUARED_NORM = 100.0  # mean of |input|^2; close to MNIST's 102 in [0, 1], which the papers' step sizes suit


def filters(channels: int) -> NDArray[np.float32]:
    """Random filters (FILTERS, channels, SIZE, SIZE): normal, each with mean 0 and norm 1; equal in all runs."""
    drawn = Streams(0)(Purpose.FILTERS).standard_normal((FILTERS, channels, SIZE, SIZE))
    drawn -= drawn.mean(axis=(1, 2, 3), keepdims=True)
    return np.asarray(drawn / np.sqrt(np.square(drawn).sum(axis=(1, 2, 3), keepdims=True)), np.float32)


def image_shape(features: int, channels: int, shape: tuple[int, ...] = ()) -> tuple[int, int, int]:
    """Image shape (channels, height, width) from `shape`, or of square images for () (UserError: no images)."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if shape:
        fault = f"an input of this data set is a table's row of {features} numbers, no image"
        raise UserError(f"{fault}: choose another --problem, or store x as (samples, channels, height, width)")
    side = math.isqrt(features // channels)
    if channels * side * side != features:
        each = f"{features} numbers" + (f" in {channels} channels" if channels > 1 else "")
        raise UserError(f"an input of this data set has {each}, which is no square image: choose another --problem")
    return channels, side, side


def sources(images: Sources, cache_dir: Path | None = None) -> Sources:
    """Sources of a data set's random features, computed from its cache entry."""
    facts = {"count": FILTERS, "size": SIZE, "pool": POOL, "seed": 0}
    key = f"features-{images.key}"
    derived = cache.identify(key, lambda: random_features(cache.open_entry(images, cache_dir)), parameters=facts)
    return derived._replace(name=f"the random features of {images.name}")


def random_features(raw: Raw) -> Raw:
    """Random features (N, FILTERS * POOL^2) float32: mean over each cell of max(0, filter correlated with image).

    Takes half a minute for CIFAR-10 on one core. Rounding may differ between processor types.

    Raises:
        UserError: the inputs are no images or too small, or the features exceed the machine's memory.
    """
    shape = image_shape(raw.inputs.shape[1], raw.channels, raw.shape)
    least = SIZE + POOL - 1
    if min(shape[1:]) < least:
        raise UserError(
            f"--problem features needs images of {least} x {least} pixels or more, not {shape[1]} x {shape[2]}"
        )
    form = (len(raw.inputs), FILTERS * POOL**2)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 4 * math.prod(form) > memory:  # the system would grant it, and kill the process later
        size, total = (f"{count / 2**30:.3g}" for count in (4 * math.prod(form), memory))
        raise UserError(
            f"--problem features: {form[1]} features of {form[0]} images take {size} GiB, this machine has {total}: "
            "use fewer samples, or another --problem"
        )
    import torch
    from torch.nn.functional import adaptive_avg_pool2d, conv2d

    weights, inputs = torch.from_numpy(filters(raw.channels)), np.empty(form, np.float32)
    for start in range(0, len(inputs), IMAGES_AT_ONCE):
        images = np.asarray(raw.inputs[start : start + IMAGES_AT_ONCE], np.float32) / np.float32(raw.levels or 1)
        pixels = torch.from_numpy(images.reshape(-1, *shape))
        pixels = pixels.contiguous(memory_format=torch.channels_last)  # 25 to 50% faster on colours
        responses = conv2d(pixels, weights).relu_()
        inputs[start : start + IMAGES_AT_ONCE] = adaptive_avg_pool2d(responses, POOL).flatten(1).numpy()
    return Raw(inputs, raw.labels, raw.classes, raw.official_test, clients=raw.clients)


def standardised(federation: Federation) -> Federation:
    """Standardises features over the training part, server and clients: mean 0, equal variances.

    The mean of |input|^2 becomes SQUARED_NORM; a constant feature becomes 0. Bit-identical on all ranks: no BLAS.
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
    """Parses --features: (K, fitted on the server?) of "pca:K" or "server-pca:K", K = 0 of "all" (else UserError)."""
    kind, _, number = features.partition(":")
    if features == "all":
        return 0, False
    if kind not in ("pca", "server-pca") or not number.isdigit() or int(number) < 1:
        raise UserError(
            f"--features {features}: choose all, pca:K or server-pca:K with a whole number K >= 1 of components"
        )
    return int(number), kind == "server-pca"


def projected(world: World, federation: Federation, K: int, key: str, of_server: bool = False) -> Federation:
    """Replaces inputs by their first K principal components, centred, and a constant 1. Rank 0 caches and broadcasts.

    Args:
        key: cache key of the samples.
        of_server: fit on the server's samples only, not on the clients', too.

    Raises:
        UserError: an input has fewer than K numbers, or the server fewer than K samples.
    """
    p, own = federation.server.features, len(federation.server)
    if p < K:
        raise UserError(f"--features pca:{K}: an input has {p} numbers; choose at most {p} components")
    if of_server and own < K:
        raise UserError(f"--features server-pca:{K}: the server has {own} samples; choose at most {own} components")
    rows = federation.server.rows_of(np.arange(own)) if of_server else federation.training_rows()
    kept = at_server(world, lambda: _kept(federation.server, np.sort(rows), K, key))
    components, own = world.bcast(kept and (kept.inputs, kept.fingerprint))
    words = f"{K} principal components of {federation.scaling} and a constant 1"
    fingerprint = f"{federation.fingerprint}, components {own}"
    return federation.seen_as(lambda part: replace(part, inputs=components, scale=1.0, shift=0.0), fingerprint, words)


def _kept(samples: Dataset, rows: NDArray[np.int64], K: int, key: str) -> Raw:
    """`_components` through the cache, keyed by the samples, their scale and shift, and the rows of the fit."""
    fitted_on = hashlib.sha256(rows.tobytes())
    for numbers in (samples.scale, samples.shift):
        fitted_on.update(np.float64(numbers).tobytes())

    def made() -> Raw:
        return Raw(_components(replace(samples, rows=None), rows, K), samples.labels, samples.classes)

    derived = cache.identify(f"pca-{K}-{key}-{fitted_on.hexdigest()[:16]}", made)
    cache.prepare(derived)
    return cache.open_entry(derived._replace(name=f"{K} principal components of {key}"))


def _components(samples: Dataset, rows: NDArray[np.int64], K: int) -> Array:
    """Components (N, K + 1) float32 of all N samples, fitted on `rows`; one BLAS thread, for equal bits everywhere."""

    def chunks(positions: NDArray[np.int64]) -> Iterator[Array]:
        return (
            samples.take(own, np.float64)[0]
            for own in np.split(positions, range(ROWS_AT_ONCE, len(positions), ROWS_AT_ONCE))
        )

    with threadpool_limits(1, "blas"):
        mean = sum(chunk.sum(axis=0) for chunk in chunks(rows)) / len(rows)
        covariance = sum((chunk - mean).T @ (chunk - mean) for chunk in chunks(rows)) / len(rows)
        axes = np.linalg.eigh(covariance)[1][:, ::-1][:, :K]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(K)])  # an eigenvector's sign is arbitrary
        components = [(chunk - mean) @ axes for chunk in chunks(np.arange(len(samples.labels)))]
    return np.pad(np.concatenate(components), ((0, 0), (0, 1)), constant_values=1).astype(np.float32)
