"""Networks in parts: flat vectors of modules, [C]'s ResNet, what is refused. Docstrings name the mutations to catch."""

import copy
import math
import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.numerics.split_methods import (
    SIDE,
    C,
    close,
    fedavg,
    flat,
    groups,
    is_whole,
    method,
    put,
    resnet,
    run,
    seeded,
    setting,
    small,
    statistics,
    training,
)
from zofl_mpi.errors import UserError
from zofl_mpi.methods.splitfed import SFLV1
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.flat import Flat
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ConvNet, ResNet, SplitMLP
from zofl_mpi.run.command.flags import instantiate, leaves


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
    with found.bound_to(theta, buffers):
        assert torch.equal(torch.cat([flat(client), flat(head)]), theta)
    assert all(p.numel() == 0 for p in client.parameters())


def test_within_at_both_vectors_are_the_modules() -> None:
    """Mutation: a copy in place of a view, of either."""
    client, head, _ = seeded(resnet)
    found = Flat([client, head])
    theta, buffers = found.initial()
    before, x = (theta.clone(), buffers.clone()), torch.rand(4, 1, SIDE, SIDE)
    with torch.no_grad(), found.bound_to(theta, buffers):
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
        with found.bound_to(theta, own):
            outputs.append(client(x))
    for k in (1, 0):
        with found.bound_to(thetas[k], buffers[k]):
            g = found.gradient(outputs[k], slope)
        put(alone, thetas[k], start[1])
        alone.zero_grad()
        alone(xs[k]).backward(slope)
        close(g, torch.cat([p.grad.reshape(-1) for p in alone.parameters() if p.grad is not None]), 1e-5)
        close(buffers[k], statistics(alone), 1e-6)


