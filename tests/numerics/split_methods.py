"""What the tests of the split methods share: tiny networks, settings, runs, and the references in plain torch.

In float64 unless bits are compared, with clients of unequal sizes, so that weights and numbers of steps are told apart.
The references are whole networks, torch's optimisers, loops by hand.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.clients import groups_for
from zofl_mpi.data import Dataset
from zofl_mpi.engine.between import composed
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.context import RunContext
from zofl_mpi.engine.fields import check_ranges
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.heron_sfl import METHODS
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.estimates import Estimation
from zofl_mpi.rounds.split.estimating import EstimatingMethod
from zofl_mpi.rounds.split.messages import Model
from zofl_mpi.rounds.split.method import LockstepMethod
from zofl_mpi.rounds.split.rules import Backprop
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.rounds.split.unsplit import ModelBroadcast, UnsplitMethod
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.rounds import finite_round

STREAMS = Streams(7)
SIDE, C = 8, 3
SIZES = (6, 10, 15)
"""With batches of 4: 2, 3 and 4 local steps, the last of 2, 2 and 3 samples."""
STEPS_OF = (2, 3, 4)
GENERATOR = STREAMS(Purpose.SYNTHETIC)
PIXELS = GENERATOR.random((60, SIDE * SIDE))
LABELS = GENERATOR.integers(0, C, 60)
EDGES = np.cumsum([0, *SIZES, 29])
Parts = tuple[nn.Module, nn.Module, nn.Module]
Make = Callable[[], Parts]
SGD = Optimiser("sgd", momentum=0.5, weight_decay=0.01)
RULES = pytest.mark.parametrize("rule", [SGD, Optimiser()], ids=["sgd", "adam"])
UNSPLIT = [cls for cls in METHODS.values() if issubclass(cls, UnsplitMethod)]
SPLIT = [cls for cls in METHODS.values() if cls not in UNSPLIT]
ESTIMATING = [cls for cls in SPLIT if issubclass(cls, EstimatingMethod)]
LOCKSTEP = [cls for cls in SPLIT if issubclass(cls, LockstepMethod)]
LOCAL = [cls for cls in SPLIT if cls not in LOCKSTEP]
"""Of all methods: those whose clients have the whole network, or a part of it; of these those whose clients estimate,
wait for the server in each step, or have a loss of their own."""


def resnet(cut: int = 1, width: int = 2) -> Parts:
    return ResNet(width, (1, 1), cut, "pooled").parts((1, SIDE, SIDE), C)


def deep() -> Parts:
    """Whose last BatchNorm has one number of a sample in each channel."""
    return ResNet(2, (1, 1, 1, 1)).parts((1, SIDE, SIDE), C)


def mlp(twins: bool = False) -> Parts:
    """Smooth, without BatchNorm: 261 + 15 parameters at a client. Twins: the head is a copy of the server's part."""
    client = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4), nn.Tanh())
    server = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, C))
    return client, copy.deepcopy(server) if twins else nn.Linear(4, C), server


def small(classes: int = C) -> Parts:
    """6 + 9 parameters at a client, smooth."""
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(2, 2), nn.Tanh())
    return client, nn.Linear(2, classes), nn.Linear(2, classes)


def twins() -> Parts:
    """A ResNet whose head is a copy of the server's part, BatchNorm included."""
    client, _, server = resnet()
    return client, copy.deepcopy(server), server


