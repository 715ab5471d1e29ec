"""One contract for problems on samples: the gradient is that of the loss, means are means, steps are steps."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import huber_loss

from tests.numerics.samples import (
    BATCH,
    BYTES,
    DATA,
    GENERATOR,
    ROWS,
    SHAPE,
    STREAMS,
    UNIT,
    WEIGHTS,
    C,
    N,
    batches,
    close,
    p,
    points,
    terms,
)
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.problems.analytic.nonsmooth import Bowls
from zofl_mpi.problems.analytic.quadratic import Quadratic
from zofl_mpi.problems.models import CNN
from zofl_mpi.problems.network import Network, seeded
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.softmax import Softmax

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TARGETS = GENERATOR.standard_normal((2 * N, 3))
REAL = Dataset(BYTES, np.zeros(2 * N, np.int64), 1, ROWS, scale=1 / 255, targets=TARGETS)
SEVERAL = Dataset(BYTES, np.zeros(2 * N, np.int64), 1, ROWS, scale=1 / 255, targets=(TARGETS > 0).astype(np.float64))
LINE = Dataset(BYTES, np.zeros(2 * N, np.int64), 1, ROWS, scale=1 / 255, targets=TARGETS[:, 0].copy())
TOKENS = Dataset(BYTES, np.zeros(2 * N, np.int64), 1, ROWS, targets=GENERATOR.integers(0, C, (2 * N, 5)))


class Column(nn.Module):
    """One output of any module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.module(inputs)[:, 0]  # type: ignore[no-any-return]


def layers(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(p, 7), nn.Tanh(), nn.Linear(7, outputs))


def words() -> nn.Module:
    """Token numbers in, classes of five tokens out, (B, C, 5)."""
    return nn.Sequential(nn.Embedding(256, 3), nn.Flatten(), nn.Linear(3 * p, 5 * C), nn.Unflatten(1, (C, 5)))


