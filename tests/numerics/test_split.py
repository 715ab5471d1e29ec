"""HERON-SFL, CSE-FSL, SFLV1, SFLV2, FSL-SAGE on tiny split networks: ALGORITHMS sections 0.2 to 0.8, 5 to 8, 17, 18.

In float64 unless bits are compared, with clients of unequal sizes, so that weights and numbers of steps are told apart.
The references are plain torch: whole networks, torch's optimisers, loops by hand. Docstrings name the mutations to
catch.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.fsl_sage import FSLSAGE, Head, _Memory
from zofl_mpi.methods.heron import HERON, Scalars
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.flat import Flat
from zofl_mpi.problems.split import Split
from zofl_mpi.problems.split_resnet import ResNet
from zofl_mpi.rounds.split import client as client_steps
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.messages import Ask, Model, Smashed
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training, augmented
from zofl_mpi.run.clients import Client, ClientError
from zofl_mpi.run.desk import STEPS, Nothing, recall
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams

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
ALL = [HERON, CSEFSL, SFLV1, SFLV2, FSLSAGE]


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


def seeded(make: Make, seed: int = 3) -> Parts:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def setting(
    make: Make = resnet, clients: Sequence[int] = (0, 1, 2), dtype: str = "float64", bf16: bool = False
) -> Setting:
    """The clients `clients` of SIZES, and 29 test samples."""
    data = Dataset(PIXELS, LABELS, C)
    *parts, test = (data.subset(np.arange(a, b)) for a, b in pairwise(EDGES))
    problem = Split(*seeded(make), (1, SIDE, SIDE), C, dtype, bf16=bf16)
    return Setting(problem, STREAMS, tuple(parts[i] for i in clients), None, test, None, np.dtype(dtype))


def named() -> Setting:
    """With a class of its own for each sample: labels tell which samples an upload has."""
    own = setting(small)
    problem = Split(*seeded(lambda: small(60)), (1, SIDE, SIDE), 60, "float64")
    data = tuple(replace(d, labels=np.arange(60), classes=60) for d in own.data)
    return replace(own, problem=problem, data=data)


def training(rule: Optimiser = SGD, **flags: Any) -> Training:
    return Training(**{"batch": 4, "lr_client": 0.05, "lr_server": 0.05, "rule": rule, **flags})


def run(of: Any, rounds: int, start: int = 0, clients: LocalClients | None = None, state: Any = None) -> Any:
    clients = clients or LocalClients(list(of.setting.data), method=of)
    state = state or of.start()
    for r in range(start, start + rounds):
        state = of.round(state, r, clients)
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
        values = [*module.parameters()], [b for b in module.buffers() if b.is_floating_point()]
        for tensors, vector in zip(values, (theta, buffers), strict=True):
            for tensor, piece in zip(tensors, vector.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(piece.view(tensor.shape))


def torchs(module: nn.Module, rule: Optimiser, lr: float) -> torch.optim.Optimizer:
    if rule.optimiser == "adam":
        return torch.optim.Adam(module.parameters(), lr, foreach=False)
    return torch.optim.SGD(
        module.parameters(), lr, momentum=rule.momentum, weight_decay=rule.weight_decay, foreach=False
    )


# --- flat vectors


def test_flat_vectors_hold_the_modules_in_their_own_order_and_go_round() -> None:
    """Mutations: parts in another order; running variances before means; whole-number buffers among them."""
    client, head, _ = parts = seeded(resnet)
    expected = torch.cat([flat(client), flat(head)]), torch.cat([statistics(client), statistics(head)])
    found = Flat(parts[:2])
    theta, buffers = found.initial()
    assert torch.equal(theta, expected[0]) and torch.equal(buffers, expected[1])
    assert found.sizes() == [len(expected[0]) - 2 * C - C, 2 * C + C]
    assert (found.n, found.b) == (len(theta), len(buffers))
    theta[0] = 99
    assert found.initial()[0][0] != 99
    assert all(p.numel() == 0 for p in (*client.parameters(), *head.parameters()))
    with found.at(theta, buffers):
        assert torch.equal(torch.cat([flat(client), flat(head)]), theta)
    assert all(p.numel() == 0 for p in client.parameters())


def test_within_at_both_vectors_are_the_modules() -> None:
    """Mutation: a copy in place of a view, of either."""
    client, head, _ = seeded(resnet)
    found = Flat([client, head])
    theta, buffers = found.initial()
    before, x = (theta.clone(), buffers.clone()), torch.rand(4, 1, SIDE, SIDE)
    with torch.no_grad(), found.at(theta, buffers):
        first = client(x)
        assert not torch.equal(buffers, before[1])
        theta.mul_(2)
        assert not torch.equal(client(x), first)
        theta.copy_(before[0])
        assert torch.equal(client(x), first)
        other = before[1].clone()
        found.swap(other)
        kept = buffers.clone()
        client(x)
        assert torch.equal(buffers, kept) and not torch.equal(other, before[1])


def test_two_clients_take_turns_with_the_same_modules() -> None:
    """A graph of one waits while the other computes. Mutation: backward with the model of another graph."""
    client, _, _ = seeded(resnet)
    alone, found = copy.deepcopy(client), Flat([client])
    start = found.initial()
    thetas = [start[0] * scale for scale in (1.0, 1.5)]
    buffers = [start[1].clone() for _ in thetas]
    xs = [torch.rand(3, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(k)) for k in range(2)]
    outputs, slope = [], torch.rand(3, 2, SIDE, SIDE)
    for theta, own, x in zip(thetas, buffers, xs, strict=True):
        with found.at(theta, own):
            outputs.append(client(x))
    for k in (1, 0):
        with found.at(thetas[k], buffers[k]):
            g = found.gradient(outputs[k], slope)
        put(alone, thetas[k], start[1])
        alone.zero_grad()
        alone(xs[k]).backward(slope)
        close(g, torch.cat([p.grad.reshape(-1) for p in alone.parameters() if p.grad is not None]), 1e-5)
        close(buffers[k], statistics(alone), 1e-6)


def test_frozen_parameters_are_constants() -> None:
    """Mutations: frozen ones in theta; a gradient that is missing where nothing depends on theta."""
    client = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    client[0].requires_grad_(False)
    weight, found = client[0].weight.detach().clone(), Flat([client])
    theta, buffers = found.initial()
    assert found.n == 10 and found.b == 0 and torch.equal(client[0].weight, weight)
    x = torch.ones(1, 3)
    with found.at(theta, buffers):
        g = found.gradient(client(x).sum())
    close(g[:8], client[0](x)[0].repeat(2), 1e-6)
    client.requires_grad_(False)
    with found.at(theta, buffers):
        assert torch.equal(found.gradient(client(x).sum()), torch.zeros(10))
    assert torch.equal(Flat([nn.Flatten()]).gradient(torch.zeros(())), torch.zeros(0))


# --- the network of [C]


def sizes(*parts: nn.Module) -> list[int]:
    return [sum(p.numel() for p in part.parameters()) for part in parts]


def test_the_parts_have_the_sizes_of_the_papers_table() -> None:
    """Section 18. Mutations: a bias in a convolution; a max-pool; a stem of stride 2; a shortcut without BatchNorm."""
    with torch.device("meta"):
        x = torch.zeros(2, 3, 32, 32)
        client, head, server = ResNet().parts((3, 32, 32), 10)
        assert sizes(client, head) == [75_840, 655_370] and sum(sizes(client, server)) == 11_173_962
        assert client(x).shape == (2, 64, 32, 32) and head(client(x)).shape == server(client(x)).shape == (2, 10)
        client, head, server = ResNet(cut=3).parts((3, 32, 32), 10)
        assert sizes(client) == [379_968] and sum(sizes(client, server)) == 11_173_962
        assert client(x).shape == (2, 128, 16, 16) and head(client(x)).shape == server(client(x)).shape == (2, 10)
        assert sizes(ResNet(cut=3, head="pooled").parts((3, 32, 32), 10)[1]) == [1290]


def test_group_norm_takes_the_place_of_batch_norm() -> None:
    """As many parameters, nothing running, and a sample that does not see the others. Mutation: one BatchNorm left."""
    parts = seeded(lambda: ResNet(32, (1, 1), 1, "pooled", "group").parts((1, SIDE, SIDE), C))
    assert sizes(*parts) == sizes(*ResNet(32, (1, 1), 1, "pooled").parts((1, SIDE, SIDE), C))
    assert [m.num_groups for part in parts for m in part.modules() if isinstance(m, nn.GroupNorm)] == [2] * 3 + [4] * 3
    assert not [b for part in parts for b in part.buffers()]
    client, _, server = parts
    x = torch.rand(5, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    close(server(client(x))[:2], server(client(x[:2])), 1e-5)

    def small_groups() -> Parts:
        return ResNet(2, (1, 1), 1, "pooled", "group").parts((1, SIDE, SIDE), C)

    own, plan = setting(small_groups), training(Optimiser())
    is_whole(run(SFLV1(own, plan), 2), own, fedavg(own, plan, small_groups, 2, (0, 1, 2)), 1e-9)


@pytest.mark.parametrize("cut", range(4))
def test_any_cut_of_odd_images_fits(cut: int) -> None:
    """Mutation: the side of a smashed sample rounded down."""
    parts = ResNet(2, (1, 2, 1), cut).parts((1, 9, 7), C)
    assert Split(*parts, (1, 9, 7), C).smashed_shape == [(2, 9, 7), (2, 9, 7), (4, 5, 4), (4, 5, 4)][cut]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"cut": 99}, "--cut 99: must be from 0 to 7: the network has 8 basic blocks"),
        ({"cut": 8}, "--cut 8: must be from 0 to 7"),
        ({"cut": -1}, "--cut -1: must be from 0"),
        ({"width": 0}, "--width 0: must be a whole number, at least 1"),
        ({"stages": (1, 0)}, "--stages 1 0: must be whole numbers, each at least 1"),
        ({"stages": ()}, "--stages : must be whole numbers"),
        ({"width": 2, "stages": (1,) * 5}, "5 stages need images of at least 16 pixels a side, not 8"),
    ],
)
def test_a_network_that_cannot_be_cut_so_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ResNet(**flags).parts((1, SIDE, SIDE), C)


def spoiled(**parts: Any) -> Split:
    """Small parts, some of them others."""
    names = dict(zip(("client", "auxiliary", "server"), seeded(small), strict=True))
    return Split(**{**names, **parts}, input_shape=(1, SIDE, SIDE), classes=C)


SAME = nn.Linear(2, C)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"auxiliary": nn.Linear(5, C)}, r"auxiliary part does not take samples of shape \(2,\) .* takes 5 numbers"),
        ({"auxiliary": nn.Linear(2, 4)}, r"auxiliary part maps .* shape \(2,\) to \(4,\); it must give 3 logits"),
        ({"server": nn.Linear(2, 4)}, "server part maps"),
        ({"client": nn.Linear(3, 2)}, r"client part does not take samples of shape \(1, 8, 8\)"),
        ({"server": nn.Identity()}, "server part has no parameters to train"),
        ({"server": SAME, "auxiliary": SAME}, "share parameters"),
        ({"auxiliary": nn.Sequential(nn.Dropout(), nn.Linear(2, C))}, "draws random numbers"),
        ({"auxiliary": nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, C))}, "auxiliary part changes its inputs"),
        ({"auxiliary": nn.Sequential(nn.BatchNorm1d(2, momentum=None), nn.Linear(2, C))}, "momentum=None"),
    ],
)
def test_parts_that_do_not_fit_or_are_no_functions_of_theta_are_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        spoiled(**parts)


def test_trying_the_parts_leaves_no_trace() -> None:
    """Mutation: running statistics of the two samples that no client has."""
    parts = seeded(resnet)
    before, state = [statistics(part) for part in parts], torch.random.get_rng_state()
    problem = Split(*parts, (1, SIDE, SIDE), C)
    assert torch.equal(problem.local.initial()[1], torch.cat(before[:2]))
    assert torch.equal(problem.top.initial()[1], before[2])
    assert torch.equal(torch.random.get_rng_state(), state)


# --- mini-batches, uploads, participants


def test_each_pass_takes_every_sample_once_and_the_next_in_another_order() -> None:
    """Mutations: no new permutation; the last batch dropped, or filled up; the generator of another client or round."""
    own = setting(mlp)
    for h in (0, 2, 7):
        plan = training(h=h)
        client = Client(1, own.data[1])
        found = [b.tolist() for b in plan.batches(own, client, 4)]
        assert len(found) == plan.steps(own, 1) == (h or 3)
        assert [len(b) for b in found] == [plan.samples(own, 1, q) for q in range(len(found))]
        assert [len(b) for b in found] == [4, 4, 2, 4, 4, 2, 4][: len(found)]
        if h != 2:
            assert sorted(itertools.chain(*found[:3])) == list(range(10))
        if h == 7:
            assert found[3:6] != found[:3] and sorted(itertools.chain(*found[3:6])) == list(range(10))
        assert [b.tolist() for b in plan.batches(own, client, 4)] == found
        assert [b.tolist() for b in plan.batches(own, client, 5)] != found
        assert [b.tolist() for b in plan.batches(own, Client(0, own.data[1]), 4)] != found


class Sent:
    """What the server met: (client, which of its batches) in order."""

    def __init__(self, own: Setting, plan: Training, r: int) -> None:
        self.labels = {
            tuple(own.data[i].rows[b].tolist()): (i, q)
            for i in range(own.m)
            for q, b in enumerate(plan.batches(own, Client(i, own.data[i]), r))
        }
        self.met: list[tuple[int, int]] = []

    def see(self, item: Any) -> None:
        self.met.append(self.labels[tuple(item.labels.tolist())])


def met(monkeypatch: pytest.MonkeyPatch, of: Any, r: int = 0) -> list[tuple[int, int]]:
    """The server's steps of round r."""
    sent = Sent(of.setting, of.training, r)
    kept = {name: getattr(Server, name) for name in ("step", "exchange")}

    def seeing(name: str) -> Callable[[Server, Any], Any]:
        def seen(self: Server, item: Any) -> Any:
            sent.see(item)
            return kept[name](self, item)

        return seen

    with monkeypatch.context() as patch:
        for name in kept:
            patch.setattr(Server, name, seeing(name))
        state = run(of, 1, r)
    assert state.server_steps == len(sent.met)
    return sent.met