class Sevens(nn.Module):
    """(B, 7, 5) numbers as 7 tokens, for layers that have more than a row a sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :35].reshape(-1, 7, 5)


def convolutions() -> Parts:
    """Strides, groups, dilations, with biases and without."""
    client = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(6, 2, 1),
    )
    server = nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, C))
    return client, nn.Sequential(nn.Flatten(), nn.Linear(2 * 16, C, bias=False)), server


def tokens() -> Parts:
    client = nn.Sequential(Sevens(), nn.Linear(5, 4), nn.LayerNorm((7, 4)), nn.Tanh(), nn.LayerNorm(4, bias=False))
    return client, nn.Sequential(nn.Flatten(), nn.Linear(28, C)), nn.Sequential(nn.Flatten(), nn.Linear(28, C))


def groups() -> Parts:
    return ResNet(2, (1, 1), 1, "pooled", "group").parts((1, SIDE, SIDE), C)


def seeded(make: Make, seed: int = 3) -> Parts:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def setting(
    make: Make = resnet,
    clients: Sequence[int] = (0, 1, 2),
    dtype: str = "float64",
    bf16: bool = False,
    device: str = "cpu",
) -> Setting:
    """The clients `clients` of SIZES, and 29 test samples."""
    data = Dataset(PIXELS, LABELS, C)
    *parts, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    problem = SplitNetwork(*seeded(make), (1, SIDE, SIDE), C, dtype=dtype, device=device, bf16=bf16)
    return Setting(problem, STREAMS, tuple(parts[i] for i in clients), None, test, None, np.dtype(dtype))


def named() -> Setting:
    """With a class of its own for each sample: labels tell which samples an upload has."""
    own = setting(small)
    problem = SplitNetwork(*seeded(lambda: small(60)), (1, SIDE, SIDE), 60, dtype="float64")
    data = tuple(replace(d, labels=np.arange(60), classes=60) for d in own.data)
    return replace(own, problem=problem, data=data)


def training(own: Setting, rule: Optimiser = SGD, **flags: Any) -> Training:
    values = {"batch": 4, "lr_client": 0.05, "lr_server": 0.05, "optimiser": rule, **flags}
    check_ranges(Training, values)
    return Training(own, **values)


def method(cls: Any, plan: Training, **flags: Any) -> Any:
    """The method with this round; of FSL-SAGE's 100 epochs of an alignment a few."""
    if cls is FSLSAGE:
        flags = {"align_epochs": 3, **flags}
    names = {field.name for field in fields(cls)}
    if "estimation" in names:
        known = {field.name for field in fields(Estimation)}
        values = {name: flags.pop(name) for name in known & flags.keys()}
        check_ranges(Estimation, values)
        flags["estimation"] = Estimation(**values)
    between, own = list[Any](), replace(plan.setting, context=RunContext())
    for group in groups_for(cls).values():
        values = {f.name: flags.pop(f.name) for f in fields(group) if f.name in flags}
        between.append(group(own, **values))
    own = replace(own, between=tuple(between))
    check_ranges(cls, flags)
    made = cls(own, training=replace(plan, setting=own), **flags)
    for each in between:
        each.check(made)
    return made


def broadcast(of: Any, x: Tensor, moments: dict[str, Any], buffers: Tensor, r: int = 0) -> ModelBroadcast:
    """The message that begins a round."""
    return ModelBroadcast(x, moments, buffers, r, of.rule.span, of.problem.arithmetic)


def run(of: Any, rounds: int, start: int = 0, clients: LocalClients | None = None, state: Any = None) -> Any:
    whole = composed(clients or LocalClients(list(of.setting.data), method=of), of)
    state = state or of.start()
    for r in range(start, start + rounds):
        state = finite_round(of, state, r, whole)
    return state


def vectors(state: Any) -> dict[str, Tensor]:
    return {name: getattr(state, name) for name in ("theta", "buffers", "theta_s", "buffers_s")}


def same(a: Any, b: Any, names: Sequence[str] = ("theta", "buffers", "theta_s", "buffers_s")) -> bool:
    return all(torch.equal(vectors(a)[name], vectors(b)[name]) for name in names)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance)


def apart(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) > 1e-4


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def statistics(module: nn.Module) -> Tensor:
    return torch.cat([torch.zeros(0), *(b.reshape(-1) for b in module.buffers() if b.is_floating_point())])


def put(module: nn.Module, theta: Tensor, buffers: Tensor) -> None:
    """The inverse of `flat` and `statistics`."""
    with torch.no_grad():
        values: Any = [*module.parameters()], [b for b in module.buffers() if b.is_floating_point()]
        for tensors, vector in zip(values, (theta, buffers), strict=True):
            for tensor, piece in zip(tensors, vector.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(piece.view(tensor.shape))


def torchs(parameters: Iterable[nn.Parameter], rule: Optimiser, lr: float) -> torch.optim.Optimizer:
    """torch's own optimiser, in loops over single tensors."""
    cls: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[rule.optimiser]
    more = {"momentum": rule.momentum} if rule.optimiser == "sgd" else {}
    return cls(parameters, lr, weight_decay=rule.weight_decay, foreach=False, **more)  # type: ignore[no-any-return]


def whole_of(make: Make) -> nn.Module:
    client, _, server = seeded(make)
    return nn.Sequential(client, server).double()


def batches(plan: Training, i: int, r: int) -> Iterator[tuple[Tensor, Tensor]]:
    for b in plan.batches(i, r):
        rows = plan.setting.data[i].rows[b]
        yield torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE), torch.from_numpy(LABELS[rows])