def heavier(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 1 + inputs.flatten(1).mean(dim=1) ** 2 + (targets > 0).to(inputs)


def network(
    make: Callable[[], nn.Module], data: Dataset, loss: Any, dtype: Any = np.float64, shape: Any = (p,), **given: Any
) -> Network:
    module, some = seeded(make, STREAMS(Purpose.MODULE)), np.arange(9)
    examples = data.take(some, dtype)[0], data.answers(some, dtype)
    own: dict[str, Any] = {"weights": WEIGHTS, "terms": terms(), "dtype": dtype, "loss_function": loss}
    return Network(module, shape, data.classes, examples=examples, **own, **given)


HEAVY = torch.tensor([1.0, 2, 3, 4])
Cases = dict[str, tuple[Any, Callable[..., Any]]]
MEANS: Cases = {
    "softmax": (UNIT, lambda dtype=np.float64: Softmax(p, C, "numpy", weights=WEIGHTS, terms=terms(), dtype=dtype)),
    "cross-entropy": (UNIT, partial(network, partial(layers, C), UNIT, None)),
    "smoothed": (UNIT, partial(network, partial(layers, C), UNIT, nn.CrossEntropyLoss(label_smoothing=0.1))),
    "squares": (REAL, partial(network, partial(layers, 3), REAL, nn.MSELoss())),
    "several labels": (SEVERAL, partial(network, partial(layers, 3), SEVERAL, nn.BCEWithLogitsLoss())),
    "constants": (SEVERAL, partial(network, partial(layers, 3), SEVERAL, nn.BCEWithLogitsLoss(pos_weight=HEAVY[1:]))),
    "a function": (LINE, partial(network, lambda: Column(layers(1)), LINE, partial(huber_loss, delta=0.5))),
    "weighted": (LINE, partial(network, lambda: Column(layers(1)), LINE, nn.L1Loss(), weight=heavier)),
    "likelihood": (UNIT, partial(network, lambda: nn.Sequential(layers(C), nn.LogSoftmax(1)), UNIT, nn.NLLLoss())),
    "tokens": (TOKENS, partial(network, words, TOKENS, nn.CrossEntropyLoss())),
}
"""Problems whose loss is a mean of the samples' own."""
NETWORKS = [name for name in MEANS if name != "softmax"]
CLASS_WEIGHTS: Cases = {"class weights": (UNIT, partial(network, partial(layers, C), UNIT, nn.CrossEntropyLoss(HEAVY)))}
RELU: Cases = {
    f"relu, {kind}": (DATA[kind], lambda dtype=np.float64: ReLUNet(p, 3, lam=0.3, rectifier=3.0, dtype=dtype))
    for kind in ("bytes in [0, 1]", "standardised", "per feature")
}
SAMPLED: Cases = {**MEANS, **RELU, **CLASS_WEIGHTS}
KNOWN: dict[str, Any] = {cls.__name__: cls.random(STREAMS, 5, 3, samples=N, noise=1.0) for cls in (Bowls, Quadratic)}
BOWLS: Cases = {name: (clients[1], lambda own=own: own) for name, (own, _, clients) in KNOWN.items()}
MEANS |= RELU | BOWLS  # of the network the loss is the smooth twin's, `losses` are not
ALL: Cases = {**MEANS, **CLASS_WEIGHTS}
KINKED: Cases = {
    f"cnn, {kind}": (DATA[kind], partial(network, lambda: CNN(SHAPE, C, (2, 3)), DATA[kind], None, shape=SHAPE))
    for kind in ("standardised", "per feature")
}
"""In float32 their steps take another way."""


def part(data: Any, positions: Any) -> Any:
    """These samples alone."""
    return data.subset(positions) if isinstance(data, Dataset) else replace(data, noise=data.noise[positions])


def start(ours: Any) -> Any:
    return 0.3 * points(1, ours.n)[0]


@pytest.mark.parametrize("name", [*ALL, *KINKED])
def test_the_gradient_is_that_of_the_loss(name: str) -> None:
    """On all samples and on a mini-batch, by central differences. Mutations: a sum for a mean; weights in one of the
    two alone; another reduction over labels; the inputs' scale once; the ridge twice; channels interleaved wrongly."""
    data, make = {**ALL, **KINKED}[name]
    ours = make()
    x, direction, h = start(ours), points(1, ours.n, 2)[0], 1e-7 if name in KINKED else 1e-5
    direction /= np.linalg.norm(direction)
    for batch in (None, BATCH):
        F = [ours.loss(x + s * direction, data if batch is None else part(data, batch)) for s in (h, -h)]
        slope = (F[0] - F[1]) / (2 * h)
        assert slope == pytest.approx(direction @ ours.gradient(x, data, batch), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", MEANS)
def test_the_loss_of_all_is_the_mean_over_its_parts(name: str) -> None:
    """Mutations: the mean of blocks of unequal size; positions taken for rows."""
    data, make = MEANS[name]
    ours = make()
    x, cut = start(ours), [np.arange(13), np.arange(13, N)]
    parts = [part(data, own) for own in cut]
    shares = [len(own) / N for own in cut]
    close(sum(w * ours.loss(x, own) for w, own in zip(shares, parts, strict=True)), ours.loss(x, data))
    close(sum(w * ours.gradient(x, own) for w, own in zip(shares, parts, strict=True)), ours.gradient(x, data))
    close(ours.gradient(x, data, BATCH), ours.gradient(x, part(data, BATCH)))
    if name in RELU:
        return
    if name != "Bowls":
        assert ours.f1(x, data) == ours.loss(x, data)
        close(ours.gradient_f1(x, data, BATCH), ours.gradient(x, data, BATCH), 0)
    if name not in ("softmax", "Quadratic"):
        close(ours.losses(1, x[None], data)[0], ours.loss(x, data))
        close(ours.losses(1, x[None], data, BATCH)[0], ours.loss(x, part(data, BATCH)))


@pytest.mark.parametrize("name", ALL)
def test_local_steps_follow_from_the_gradient(name: str) -> None:
    """The caller's start stays, and comes back as a copy where there are none. Mutations: of other samples; no mu, no
    shift; mu around the current point; the sum of a mini-batch for its mean; terms of another client."""
    data, make = ALL[name]
    ours, positions, gammas = make(), batches(6, 5), 0.2 / np.arange(1, 7)
    x, shift = start(ours), 0.1 * points(1, ours.n, 3)[0]
    hierarchical, plain, proximal = name not in (*RELU, "Bowls"), x, x
    mu = 0.0 if not hierarchical else ours.mu[1] if name == "Quadratic" else ours.terms.of_client(1)[0]
    for batch, gamma in zip(positions, gammas, strict=True):
        plain = plain - gamma * (ours.gradient(plain, data, batch) + 0.7 * (plain - x) + shift)
        proximal = proximal - gamma * (ours.gradient(proximal, data, batch) + mu * (proximal - x))
    close(ours.descend(data, x, positions, gammas, mu=0.7, shift=shift), plain, 1e-9)
    same = ours.descend(data, x, positions[:0], gammas[:0])
    assert np.array_equal(x, start(ours)) and np.array_equal(same, x) and not np.shares_memory(same, x)
    if hierarchical:
        close(ours.solve_client(1, data, x[None], x[None], positions, gammas)[0], proximal, 1e-9)


@pytest.mark.parametrize("name", SAMPLED)
def test_float32_is_float64_to_rounding(name: str) -> None:
    """Mutations: targets in another dtype; a loss's constants in one dtype alone."""
    data, make = SAMPLED[name]
    wide, narrow = make(), make(dtype=np.float32)
    x, positions, gammas = start(wide), batches(6, 5), np.full(6, 0.1)
    x32 = x.astype(np.float32)
    assert narrow.loss(x32, data) == pytest.approx(wide.loss(x, data), rel=1e-5)
    close(narrow.gradient(x32, data, BATCH), wide.gradient(x, data, BATCH), 1e-4)
    end = narrow.descend(data, x32, positions, gammas)
    assert end.dtype == np.float32
    close(end, wide.descend(data, x, positions, gammas), 1e-4)


@pytest.mark.parametrize("name", ["softmax", "cross-entropy", *RELU])
def test_the_score_of_a_mix_of_classes(name: str) -> None:
    """Its own shares change nothing, one class has its own score, classes that the data lack do not count. Mutations:
    the mix ignored; weights not divided by counts, or shared out over all samples."""
    data, make = MEANS[name]
    ours = make()
    x, labels, mix = start(ours), data.labels[data.rows], np.array([0.5, 0.0, 0.2, 0.3])
    by_class = [ours.score(x, data.subset(np.flatnonzero(labels == c))) for c in range(C)]
    for key, whole in ours.score(x, data).items():
        close(ours.score(x, data, data.counts() / N)[key], whole)
        close(ours.score(x, data, mix)[key], sum(mix[c] * by_class[c][key] for c in range(C)))
        close(ours.score(x, data, np.eye(C)[2])[key], by_class[2][key])
        close(ours.score(x, data.subset(np.flatnonzero(labels == 0)), mix)[key], by_class[0][key])


@pytest.mark.parametrize("name", [*NETWORKS, *CLASS_WEIGHTS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_loss_is_torchs_in_float64_of_the_networks_outputs(name: str, dtype: Any) -> None:
    """Mutations: a reduction that is no mean over samples and labels; a loss summed in float32, whose differences are
    noise; a mean over samples taken for another kind, or the other way round."""
    data, make = ALL[name]
    ours = make(dtype=dtype)
    x = start(ours).astype(dtype)
    inputs = torch.from_numpy(data.take(np.arange(N), dtype)[0])
    with torch.no_grad():
        outputs = ours.module_of({"x": x})(inputs.long() if name == "tokens" else inputs).double()
    targets = torch.from_numpy(data.answers(np.arange(N), dtype))
    targets = targets.double() if targets.is_floating_point() else targets
    loss = ours.loss_function or nn.CrossEntropyLoss()
    loss = copy.deepcopy(loss).double() if isinstance(loss, nn.Module) else loss
    if name == "weighted":
        loss = lambda o, t: (heavier(inputs.double(), t) * (o - t).abs()).mean()  # noqa: E731
    close(ours.loss(x, data), loss(outputs, targets).item(), 1e-11 if name != "weighted" else 1e-7)
    close(ours.losses(0, x[None], data)[0], loss(outputs, targets).item(), 1e-11 if name != "weighted" else 1e-7)
    assert ours._function.objective.separate == (name in MEANS)


def test_a_metric_is_of_all_samples_at_once_and_accuracy_of_tokens_a_share(monkeypatch: Any) -> None:
    """Mutations: the mean of blocks' metrics; targets of the block before; classes weighed by a mix in a metric."""
    monkeypatch.setattr("zofl_mpi.problems.network.EVALUATION_SAMPLES", 7)
    seen: list[tuple[int, ...]] = []

    def spread(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append((*outputs.shape, *targets.shape))
        assert outputs.dtype == targets.dtype == torch.float64
        return (outputs - targets).abs().amax()

    data = REAL
    ours = network(partial(layers, 3), REAL, nn.MSELoss(), np.float32, metrics={"spread": spread})
    x = start(ours).astype(np.float32)
    found = ours.score(x, data)
    outputs = ours.module_of({"x": x})(torch.from_numpy(data.take(np.arange(N), np.float32)[0]))
    assert seen == [(N, 3, N, 3)] and found.keys() == {"loss", "spread"} and ours.hits is None
    close(found["spread"], np.abs(outputs.detach().numpy() - TARGETS[ROWS]).max(), 1e-5)
    tokens = MEANS["tokens"][1]()
    outputs = tokens.module_of({"x": start(tokens)})(torch.from_numpy(TOKENS.take(np.arange(N), np.float64)[0]).long())
    assert TOKENS.targets is not None
    share = (outputs.argmax(1).numpy() == TOKENS.targets[ROWS]).mean()
    close(tokens.score(start(tokens), TOKENS)["accuracy"], share)


def test_augmented_steps_are_keyed_by_their_samples_and_their_start() -> None:
    """Points of one call see the same inputs, evaluations the samples as they are. Mutations: random numbers by the
    order of calls; of each point its own; in a report."""

    def noisy(inputs: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        return inputs + torch.from_numpy(generator.standard_normal(inputs.shape)).to(inputs)

    make = partial(network, partial(layers, 3), REAL, nn.MSELoss())
    ours, plain, other = make(augment=noisy, streams=STREAMS), make(), make(augment=noisy, streams=Streams(12))
    x, positions, gammas = start(ours), batches(6, 5), np.full(6, 0.1)
    end = ours.descend(REAL, x, positions, gammas)
    ours.gradient(x, REAL, BATCH)
    assert np.array_equal(ours.descend(REAL, x, positions, gammas), end)
    for changed in (
        plain.descend(REAL, x, positions, gammas),
        other.descend(REAL, x, positions, gammas),
        ours.descend(REAL, x, positions[:, ::-1].copy(), gammas),
    ):
        assert np.abs(changed - end).max() > 1e-3
    ends = np.stack([x, x])
    first, second = ours.losses(0, ends, REAL, BATCH)
    assert first == second != plain.losses(0, ends, REAL, BATCH)[0]
    assert ours.loss(x, REAL) == plain.loss(x, REAL) and ours.losses(0, ends, REAL)[0] == plain.losses(0, ends, REAL)[0]
    twice = ours.solve_client(1, REAL, ends, ends, positions, gammas)
    assert np.array_equal(twice[0], twice[1])
    full = np.tile(np.arange(9), (2, 1))
    near = x + 1e-9
    shift = ours.descend(REAL, x, full, gammas[:2]) - ours.descend(REAL, near, full, gammas[:2])
    assert np.abs(shift).max() > 1e-3  # of the same samples in another round other numbers


@pytest.mark.parametrize("name", NETWORKS)
def test_many_clients_at_once_take_the_steps_of_one(name: str) -> None:
    """By --kernel torch. Mutations: targets of other samples; the plain cross-entropy of another loss."""
    data, make = MEANS[name]
    alone, many = make(kernel="serial"), make(kernel="torch", batched_sizes=(5,))
    x, positions, gammas = start(alone), batches(6, 5), np.full(6, 0.1)
    shift = 0.1 * points(1, alone.n, 3)[0]
    assert many.uses_torch and many.batches(data, 5)
    pair = [each.descend(data, x, positions, gammas, mu=0.7, shift=shift) for each in (many, alone)]
    close(*pair, 1e-9)
    ends = np.stack([x, pair[0]])
    close(many.losses(0, ends, data, positions[0]), alone.losses(0, ends, data, positions[0]), 1e-9)