def interleaved(r: int) -> list[tuple[int, int]]:
    """(i, q) by q, then by the permutation of round r."""
    turn = STREAMS(Purpose.ORDER, r=r).permutation(3).tolist()
    return [(i, q) for q in range(max(STEPS_OF)) for i in turn if q < STEPS_OF[i]]


def test_the_clients_turn_is_drawn_anew_each_round() -> None:
    """Not one order for all, and each of those that take part. Mutation: the permutation of round 0."""
    turns = [training(beta=0.7).groups(setting(small), r) for r in range(10)]
    assert all(len(found) == 1 and len(set(found[0])) == 2 for found in turns)
    assert all(sorted(found[0]) == training(beta=0.7).participants(setting(small), r) for r, found in enumerate(turns))
    assert len({tuple(interleaved(r)[:3]) for r in range(10)}) > 1


@pytest.mark.parametrize("cls", ALL)
def test_the_server_steps_once_an_upload_in_the_order_asked_for(monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
    """FSL-SAGE in a round that aligns, too. Mutations: client after client in place of interleave, or the other way."""
    for r in (0, 1):
        assert met(monkeypatch, cls(named(), training()), r) == interleaved(r)
        assert met(monkeypatch, cls(named(), training(order="client_major")), r) == sorted(interleaved(r))


@pytest.mark.parametrize("cls", [HERON, CSEFSL, FSLSAGE])
@pytest.mark.parametrize("k", [2, 3, 100])
def test_every_kth_step_goes_up_and_steps_are_the_sum_of_the_ceilings(
    monkeypatch: pytest.MonkeyPatch, cls: Any, k: int
) -> None:
    """k above h: one upload a round. Mutations: ceil for floor; the last one of a block for the first."""
    found = met(monkeypatch, cls(named(), training(k=k)))
    assert sorted(found) == [(i, q) for i, h in enumerate(STEPS_OF) for q in range(h) if q % k == 0]
    assert len(found) == sum(math.ceil(h / k) for h in STEPS_OF)
    if cls is not FSLSAGE:
        found = met(monkeypatch, cls(named(), training(k=k, upload_at="last")))
        assert len(found) == sum(math.ceil(h / k) for h in STEPS_OF)
        last = [(i, q) for i, h in enumerate(STEPS_OF) for q in range(h) if q % k == k - 1 or q == h - 1]
        assert sorted(found) == last


SEEDS = [
    ({"rule": SGD}, {}),
    ({"rule": Optimiser("sgd", momentum=0.9, weight_decay=0.01)}, {"n_p": 3, "estimate": "central"}),
    ({"state": "reset"}, {"distribution": "gaussian"}),
    ({"state": "average", "beta": 0.7}, {"n_p": 2}),
    ({"state": "average", "rule": Optimiser("sgd", momentum=0.9)}, {}),
    ({"beta": 0.7}, {"n_p": 2, "distribution": "sphere", "mu": 0.01}),
    ({"freeze": "client", "k": 3, "upload_at": "last"}, {"estimate": "central"}),
    ({"freeze": "auxiliary", "weights": "uniform", "order": "client_major"}, {}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("flags", "estimate"), SEEDS)
def test_scalars_and_seeds_give_the_dense_uplinks_bits(
    flags: dict[str, Any], estimate: dict[str, Any], dtype: str
) -> None:
    """Four rounds, BatchNorm and Adam's moments included.

    Mutations: directions of another round, client or step; moments begun anew, or those of another client, or kept
    where they are to be reset; the mean of n_p as their sum; the frozen part replayed; weights of other clients.
    """
    own, plan = setting(dtype=dtype), training(**{"rule": Optimiser(), **flags})
    dense, seeds = (HERON(own, plan, **estimate, uplink=uplink) for uplink in ("dense", "seeds"))
    expected, found = run(dense, 4), run(seeds, 4)
    assert same(found, expected) and apart(found.theta, seeds.start().theta)
    assert (found.local_loss, found.server_loss) == (expected.local_loss, expected.server_loss)
    kept = plan.state == "keep"
    assert bool(found.replayed) == kept and not expected.replayed
    clients = LocalClients(list(own.data), method=seeds)
    state = run(seeds, 3, clients=clients)
    for i, moments in state.replayed.items():
        ((_, told),) = clients.ask(recall, Nothing(), to=[int(i)], counted=False)
        for name, value in told.entries["moments"].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[name])), (i, name)