def fedavg(plan: Training, make: Make, rounds: int, clients: Sequence[int]) -> nn.Module:
    """FedAvg on the whole network, by hand; own optimiser states by `plan.state`. One network is plain training."""
    nets = {i: whole_of(make) for i in clients}
    rules = {i: torchs(net.parameters(), plan.optimiser, 0.05) for i, net in nets.items()}
    average: Any = flat(nets[clients[0]]), statistics(nets[clients[0]])
    sizes = {i: len(plan.setting.data[i]) for i in clients}
    moments: list[dict[str, Tensor]] = []  # of each parameter, the mean
    for r in range(rounds):
        to = [clients[i] for i in plan.participants(r)]
        share = {i: sizes[i] / sum(sizes[j] for j in to) for i in to}
        for i in to:
            net = nets[i]
            put(net, *average)
            net.train(not plan.running)
            if plan.state != "keep":
                rules[i] = torchs(net.parameters(), plan.optimiser, 0.05)
            for p, mean in zip(net.parameters(), moments, strict=False):
                rules[i].state[p] = {name: value.clone() for name, value in mean.items()}
            for x, labels in batches(plan, i, r):
                rules[i].zero_grad()
                cross_entropy(net(x), labels).backward()
                rules[i].step()
        average = tuple(torch.stack([share[i] * values(nets[i]) for i in to]).sum(0) for values in (flat, statistics))
        if plan.state == "average":
            states = {i: [rules[i].state[p] for p in nets[i].parameters()] for i in to}
            moments = [
                {name: sum(share[i] * states[i][k][name].double() for i in to) for name in state}
                for k, state in enumerate(states[to[0]])
            ]
    put(nets[clients[0]], *average)
    return nets[clients[0]]


def is_whole(state: Any, own: Setting, net: nn.Module, tolerance: float) -> None:
    n = own.problem.n_client
    close(torch.cat([state.theta[:n], state.theta_s]), flat(net), tolerance)
    b = len(statistics(net)) - len(state.buffers_s)
    close(torch.cat([state.buffers[:b], state.buffers_s]), statistics(net), tolerance)


def interleaved(r: int) -> list[tuple[int, int]]:
    """(i, q) by q, then by the permutation of round r."""
    turn = STREAMS(Purpose.ORDER, r=r).permutation(3).tolist()
    return [(i, q) for q in range(max(STEPS_OF)) for i in turn if q < STEPS_OF[i]]


def seeded_flat(make: Make) -> Tensor:
    """The server's part as it was made."""
    return flat(seeded(make)[2])


def local_of(of: Any, i: int = 0, r: int = 0) -> LocalSteps:
    start = of.start()
    return of.steps(Client(i, of.setting.data[i]), Model(start.theta, start.buffers, r))


def forward(local: LocalSteps, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The smashed samples and () the loss at the model itself."""
    point = local.forward(x, labels)
    assert point.smashed is not None and point.loss is not None
    return point.smashed, point.loss


def gradient(local: LocalSteps, x: Tensor, labels: Tensor) -> Tensor:
    """(n_l,) the gradient of the local loss, by backpropagation."""
    found = Backprop(slice(0, local.problem.client_side.n)).forward(local, x, labels).gradient
    assert found is not None
    return found


def estimate_of(rule: Any, local: LocalSteps, q: int, x: Tensor, labels: Tensor) -> Tensor:
    """(d,) a rule's direction of step q, its first part's."""
    found = rule(local, rule.forward(local, x, labels), labels, local.key(q)).parts[0]
    assert found is not None
    return found


VOCABULARY, LONG = 5, 6
"""Tokens that there are, and those of a sample."""


class SharedMatrix(nn.Module):
    """An embedding whose matrix is a linear layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(VOCABULARY, 3), nn.Linear(3, 3)
        self.output = nn.Linear(3, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.output(torch.tanh(self.inner(self.embedding(x)))))


def embedded(client: Callable[[], nn.Module], width: int) -> Make:
    def head() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(LONG * width, C))

    return lambda: (client(), head(), head())


EMBEDDINGS: dict[str, Make] = {
    "bare": embedded(lambda: nn.Embedding(VOCABULARY, 3), 3),
    "first": embedded(lambda: nn.Sequential(nn.Embedding(VOCABULARY, 3, sparse=True), nn.Linear(3, 4), nn.Tanh()), 4),
    "tied": embedded(SharedMatrix, VOCABULARY),
}
"""Networks of whole numbers."""
TOKENS = STREAMS(Purpose.SYNTHETIC, t=5).integers(0, VOCABULARY, (60, LONG)).astype(np.float64)


def worded(make: Make) -> Setting:
    """As `setting`, of a table of tokens."""
    data = Dataset(TOKENS, LABELS, C)
    *parts, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    problem = SplitNetwork(*seeded(make), (LONG,), C, examples=(TOKENS[:4], LABELS[:4]), dtype="float64")
    return Setting(problem, STREAMS, tuple(parts), None, test, None, np.dtype(np.float64))