def test_views_of_a_vector_are_made_once_and_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: views made for each pass; a vector that its views keep, with the memory of a model."""
    client, _, _ = seeded(resnet)
    found, made = Flat([client]), list[int]()
    plain = torch.Tensor.split_with_sizes
    monkeypatch.setattr(torch.Tensor, "split_with_sizes", lambda own, sizes: made.append(1) or plain(own, sizes))
    theta, buffers = found.initial()
    for _ in range(3):
        with found.bound_to(theta, buffers):
            theta.add_(1)
            assert torch.equal(flat(client), theta)
    assert len(made) == 2
    gone = [weakref.ref(vector) for vector in (theta, buffers)]
    del theta, buffers
    assert [vector() for vector in gone] == [None, None]


def test_frozen_parameters_are_constants() -> None:
    """Mutations: frozen ones in theta; a gradient that is missing where nothing depends on theta."""
    client: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    client[0].requires_grad_(False)
    weight, found = client[0].weight.detach().clone(), Flat([client])
    theta, buffers = found.initial()
    assert found.n == 10 and found.b == 0 and torch.equal(client[0].weight, weight)
    x = torch.ones(1, 3)
    with found.bound_to(theta, buffers):
        g = found.gradient(client(x).sum())
    close(g[:8], client[0](x)[0].repeat(2), 1e-6)
    client.requires_grad_(False)
    with found.bound_to(theta, buffers):
        assert torch.equal(found.gradient(client(x).sum()), torch.zeros(10))
    assert torch.equal(Flat([nn.Flatten()]).gradient(torch.zeros(())), torch.zeros(0))


def sizes(*parts: nn.Module) -> list[int]:
    return [sum(p.numel() for p in part.parameters()) for part in parts]


def test_the_parts_have_the_sizes_of_the_papers_table() -> None:
    """[C] Table II. Mutations: a bias in a convolution; max-pool; a stem of stride 2; a shortcut without BatchNorm."""
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

    own = setting(groups)
    plan = training(own, Optimiser())
    is_whole(run(method(SFLV1, plan), 2), own, fedavg(plan, groups, 2, (0, 1, 2)), 1e-9)


@pytest.mark.parametrize("cut", range(4))
def test_any_cut_of_odd_images_fits(cut: int) -> None:
    """Mutation: the side of a smashed sample rounded down."""
    parts = ResNet(2, (1, 2, 1), cut).parts((1, 9, 7), C)
    assert SplitNetwork(*parts, (1, 9, 7), C).smashed_shape == [(2, 9, 7), (2, 9, 7), (4, 5, 4), (4, 5, 4)][cut]


def spoiled(**parts: Any) -> SplitNetwork:
    """Small parts, some of them others."""
    names = dict(zip(("client", "auxiliary", "server"), seeded(small), strict=True))
    return SplitNetwork(**{**names, **parts}, input_shape=(1, SIDE, SIDE), classes=C)


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
        ({"client": nn.Sequential(nn.Flatten(1, 2), nn.RNN(SIDE, 2))}, "client part returns a tuple, not a tensor"),
    ],
)
def test_parts_that_do_not_fit_or_are_no_functions_of_theta_are_refused(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        spoiled(**parts)


def test_trying_the_parts_leaves_no_trace() -> None:
    """Mutation: running statistics of the two samples that no client has."""
    parts = seeded(resnet)
    before, state = [statistics(part) for part in parts], torch.random.get_rng_state()
    problem = SplitNetwork(*parts, (1, SIDE, SIDE), C)
    assert torch.equal(problem.client_side.initial()[1], torch.cat(before[:2]))
    assert torch.equal(problem.server_side.initial()[1], before[2])
    assert torch.equal(torch.random.get_rng_state(), state)


SHAPE, CLASSES = (3, 9, 9), 4
CONVOLUTIONS, NORMS = (3 * 16 * 9, 16 * 32 * 9, 32 * 32 * 9, 32 * 64 * 9), (32, 64, 64, 128)


def parts(cut: int = 3, **flags: object) -> tuple[nn.Module, nn.Module, nn.Module]:
    torch.manual_seed(1)
    return ConvNet(cut=cut, **flags).parts(SHAPE, CLASSES)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
@pytest.mark.parametrize("head", ["linear", "pooled"])
def test_the_cut_moves_stages_from_the_server_to_the_client(cut: int, head: str) -> None:
    """Mutations: a stage at both or at neither; a bias before a norm; the head for a map rounded down."""
    client, auxiliary, server = parts(cut, head=head)
    own = [a + b for a, b in zip(CONVOLUTIONS, NORMS, strict=True)]
    assert sizes(client, server) == [sum(own[:cut]), sum(own[cut:]) + 64 * CLASSES + CLASSES]
    side, channels = (5, 3, 3, 2)[cut - 1], (16, 32, 32, 64)[cut - 1]
    problem = SplitNetwork(client, auxiliary, server, SHAPE, CLASSES)
    assert problem.smashed_shape == (channels, side, side) and len(problem.blocks) == (cut if cut > 1 else 0)
    assert problem.client_side.sizes()[1] == (channels * (side * side if head == "linear" else 1) + 1) * CLASSES


def test_the_network_is_the_same_for_every_cut() -> None:
    """Mutation: a server that begins without the ReLU or the stride of its stage."""
    x, wholes = torch.rand(2, *SHAPE), []
    for cut in (1, 4):
        client, _, server = parts(cut)
        whole = nn.Sequential(client, server)
        with torch.no_grad():
            for k, p in enumerate(whole.parameters()):
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) / (k + 1))
            wholes.append(whole(x))
    assert torch.allclose(*wholes, atol=1e-6)


@pytest.mark.parametrize(("norm", "alone"), [("group", True), ("batch", False)])
def test_samples_see_each_other_by_batch_norm_alone(norm: str, alone: bool) -> None:
    """Mutation: the other norm."""
    client, _, _ = parts(norm=norm)
    x = torch.rand(4, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(client(x)[:2], client(x[:2]), atol=1e-5) == alone


@pytest.mark.parametrize(
    ("cls", "flags", "sentence"),
    [
        (ResNet, {"cut": 99}, "--cut 99: must be from 0 to 7: the network has 8 basic blocks"),
        (ConvNet, {"channels": (4, 4)}, "--strides 2 2 1 2: must be a whole number above 0 for each of the 2 channels"),
        (ConvNet, {"strides": (2, 0, 1, 1)}, "must be a whole number above 0 for each of the 4 channels"),
        (ConvNet, {"cut": 0}, "--cut 0: must be from 1 to 4, the stages"),
        (ConvNet, {"cut": 5}, "--cut 5: must be from 1 to 4, the stages"),
    ],
)
def test_a_network_that_cannot_be_is_refused_in_one_sentence(cls: Any, flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        instantiate(cls, {leaf.name: leaf.default for leaf in leaves(cls)} | flags).parts((1, SIDE, SIDE), C)


def test_a_perceptron_is_cut_behind_its_first_layer() -> None:
    """Mutations: a server without its hidden layer; no tanh at the client; a head on the inputs."""
    client, auxiliary, server = SplitMLP((3, 7)).parts(SHAPE, CLASSES)
    problem = SplitNetwork(client, auxiliary, server, SHAPE, CLASSES)
    inputs = math.prod(SHAPE)
    assert problem.smashed_shape == (3,) and problem.client_side.sizes() == [3 * inputs + 3, 3 * CLASSES + CLASSES]
    assert problem.server_side.n == 3 * 7 + 7 + 7 * CLASSES + CLASSES
    with problem.client_side.bound_to(*problem.client_side.initial()), torch.no_grad():
        assert float(client(1e3 * torch.ones(1, *SHAPE)).abs().max()) <= 1


def test_inputs_that_are_no_images_are_refused() -> None:
    with pytest.raises(UserError, match="inputs of 64 numbers are no square images"):
        ConvNet().parts((64,), CLASSES)