class HostReads(TorchDispatchMode):
    """Counts how often the host asks for a tensor's number: on a GPU it would wait for all that was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("uplink", ["dense", "seeds"])
@pytest.mark.parametrize("estimate", ["one-sided", "central", "exact"])
@pytest.mark.parametrize("rule", [SGD, Optimiser()], ids=["sgd", "adam"])
def test_a_local_step_asks_the_host_for_nothing(rule: Optimiser, estimate: Any, uplink: Any) -> None:
    """Two numbers a round, after the last step. Mutations: a loss, a norm or a scale that becomes a Python float."""
    if (estimate, uplink) == ("exact", "seeds"):
        return
    of = HERON(setting(), training(rule), n_p=3, estimate=estimate, uplink=uplink)
    client, start = Client(2, of.setting.data[2]), of.start()
    main = Server(of.setting, of.training, start)
    with HostReads() as reads:
        float(torch.ones(()))
        assert reads.count == 1
        uploads = list(of.train(client, Model(start.theta, start.buffers, 0)))
        assert len(uploads) == STEPS_OF[2] and reads.count == 3
        for item in uploads:
            main.step(item)
        assert reads.count == 3


def test_a_replay_on_another_kind_of_processor_is_refused() -> None:
    """Other vector instructions draw other directions. Mutation: no check."""
    of = HERON(setting(), training(), uplink="seeds")
    told = Scalars(np.zeros((2, 1)), of.start().buffers, "cpu with other instructions")
    with pytest.raises(UserError, match="client 1 computes on cpu with other instructions, the server on cpu with "):
        of.replay(of.start(), 0, 1, told)
    with pytest.raises(UserError, match="--uplink seeds: --estimate exact"):
        HERON(setting(), training(), uplink="seeds", estimate="exact")


def test_a_client_whose_replayed_model_is_not_finite_is_named() -> None:
    of = HERON(setting(), training(lr_client=1e300), uplink="seeds", mu=0.1)
    with pytest.raises(UserError, match=r"client \d: Update.theta is not finite"):
        run(of, 3)


def test_methods_refuse_flags_that_mean_nothing_to_them() -> None:
    for cls in (SFLV1, SFLV2):
        with pytest.raises(UserError, match="--k 2: must be 1"):
            cls(setting(small), training(k=2))
    with pytest.raises(UserError, match="--upload-at last"):
        FSLSAGE(setting(small), training(k=2, upload_at="last"))
    with pytest.raises(UserError, match="--upload-at last"):  # client 0 has two steps, the others more
        FSLSAGE(setting(small, clients=(1, 0)), training(h=0, k=3, batch=6, upload_at="last"))
    with pytest.raises(UserError, match="--buffer 1: must be at least 2"):
        FSLSAGE(setting(deep), training(), buffer=1)
    with pytest.raises(UserError, match="--freeze client"):
        FSLSAGE(setting(small), training(freeze="client"))
    with pytest.raises(UserError, match="--batch 7: must be at most 6"):
        HERON(setting(small), training(batch=7))
    with pytest.raises(UserError, match="--batch 5: the last batch of client 0 has one sample"):
        HERON(setting(deep), training(batch=5))
    HERON(setting(deep), training(batch=5, h=1))
    HERON(setting(resnet), training(batch=5))
    FSLSAGE(setting(resnet), training(), buffer=1)
    for cls in (HERON, CSEFSL):
        with pytest.raises(UserError, match="--freeze auxiliary: nothing of the local part is left to train"):
            cls(
                setting(lambda: (nn.Flatten(), *(nn.Linear(SIDE * SIDE, C) for _ in "as"))),
                training(freeze="auxiliary"),
            )


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("cls", [HERON, CSEFSL])
def test_participants_are_averaged_by_their_weights_and_the_others_do_nothing(cls: Any, weights: str) -> None:
    """Mutations: the weight of all clients in the denominator; uniform for size; a client that is not asked moves."""
    own, plan = setting(resnet), training(beta=0.6, weights=weights)
    r = next(r for r in range(9) if plan.participants(own, r) == [0, 2])
    of = cls(own, plan)
    clients = LocalClients(list(own.data), method=of)
    found = run(of, 1, r, clients)
    assert clients.ledger.row(np.zeros((0, 1)), np.zeros((0, 1), np.int64)).messages.sum(axis=0)[1] == 0
    share = {"size": 6 / 21, "uniform": 0.5}[weights]
    start, alone = of.start(), LocalClients(list(own.data), method=of)
    parts = {}
    for i in (0, 2):
        list(alone.ask(of.train, Model(start.theta, start.buffers, r), to=[i]))
        ((_, parts[i]),) = alone.ask(of.update, Ask(), to=[i])
    for name in ("theta", "buffers"):
        close(getattr(found, name), share * getattr(parts[0], name) + (1 - share) * getattr(parts[2], name))
    memories = dict(clients.ask(STEPS["<recall>"], Nothing(), counted=False))
    assert [sorted(memories[i].entries) for i in range(3)] == [["moments"], [], ["moments"]]


@pytest.mark.parametrize("cls", [HERON, CSEFSL])
@pytest.mark.parametrize("freeze", ["client", "auxiliary"])
def test_what_is_frozen_keeps_its_bits(cls: Any, freeze: str) -> None:
    """In float32, by Adam with a decay. Mutations: a moment of what is frozen; d of the whole in a direction."""
    of = cls(setting(dtype="float32"), training(Optimiser(weight_decay=0.1), freeze=freeze))
    n, start, found = of.setting.problem.n_client, of.start().theta, run(of, 2).theta
    still, moved = (slice(0, n), slice(n, None)) if freeze == "client" else (slice(n, None), slice(0, n))
    assert torch.equal(found[still], start[still]) and (found[moved] != start[moved]).any()
    local = LocalSteps(of.setting, of.training, Client(0, of.setting.data[0]), Model(start, of.start().buffers, 0))
    assert [len(u) for u in local.directions(1, 0, "sphere")] == [len(start[moved])]


@pytest.mark.parametrize("cls", [SFLV1, SFLV2])
def test_splitfed_leaves_the_head_and_obeys_freeze(cls: Any) -> None:
    """In float32: the mean of equal numbers is that number; in float64 it is so to rounding."""
    of = cls(setting(dtype="float32"), training())
    n, start, found = of.setting.problem.n_client, of.start(), run(of, 2)
    assert torch.equal(found.theta[n:], start.theta[n:]) and (found.theta[:n] != start.theta[:n]).any()
    found = run(cls(setting(dtype="float32"), training(freeze="client")), 2)
    assert torch.equal(found.theta, start.theta) and apart(found.theta_s, start.theta_s)


# --- SplitFed is training of the whole network


def whole_of(make: Make) -> nn.Module:
    client, _, server = seeded(make)
    return nn.Sequential(client, server).double()


def batches(own: Setting, plan: Training, i: int, r: int) -> Iterator[tuple[Tensor, Tensor]]:
    for b in plan.batches(own, Client(i, own.data[i]), r):
        rows = own.data[i].rows[b]
        yield torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE), torch.from_numpy(LABELS[rows])


def fedavg(own: Setting, plan: Training, make: Make, rounds: int, clients: Sequence[int]) -> nn.Module:
    """FedAvg on the whole network, by hand; own optimiser states by `plan.state`. One network is plain training."""
    nets = {i: whole_of(make) for i in clients}
    rules = {i: torchs(net, plan.rule, 0.05) for i, net in nets.items()}
    average = flat(nets[clients[0]]), statistics(nets[clients[0]])
    sizes = {i: len(own.data[i]) for i in clients}
    moments: list[dict[str, Tensor]] = []  # of each parameter, the mean
    for r in range(rounds):
        to = [clients[i] for i in plan.participants(own, r)]
        share = {i: sizes[i] / sum(sizes[j] for j in to) for i in to}
        for i in to:
            net = nets[i]
            put(net, *average)
            net.train(not plan.running)
            if plan.state != "keep":
                rules[i] = torchs(net, plan.rule, 0.05)
            for p, mean in zip(net.parameters(), moments, strict=False):
                rules[i].state[p] = {name: value.clone() for name, value in mean.items()}
            for x, labels in batches(own, plan, i, r):
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


def returning() -> Streams:
    """With --beta 0.6 some client takes part in round 0, rests in round 1, and is back in round 2."""
    plan, own = training(beta=0.6), setting(small)
    for seed in range(100):
        zero, one, two = (plan.participants(replace(own, streams=Streams(seed)), r) for r in range(3))
        if set(zero) & set(two) - set(one):
            return Streams(seed)
    raise AssertionError


@pytest.mark.parametrize("beta", [1.0, 0.6])
@pytest.mark.parametrize("state", ["keep", "reset", "average"])
@RULES
def test_sflv1_is_fedavg_on_the_unsplit_network(rule: Optimiser, state: str, beta: float) -> None:
    """Sections 6 and 17: to rounding, BatchNorm included; in turns or client by client.

    Mutations: the server's replicas are one; their moments lost, or kept; the gradient at the cut after the server's
    step; uniform weights; a replica's running statistics not averaged; moments of who rests lost; moments averaged at
    one side only; the number of steps rounded, or the largest.
    """
    own, plan = replace(setting(), streams=returning()), training(rule, state=state, beta=beta)
    found = run(SFLV1(own, plan), 4)
    net = fedavg(own, plan, resnet, 4, (0, 1, 2))
    is_whole(found, own, net, 1e-9)
    assert apart(flat(net), flat(whole_of(resnet)))
    again = run(SFLV1(own, replace(plan, order="client_major")), 4)
    assert same(found, again)
    if rule is not SGD:
        for another in {"keep", "reset", "average"} - {state}:
            other = run(SFLV1(own, replace(plan, state=another)), 4)
            assert apart(found.theta, other.theta) and apart(found.theta_s, other.theta_s)


@pytest.mark.parametrize("cls", ALL)
@RULES
def test_the_mean_of_one_clients_moments_is_its_own(rule: Optimiser, cls: Any) -> None:
    """To rounding, which FSL-SAGE's alignment may enlarge. Mutation: moments lost, or of the part that stays."""
    kept, averaged = (run(cls(setting(clients=(1,)), training(rule, state=state)), 3) for state in ("keep", "average"))
    for name, value in vectors(kept).items():
        close(value, vectors(averaged)[name], 1e-9)
    assert apart(kept.theta, run(cls(setting(clients=(1,)), training(rule, state="reset")), 3).theta)
    own = cls(setting(clients=(1,)), training(rule))
    whole = cls in (HERON, CSEFSL)
    size = own.setting.problem.local.n if whole else own.setting.problem.n_client
    assert averaged.moments["first"].shape == (size,)


@pytest.mark.parametrize("cls", [SFLV2, CSEFSL])
def test_a_server_may_take_every_step_with_a_new_optimiser(cls: Any) -> None:
    """SplitFed's code: a step of Adam is then lr g / (|g| + eps). Mutation: moments kept within a round, or between."""
    own, plan = setting(mlp), training(Optimiser(), server_state="per_batch_reset")
    of = cls(own, plan)
    state = run(of, 2)
    main = Server(own, plan, state)
    assert state.optimiser["t"] == 1
    for i in range(2):
        x, labels = next(batches(own, plan, i, 0))
        with torch.no_grad(), own.problem.local.at(state.theta, state.buffers):
            item = Smashed(own.problem.smash(x), labels)
        before = main.theta.clone()
        with own.problem.top.at(before, main.buffers):
            g = own.problem.top.gradient(own.problem.server_loss(item.s, labels))
        main.step(item) if i else main.exchange(item)
        close(main.theta, before - 0.05 * g / (g.abs() + 1e-8), 1e-9)
    assert apart(state.theta_s, run(cls(own, training(Optimiser())), 2).theta_s)
    assert same(
        run(cls(own, training(Optimiser("sgd"), server_state="per_batch_reset")), 2),
        run(cls(own, training(Optimiser("sgd"))), 2),
    )


@RULES
def test_sflv1_does_not_depend_on_the_cut(rule: Optimiser) -> None:
    found = []
    for cut in (0, 1):
        own = setting(lambda cut=cut: resnet(cut))
        state = run(SFLV1(own, training(rule)), 2)
        found.append(torch.cat([state.theta[: own.problem.n_client], state.theta_s]))
    assert len(found[0]) == len(found[1])
    close(*found, 1e-9)


@RULES
def test_sflv2_with_one_client_is_plain_training(rule: Optimiser) -> None:
    """Mutations: the server's gradient at the cut after its own step; its moments lost between rounds."""
    own, plan = setting(clients=(2,)), training(rule)
    state = run(SFLV2(own, plan), 3)
    is_whole(state, own, fedavg(own, plan, resnet, 3, (0,)), 1e-9)


@RULES
def test_with_one_client_sflv1_is_sflv2_to_the_bit(rule: Optimiser) -> None:
    one, two = (run(cls(setting(clients=(1,)), training(rule)), 3) for cls in (SFLV1, SFLV2))
    assert same(one, two) and (one.server_steps, one.server_loss) == (two.server_steps, two.server_loss)


@RULES
def test_sflv2_is_a_loop_by_hand(rule: Optimiser) -> None:
    """Three clients, one server part, in turns. Mutations: a server part each; server steps after all of a turn."""
    own, plan = setting(), training(rule)
    found = run(SFLV2(own, plan), 1)
    net = whole_of(resnet)
    top, clients = net[1], [copy.deepcopy(net[0]) for _ in SIZES]
    rules = [torchs(part, rule, 0.05) for part in (top, *clients)]
    turns = [list(batches(own, plan, i, 0)) for i in range(3)]
    for i, q in interleaved(0):
        x, labels = turns[i][q]
        for k in (0, 1 + i):
            rules[k].zero_grad()
        cross_entropy(top(clients[i](x)), labels).backward()
        for k in (0, 1 + i):
            rules[k].step()
    close(found.theta_s, flat(top), 1e-9)
    close(found.buffers_s, statistics(top), 1e-9)
    mean = sum(size / 31 * flat(part) for size, part in zip(SIZES, clients, strict=True))
    close(found.theta[: own.problem.n_client], mean, 1e-9)


# --- CSE-FSL and HERON


@RULES
def test_cse_fsl_with_the_server_as_its_head_is_sflv2(rule: Optimiser) -> None:
    """One client, k = 1: theta_a is theta_s for ever. Mutations: a head that does not step; uploads after a step."""
    cse, sfl = (run(cls(setting(twins, (2,)), training(rule)), 3) for cls in (CSEFSL, SFLV2))
    n = sum(p.numel() for p in seeded(twins)[0].parameters())
    close(cse.theta[n:], cse.theta_s)
    close(cse.theta[:n], sfl.theta[:n])
    close(cse.theta_s, sfl.theta_s)
    close(cse.buffers_s, sfl.buffers_s)
    assert apart(cse.theta_s, seeded_flat(twins))


def seeded_flat(make: Make) -> Tensor:
    """The server's part as it was made."""
    return flat(seeded(make)[2])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@RULES
def test_heron_with_the_exact_gradient_is_cse_fsl_to_the_bit(rule: Optimiser, dtype: str) -> None:
    """Section 5 (a). Mutations: another order, another upload, other moments."""
    flags = {"k": 2, "beta": 0.6, "augment": "crop-flip"}
    heron = run(HERON(setting(dtype=dtype), training(rule, **flags), estimate="exact"), 3)
    cse = run(CSEFSL(setting(dtype=dtype), training(rule, **flags)), 3)
    assert same(heron, cse)
    assert (heron.local_loss, heron.server_loss) == (cse.local_loss, cse.server_loss)


def local_of(of: Any, i: int = 0, r: int = 0) -> LocalSteps:
    start = of.start()
    return LocalSteps(of.setting, of.training, Client(i, of.setting.data[i]), Model(start.theta, start.buffers, r))


def errors(monkeypatch: pytest.MonkeyPatch, frame: Tensor, n_p: int, **flags: Any) -> float:
    """|estimate - gradient| where the directions are the columns of `frame`."""
    of = HERON(setting(small), training(), n_p=n_p, **flags)
    local = local_of(of)
    q, x, labels = next(iter(local))
    _, g = local.gradient(x, labels)
    _, base = local.forward(x, labels)
    norm = math.sqrt(len(frame)) if flags["distribution"] == "sqrt_d_sphere" else 1.0
    monkeypatch.setattr(LocalSteps, "directions", lambda *_: iter(norm * frame.T))
    assert float(g.norm()) > 0.1
    return float((of.estimated(local, q, x, labels, base)[0] - g).norm())


@pytest.mark.parametrize("distribution", ["sphere", "sqrt_d_sphere"])
@pytest.mark.parametrize("estimate", ["central", "one-sided"])
def test_the_mean_estimate_over_a_frame_is_the_gradient(
    monkeypatch: pytest.MonkeyPatch, distribution: str, estimate: str
) -> None:
    """To O(mu^2): a tenth of mu, a hundredth of the error. One-sided: a frame and its negative.

    Mutations: d, n_p, 2 or mu missing in the scale; a sign; another mini-batch for one of the two losses.
    """
    d = setting(small).problem.local.n
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    frame = torch.cat([frame, -frame], 1) if estimate == "one-sided" else frame
    own: dict[str, Any] = {"distribution": distribution, "estimate": estimate}
    rough, fine = (errors(monkeypatch, frame, frame.shape[1], mu=mu, **own) for mu in (1e-2, 1e-3))
    assert fine < 1e-4 and 80 < rough / fine < 120
    if estimate == "one-sided":
        assert errors(monkeypatch, frame[:, :d], d, mu=1e-3, **own) > 20 * fine, "blind to the two sides"


def test_the_mean_gaussian_estimate_is_the_gradient() -> None:
    """1000 directions, five standard errors. Mutation: the factor d for normal directions."""
    of = HERON(setting(small), training(), n_p=1000, mu=1e-4, distribution="gaussian")
    local = local_of(of)
    q, x, labels = next(iter(local))
    _, g = local.gradient(x, labels)
    _, base = local.forward(x, labels)
    d, found = len(g), of.estimated(local, q, x, labels, base)[0]
    assert float((found - g).norm()) < 5 * float(g.norm()) * math.sqrt((d + 1) / 1000)


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_the_two_spheres_are_one_with_the_radius_scaled(estimate: str) -> None:
    """Z5 is Z1 with mu sqrt(d). Mutation: the factor d for a direction of norm sqrt(d)."""
    d = setting(mlp).problem.local.n
    kinds = [("sqrt_d_sphere", 1e-3), ("sphere", 1e-3 * math.sqrt(d))]
    own: dict[str, Any] = {"estimate": estimate, "n_p": 2}
    one, two = (
        run(HERON(setting(mlp), training(lr_client=1e-3), mu=mu, distribution=kind, **own), 2) for kind, mu in kinds
    )
    close(one.theta, two.theta, 1e-9)
    close(one.theta_s, two.theta_s, 1e-9)
    assert apart(one.theta, HERON(setting(mlp), training()).start().theta)


def test_directions_have_their_norms_and_their_own_stream() -> None:
    """Mutations: one stream for all steps, clients or rounds; sqrt(d) forgotten; the norm of each tensor."""
    of = HERON(setting(mlp), training())
    seen, d = [], of.setting.problem.local.n
    for i, r, q in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        local = local_of(of, i, r)
        found = list(local.directions(3, q, "sqrt_d_sphere"))
        assert all(abs(float(u.norm()) - math.sqrt(d)) < 1e-9 for u in found)
        for u, v in zip(found, local.directions(3, q, "sphere"), strict=True):
            close(u, math.sqrt(d) * v)
        for u, z in zip(found, local.directions(3, q, "gaussian"), strict=True):
            close(u / math.sqrt(d), z / z.norm())
            assert 0.8 < float(z.norm()) / math.sqrt(d) < 1.2 and abs(float(z.norm()) - math.sqrt(d)) > 1e-6
        assert all(torch.equal(a, b) for a, b in zip(found, local.directions(3, q, "sqrt_d_sphere"), strict=True))
        seen += found
    cosines = torch.stack(seen) @ torch.stack(seen).T / d - torch.eye(len(seen))
    assert float(cosines.abs().max()) < 0.5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clients_that_do_not_step_are_frozen_features_whatever_mu_and_n_p(dtype: str) -> None:
    """Section 5 (c), (d): to the bit, running statistics too. Mutation: a perturbed pass moves the statistics."""
    starts = HERON(setting(dtype=dtype), training()).start()
    found = [
        run(HERON(setting(dtype=dtype), training(lr_client=0.0), **flags), 2)
        for flags in ({"mu": 1e-3}, {"mu": 1.0, "n_p": 3}, {"distribution": "gaussian"}, {"estimate": "central"})
    ]
    found.append(run(CSEFSL(setting(dtype=dtype), training(lr_client=0.0)), 2))
    assert all(same(found[0], other) for other in found[1:])
    close(found[0].theta, starts.theta, 1e-15)
    assert dtype == "float64" or torch.equal(found[0].theta, starts.theta)
    assert not torch.equal(found[0].buffers, starts.buffers)
    assert not torch.equal(found[0].theta_s, starts.theta_s)


def test_perturbed_passes_may_move_the_running_statistics() -> None:
    """Clients that do not step: what the tested network normalises by then depends on mu. Mutation: as with batch."""

    def found(cls: Any, policy: str, **flags: Any) -> Any:
        return run(cls(setting(), training(lr_client=0.0, batchnorm=policy), **flags), 2)

    near, far = (found(HERON, "every_pass", mu=mu) for mu in (1e-9, 1.0))
    plain = found(HERON, "batch")
    assert apart(near.buffers, far.buffers) and apart(near.buffers, plain.buffers)
    assert same(near, far, ("theta", "theta_s", "buffers_s")) and same(near, plain, ("theta", "theta_s", "buffers_s"))
    assert same(found(CSEFSL, "every_pass"), found(CSEFSL, "batch"))


@pytest.mark.parametrize("cls", ALL)
def test_running_statistics_may_be_constants(cls: Any) -> None:
    """Not a bit of them moves, at clients and server. Mutations: one of the two sides; modules left in that mode."""
    own = setting()
    of = cls(own, training(batchnorm="running"))
    start, found = of.start(), run(of, 2)
    assert same(found, replace(start, theta=found.theta, theta_s=found.theta_s))
    assert apart(found.theta, start.theta) and apart(found.theta_s, start.theta_s)
    assert apart(found.theta_s, run(cls(own, training()), 2).theta_s)
    parts = own.problem.client, own.problem.auxiliary, own.problem.server
    assert all(m.training for part in parts for m in part.modules())


@RULES
def test_sflv1_with_constant_statistics_is_fedavg_in_evaluation_mode(rule: Optimiser) -> None:
    """Mutation: gradients through the batch's statistics."""
    own, plan = setting(), training(rule, batchnorm="running")
    net = fedavg(own, plan, resnet, 3, (0, 1, 2))
    is_whole(run(SFLV1(own, plan), 3), own, net, 1e-9)


def test_a_batch_of_one_sample_is_no_matter_to_constant_statistics() -> None:
    """With batches of 5, client 0 of 6 samples has one left."""
    state = run(HERON(setting(deep), training(batch=5, batchnorm="running")), 1)
    assert bool(state.theta.isfinite().all())


def test_a_perturbed_pass_restores_the_model_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32. Mutations: mu u subtracted again; statistics left where the pass put them."""
    kept, calls = LocalSteps.perturbed, []

    def watched(self: LocalSteps, x: Tensor, labels: Tensor, u: Tensor, mu: float) -> float:
        before = self.theta.clone(), self.buffers.clone()
        loss = kept(self, x, labels, u, mu)
        calls.append(torch.equal(self.theta, before[0]) and torch.equal(self.buffers, before[1]))
        return loss

    monkeypatch.setattr(LocalSteps, "perturbed", watched)
    run(HERON(setting(dtype="float32"), training(), mu=0.1, n_p=2, estimate="central"), 1)
    assert calls == [True] * 2 * 2 * sum(STEPS_OF)


@pytest.mark.parametrize(("estimate", "k", "passes"), [("one-sided", 2, 3), ("one-sided", 1, 3), ("central", 1, 5)])
def test_a_client_runs_forward_only_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch, estimate: Any, k: int, passes: int
) -> None:
    """h (1 + n_p) passes without a graph, and no call of autograd at a client. Mutations: a second base; grad mode."""
    of = HERON(setting(), training(k=k), n_p=2, estimate=estimate)
    problem, seen, calls = of.setting.problem, [], []

    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        seen.append((torch.is_grad_enabled(), output.requires_grad, module.training))

    for part in (problem.client, problem.auxiliary):
        part.register_forward_hook(hook)
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    assert seen == [(False, False, True)] * 2 * passes * sum(STEPS_OF)
    assert len(calls) == state.server_steps == sum(math.ceil(h / k) for h in STEPS_OF)
    assert of.plan(1)["forward passes of a local step"] in (passes, "4, and 1 more where it is uploaded")


def test_central_passes_over_the_base_where_nothing_goes_up() -> None:
    of = HERON(setting(), training(k=100), n_p=1, estimate="central")
    count: list[int] = []
    of.setting.problem.client.register_forward_hook(lambda *_: count.append(1))
    run(of, 1)
    assert len(count) == 2 * sum(STEPS_OF) + 3


def test_a_radius_that_drowns_in_rounding_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not where one direction of many is orthogonal to the gradient. Mutation: a threshold for float32 in float64."""
    monkeypatch.setattr(client_steps, "_warned", [])
    run(HERON(setting(dtype="float32"), training(), mu=1e-3, n_p=20), 2)
    run(HERON(setting(dtype="float64"), training(), mu=1e-9), 1)
    assert capsys.readouterr().err == ""
    run(HERON(setting(dtype="float32"), training(), mu=1e-9), 2)
    told = capsys.readouterr().err
    assert told.count("zofl_mpi: warning: ") == told.count("\n") == 1
    assert "2 of 2 losses" in told and "rounding in float32: take a larger --mu, or --dtype float64" in told
    monkeypatch.setattr(client_steps, "_warned", [])
    run(HERON(setting(dtype="float64"), training(), mu=1e-17), 1)
    assert "rounding in float64: take a larger --mu\n" in capsys.readouterr().err


# --- FSL-SAGE


def sage(make: Make = mlp, plan: Training | None = None, **flags: Any) -> FSLSAGE:
    return FSLSAGE(setting(make), plan or training(), **{"align_epochs": 5, "align_lr": 0.05, **flags})


@pytest.mark.parametrize("make", [lambda: mlp(True), twins], ids=["mlp", "resnet"])
def test_a_head_that_is_the_server_is_a_zero_of_the_alignment_loss(make: Make) -> None:
    """Even where the buffer is larger than a batch. Mutation: target and estimate as means over different numbers."""
    of = sage(make, training(lr_server=0.0), l=1, buffer=9)
    first = run(of, 1)
    assert first.alignment_loss < 1e-25
    n = of.setting.problem.n_client
    for head in first.heads.values():
        close(head, of.start().theta[n:], 1e-9)
    assert {int(i): len(kept) for i, kept in first.smashed.items()} == {i: min(9, SIZES[i]) for i in range(3)}


def test_alignment_brings_the_estimate_near_the_servers_gradient() -> None:
    """Of one buffer and one server; the loss is that before the steps. Mutations: descent on the local loss; a sign."""
    of = sage(align_epochs=60)
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 1, clients=clients)
    assert state.alignment_loss > 0
    losses = []
    memory = _Memory(state, of.buffer)
    for _ in range(3):
        losses.append(of.aligned(Server(of.setting, of.training, state), memory, 2)[1])
    assert max(losses[1:]) < 0.1 * losses[0]


def test_the_alignment_loss_is_the_distance_of_the_gradients_at_the_cut() -> None:
    """By hand, for the first uploads. Mutations: sum over samples for mean; the head's gradient; a moved server."""
    of = sage(plan=training(lr_server=0.0))
    client, head, server = (part.double() for part in seeded(mlp))
    expected = []
    for i in range(3):
        x, labels = next(batches(of.setting, of.training, i, 0))
        s = client(x).detach().requires_grad_()
        slopes = [torch.autograd.grad(cross_entropy(part(s), labels), s)[0] for part in (head, server)]
        expected.append(float((slopes[0] - slopes[1]).square().sum()))
    assert run(of, 1).alignment_loss == pytest.approx(np.mean(expected), rel=1e-12)


def test_heads_stay_between_alignments_and_are_each_clients_own() -> None:
    """Mutations: aligned in every round; trained on the local loss; averaged; one head for all."""
    of = sage(l=3)
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 1, clients=clients)
    heads = {i: head.clone() for i, head in state.heads.items()}
    assert apart(heads["0"], heads["1"]) and apart(heads["1"], heads["2"])
    for r in (1, 2):
        state = run(of, 1, r, clients, state)
        assert all(torch.equal(state.heads[i], head) for i, head in heads.items()) and math.isnan(state.alignment_loss)
        memories = dict(clients.ask(STEPS["<recall>"], Nothing(), counted=False))
        assert all(torch.equal(memories[int(i)].entries["head"], head) for i, head in heads.items())
        n = of.setting.problem.n_client
        assert torch.equal(state.theta[n:], of.start().theta[n:])
    state = run(of, 1, 3, clients, state)
    assert all(apart(state.heads[i], head) for i, head in heads.items())


@pytest.mark.parametrize("order", ["interleave", "client_major"])
def test_sage_aligns_with_the_server_after_the_first_uploads(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Section 8: on the first batch, uploaded before. The client's steps then use the new head.

    Mutations: alignment before the server's step; the old head for the first local step.
    """
    of = sage(plan=training(order=order))
    seen: list[tuple[int, int]] = []
    kept = FSLSAGE.aligned

    def watched(self: FSLSAGE, main: Server, memory: Any, i: int) -> Any:
        seen.append((i, main.steps))
        return kept(self, main, memory, i)

    monkeypatch.setattr(FSLSAGE, "aligned", watched)
    run(of, 1)
    turn = [i for i, _ in interleaved(0)[:3]]
    assert seen == ([(i, 3) for i in turn] if order == "interleave" else [(0, 1), (1, 3), (2, 6)])
    client = Client(0, of.setting.data[0])
    start = of.start()
    n = of.setting.problem.n_client
    of.first(client, Model(start.theta[:n], start.buffers, 0))
    head = torch.full((len(start.theta) - n,), 0.5, dtype=torch.float64)
    local = of.work[0]
    uploads = list(of.rest(client, Head(head)))
    assert len(uploads) == STEPS_OF[0] - 1
    assert torch.equal(local.theta[n:], head) and torch.equal(client.memory["head"], head)


def test_the_first_upload_of_an_aligning_round_leaves_no_second_trace() -> None:
    """With heads that do not move, an aligning round is one that does not align. Mutation: statistics moved twice."""
    found = [run(sage(resnet, align_epochs=0, l=k), 1, start=1) for k in (1, 100)]
    assert same(*found)
    assert (found[0].local_loss, found[0].server_loss) == (found[1].local_loss, found[1].server_loss)


@RULES
def test_sage_whose_head_is_copied_from_the_server_is_sflv2(monkeypatch: pytest.MonkeyPatch, rule: Optimiser) -> None:
    """Section 8, one client, BatchNorm: theta_s before each batch. Mutation: the copy after the server's step."""
    servers: list[Server] = []
    made, moved = Server.__init__, FSLSAGE._moved

    def make(self: Server, *given: Any) -> None:
        made(self, *given)
        servers.append(self)

    def copied(self: FSLSAGE, local: LocalSteps, *given: Any) -> Any:
        local.theta[local.problem.n_client :] = servers[-1].theta
        return moved(self, local, *given)

    sfl = run(SFLV2(setting(twins, (2,)), training(rule)), 2, start=1)
    monkeypatch.setattr(Server, "__init__", make)
    monkeypatch.setattr(FSLSAGE, "_moved", copied)
    found = run(FSLSAGE(setting(twins, (2,)), training(rule), l=100), 2, start=1)
    n = setting(twins).problem.n_client
    close(found.theta[:n], sfl.theta[:n])
    close(found.theta_s, sfl.theta_s)
    close(found.buffers_s, sfl.buffers_s)


# --- augmentation


def test_images_are_cropped_from_their_padding_and_mirrored() -> None:
    """Every one is one of the 162 views. Mutations: upside down; one crop for all; a wrap-around in place of zeros."""
    x = torch.rand(40, 2, SIDE, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    found = augmented(x, STREAMS(Purpose.AUGMENT))
    assert found.shape == x.shape and found.is_contiguous(memory_format=torch.channels_last)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    places = set()
    for image, large in zip(found, padded, strict=True):
        views = {
            (up, left, flip): torch.equal(image, view.flip(2) if flip else view)
            for up in range(9)
            for left in range(9)
            for flip in (False, True)
            for view in [large[:, up : up + SIDE, left : left + 5]]
        }
        places |= {place for place, equal in views.items() if equal}
        assert any(views.values())
    assert {flip for *_, flip in places} == {False, True}
    assert {up for up, *_ in places} == set(range(9)) == {left for _, left, _ in places}


def test_augmentation_is_a_function_of_round_client_and_step() -> None:
    own, plan = setting(), training(augment="crop-flip")
    positions = np.arange(4)

    def inputs(i: int, r: int, q: int) -> Tensor:
        return plan.inputs(own, Client(i, own.data[0]), positions, r, q)[0]  # type: ignore[no-any-return]

    first = inputs(0, 0, 0)
    assert torch.equal(inputs(0, 0, 0), first)
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not torch.equal(inputs(*other), first)
    plain = training().inputs(own, Client(0, own.data[0]), positions, 0, 0)[0]
    assert torch.equal(plain, own.problem.samples(own.data[0], positions)[0])
    flat_inputs = replace(own, problem=replace_shape(own.problem))
    with pytest.raises(UserError, match=r"--augment crop-flip: inputs of shape \(64,\) are no images"):
        plan.fit(flat_inputs)


def replace_shape(problem: Split) -> Split:
    parts = nn.Linear(64, 2), nn.Linear(2, C), nn.Linear(2, C)
    return Split(*parts, (64,), C, problem.dtype)


# --- reports and costs


@pytest.mark.parametrize("cls", ALL)
def test_a_report_is_of_the_whole_network_in_evaluation_mode(cls: Any) -> None:
    """29 test samples over 3 clients. Mutations: batch statistics; the head's logits; a mean of means."""
    of = cls(setting(), training())
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 2, clients=clients)
    told = of.evaluate(state, 1, clients)
    net, n = whole_of(resnet).eval(), of.setting.problem.n_client
    put(net, torch.cat([state.theta[:n], state.theta_s]), torch.cat([state.buffers, state.buffers_s]))
    rows = of.setting.test.rows
    with torch.no_grad():
        logits = net(torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE))
    labels = torch.from_numpy(LABELS[rows])
    assert told["test_loss"] == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-12)
    assert told["test_accuracy"] == pytest.approx(float((logits.argmax(1) == labels).double().mean()), rel=1e-12)
    before = vectors(state)
    assert all(torch.equal(before[name], value) for name, value in vectors(state).items())


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("kind", ["float32", "float64", "bf16", "some"])
def test_the_plan_announces_the_bytes_that_are_counted(cls: Any, kind: str) -> None:
    """Mutations: 4 bytes for float64, or for bfloat16; a client 0 that rests; the head in SplitFed's messages."""
    own = setting(dtype="float64" if kind == "float64" else "float32", bf16=kind == "bf16")
    flags = {"beta": 0.3} if kind == "some" else {}
    flags |= {} if cls in (SFLV1, SFLV2) else {"k": 2}
    of = cls(own, training(**flags))
    start = 1 if cls is FSLSAGE else 0
    to = of.training.participants(own, 0)
    start = next(
        r for r in range(start, 50) if of.training.participants(own, r) == to and (r % 10 or cls is not FSLSAGE)
    )
    clients = LocalClients(list(own.data), method=of)
    state = run(of, 1, start, clients)
    row, plan = clients.ledger.row(np.zeros((0, 1)), np.zeros((0, 1), np.int64)), of.plan(1)
    assert plan["bytes down and up, all clients, a round"] == row.bytes_down.sum() + row.bytes_up.sum()
    assert plan["bytes of labels, all clients, a round"] == state.label_bytes
    if 0 in to:
        assert plan["bytes down, client 0, a round"] == row.bytes_down[:, 0].sum()
        assert plan["bytes up, client 0, a round"] == row.bytes_up[:, 0].sum()
    else:
        whole = cls(own, training(**{**flags, "beta": 1.0})).plan(1)
        for line in ("bytes down, client 0, a round", "bytes up, client 0, a round"):
            assert plan[line] == whole[line]
    if cls is FSLSAGE:
        clients = LocalClients(list(own.data), method=of)
        run(of, 1, 0, clients)
        aligned = clients.ledger.row(np.zeros((0, 1)), np.zeros((0, 1), np.int64)).bytes_down.sum()
        further = (aligned - row.bytes_down.sum()) / len(to)
        assert plan["further bytes down, each client, every 10 rounds"] == further


@pytest.mark.parametrize("cls", [HERON, CSEFSL, SFLV2, FSLSAGE])
def test_a_model_that_is_not_finite_ends_the_run_in_a_sentence(cls: Any) -> None:
    """The server's part, or a client's, whichever is found first."""
    with pytest.raises((UserError, ClientError), match="not finite"):
        run(cls(setting(mlp), training(Optimiser("sgd", weight_decay=1e10), lr_server=1e300)), 2)
