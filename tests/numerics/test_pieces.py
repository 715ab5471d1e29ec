"""Forward passes at inference memory: directions by pieces, layers that are perturbed where they compute."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Patch
from tests.numerics.split_methods import (
    SGD,
    SIDE,
    STREAMS,
    UNSPLIT,
    C,
    Make,
    Parts,
    apart,
    broadcast,
    close,
    convolutions,
    groups,
    method,
    mlp,
    resnet,
    run,
    same,
    setting,
    tokens,
    training,
    vectors,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.decomfl import DeComFL, HiSo
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems import flat as flat_module
from zofl_mpi.problems.counting import Allocations
from zofl_mpi.rounds.split import pieces, unsplit
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.pieces import PiecewiseDirections

PLAIN, ADAMW = Optimiser("sgd"), Optimiser("adamw", weight_decay=0.1)


@pytest.mark.parametrize("distribution", ["gaussian", "sphere", "sqrt_d_sphere", "rademacher"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [5, 63, 79, 80, 200, 384])
def test_directions_by_pieces_are_those_of_whole_draws(
    monkeypatch: Patch, d: int, dtype: torch.dtype, distribution: str
) -> None:
    """To the bit, in any order of reading; on a sphere to the rounding of a norm that is summed by pieces. Mutations: a
    last piece of fewer than 16 numbers; a state that a piece was not drawn from; the next direction from the end of a
    piece; a piece of another direction that is taken for this one."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 64)
    whole = list(drawn(STREAMS(Purpose.DIRECTION), torch.zeros(d, dtype=dtype), 3, distribution))
    us = PiecewiseDirections(STREAMS(Purpose.DIRECTION), torch.zeros(d, dtype=dtype), distribution)
    assert us.parts[0].start == 0 and us.parts[-1].stop == d and all(a.stop == b.start for a, b in pairwise(us.parts))
    assert len(us.parts) == {5: 1, 63: 1, 79: 1, 80: 2, 200: 3, 384: 6}[d]
    keys = [(p, j) for p in range(3) for j in range(len(us.parts))]
    for p, j in [*reversed(keys), *keys, *sorted(keys, key=lambda key: key[::-1])]:
        piece, expected = us(p, j), whole[p][us.parts[j]]
        if "sphere" not in distribution or len(us.parts) == 1:
            assert torch.equal(piece, expected)
        close(piece, expected, 4 * torch.finfo(dtype).eps)


class Tied(nn.Module):
    """A weight that is used twice, once transposed, and asked for its shape and type."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, SIDE * SIDE) / 8), nn.Parameter(torch.zeros(5))

    def forward(self, x: Tensor) -> Tensor:
        width = self.weight.shape[1]
        y = nn.functional.linear(x.reshape(-1, width).to(self.weight.dtype), weight=self.weight, bias=self.bias)
        back = torch.tanh(y) @ torch.stack([self.weight, self.weight.mT.mT]).mean(dim=0)
        return torch.cat([torch.tanh(y), back[:, :3] * self.bias.sum()], dim=1)


def tied() -> Parts:
    return Tied(), nn.Linear(8, C), nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, C))


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("make", [mlp, resnet, convolutions, tokens, groups, tied], ids=lambda make: make.__name__)
def test_a_layer_that_is_perturbed_where_it_computes_gives_the_loss_of_the_perturbed_vector(
    monkeypatch: Patch, make: Make, at_once: bool
) -> None:
    """And theta and the running statistics stay, to the bit; so does a small network that is perturbed at once, where
    no function's arguments are looked at. Mutations: a bias that stays; a weight's second use, or its transpose, at
    theta; a part of another layer; the client's part alone; mu for -mu; statistics that move."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 32)
    if not at_once:
        monkeypatch.setattr(pieces, "AT_ONCE", 0)
    plan = training(setting(make), h=1)
    of = method(DeComFL, plan, n_p=2, mu=0.1)
    x, buffers = of.loss.flat.initial()
    local = of.local(Client(0, plan.setting.data[0]), broadcast(of, x, {}, buffers))
    assert local.theta.data_ptr() == of._held["x"].data_ptr()
    _, inputs, labels = next(iter(local))
    us, whole = of.rule.draw_pieces(x, of.key(0, 0)), list(of.rule.directions(x, of.key(0, 0)))
    kept = x.clone()
    assert len(us.parts) > 1
    if at_once:
        monkeypatch.setattr(flat_module, "Substituted", None)
    for p, mu in ((0, 0.1), (1, -0.1), (0, -0.3)):
        found = of.rule._shifted_loss(local, inputs, labels, us, p, mu)
        close(found, local.perturbed(inputs, labels, whole[p], mu), 1e-12)
        assert found != of.rule._shifted_loss(local, inputs, labels, us, p, 0.0)
    assert torch.equal(local.theta, kept) and torch.equal(local.buffers, buffers)


@pytest.mark.parametrize("distribution", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("width", [1, 5, 37, 300])
def test_some_rows_of_a_matrix_have_the_bits_that_they_have_in_it(
    monkeypatch: Patch, width: int, distribution: str
) -> None:
    """In float32, of a matrix that begins within a piece, wherever rows and pieces end. Mutations: a row in two pieces,
    half of it another one's; the next piece's rows a row too far; one that there is not, of memory that nobody wrote;
    where a sum's last numbers are added by other instructions, sums of the rows alone."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 128)
    d, matrix = 100 + 23 * width + 50, slice(100, 100 + 23 * width)
    x = torch.randn(d, generator=torch.Generator().manual_seed(1))
    us = pieces.PiecewiseDirections(STREAMS(Purpose.DIRECTION), x, distribution)
    whole = us.shifted(x, matrix, 0, 0.1).view(23, width)
    assert len(us.parts) > 1
    for start, stop in ((0, 23), (0, 1), (7, 12), (11, 23), (22, 23)):
        part = slice(100 + start * width, 100 + stop * width)
        found = us.shifted(x, part, 0, 0.1, matrix)
        assert torch.equal(found, whole[start:stop].flatten()) and found.data_ptr() % 64 == part.start * 4 % 64
    which = torch.tensor([22, 0, 5, 5, 11, 23, -1])
    found = us.rows(x, matrix, width, which, 0, 0.1)
    assert torch.equal(found[:5], whole[which[:5]]) and bool(found[5:].isnan().all())


class BiasFirst(nn.Module):
    """A linear layer as GPT-2 computes it, whose bias a function is given before its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, 40) / 8), nn.Parameter(torch.zeros(40))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(self.bias, x.flatten(1), self.weight))


@pytest.fixture
def drawn_pieces(monkeypatch: Patch) -> list[tuple[int, int]]:
    """(p, j) of each piece j of a direction p that is drawn."""
    found, draw = list[tuple[int, int]](), PiecewiseDirections._drawn
    monkeypatch.setattr(PiecewiseDirections, "_drawn", lambda us, p, j: (found.append((p, j)), draw(us, p, j))[1])
    return found


def test_a_pass_draws_each_piece_once(monkeypatch: Patch, drawn_pieces: list[tuple[int, int]]) -> None:
    """However many layers it lies in, and however a function orders them. Mutations: values made in the order of a
    function's arguments; a piece that is not kept for the next layer."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 512)
    monkeypatch.setattr(pieces, "AT_ONCE", 0)
    monkeypatch.setattr(unsplit, "room", lambda on_gpu: 0)
    plan = training(
        setting(lambda: (nn.Sequential(BiasFirst(64), BiasFirst(40)), nn.Linear(40, C), nn.Linear(40, C))), h=1
    )
    of = method(DeComFL, plan, n_p=2)
    x = of.loss.flat.initial()[0]
    of.train(Client(0, plan.setting.data[0]), broadcast(of, x, {}, torch.zeros(0)))
    assert drawn_pieces == [(p, j) for p in range(2) for j in range(len(x) // 512 + 1)]


@pytest.mark.parametrize("flags", [{}, {"estimate": "central"}, {"distribution": "sphere", "mu": 0.1}], ids=str)
@pytest.mark.parametrize("cls", UNSPLIT)
def test_directions_are_kept_where_there_is_room_to_the_same_bits(
    monkeypatch: Patch, drawn_pieces: list[tuple[int, int]], cls: Any, flags: dict[str, Any]
) -> None:
    """Three clients, two steps a round, two rounds, of several pieces. In DeComFL each piece is drawn once a step for
    all clients and the server; in FedKSeed once for a step's passes and the step. Mutations: pieces of another step,
    round or seed; a kept piece that is scaled or moved in place; K in what is kept; room that is never given back."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 64)
    plan = training(setting(mlp), PLAIN, h=2, lr_client=0.05)
    found, counts, more = [], [], {"seeds": 5} if cls is FedKSeed else {"n_p": 2}
    for steps in (0, 1, 9):
        of = method(cls, plan, **more, **flags)
        each = of.direction_bytes
        monkeypatch.setattr(unsplit, "room", lambda on_gpu, each=each, steps=steps: 8 * each * steps)
        drawn_pieces.clear()
        found.append(run(of, 2))
        counts.append(len(drawn_pieces))
        assert of.kept_steps == min(steps, 1 if cls is FedKSeed else 2)
        told = str(of.plan(1)["directions of a step"])
        assert ("kept" in told and f"{of.kept_steps * each:,} bytes" in told) if steps else "drawn again" in told
        assert sum(map(len, of._held.get("directions", {}).values())) <= of.kept_steps * -(-of.loss.flat.n // 64) * 2
    for other in found[1:]:
        assert same(found[0], other)
    assert counts[0] > counts[1] >= counts[2]
    if cls is not FedKSeed:
        assert counts[2] == 2 * 2 * 2 * len(
            PiecewiseDirections(STREAMS(Purpose.DIRECTION), torch.zeros(of.loss.flat.n), "gaussian").parts
        )


@pytest.mark.parametrize(
    ("cls", "rule"),
    [*((cls, rule) for cls in (DeComFL, HiSo) for rule in (PLAIN, SGD, ADAMW)), (FedKSeed, PLAIN)],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:40],
)
def test_a_run_does_not_depend_on_the_size_of_a_piece(monkeypatch: Patch, cls: Any, rule: Optimiser) -> None:
    """To rounding (here to the bit; a processor may round the last numbers of a vector otherwise). Mutations: moments
    that a piece begins anew; a count of steps that grows by each piece; K renewed before a piece is drawn; K's piece of
    another part; a direction's norm of its last piece alone; n for that of a piece in a sphere's factor."""
    flags: dict[Any, dict[str, Any]] = {
        DeComFL: {"distribution": "sphere", "mu": 0.1, "n_p": 2},
        HiSo: {"n_p": 2},
        FedKSeed: {"seeds": 5, "distribution": "sphere", "mu": 0.1},
    }
    plan, found = training(setting(mlp), rule, h=3, lr_client=0.05), []
    for size in (2**18, 48):
        monkeypatch.setattr(pieces, "CPU_PIECE", size)
        found.append(run(method(cls, plan, **flags[cls]), 3))
    for name, tensor in vectors(found[0]).items():
        close(tensor, vectors(found[1])[name], 1e-10)
    assert apart(found[0].theta, method(cls, plan, **flags[cls]).start().theta)


def wide() -> Parts:
    client = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
    server = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(96, 96), nn.Tanh())), nn.Linear(96, C))
    return client, nn.Linear(96, C), server


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("flags", [{}, {"estimate": "central"}, {"distribution": "sphere"}], ids=str)
@pytest.mark.parametrize("cls", [DeComFL, HiSo])
def test_a_step_needs_the_memory_of_a_forward_pass_and_of_its_largest_layer(
    monkeypatch: Patch, cls: Any, flags: dict[str, Any], kept: bool
) -> None:
    """Passes, and the step along them: beyond inference and theta, at most the largest layer (weight and bias), and
    some pieces; where directions are kept, these and a perturbed point. d is 8 layers. Mutations: a copy of theta; a
    whole direction, or one more than are kept; two perturbed points; layers that live on; an estimate as a whole."""
    monkeypatch.setattr(unsplit, "room", lambda on_gpu: int(kept) * 10**9)
    monkeypatch.setattr(pieces, "CPU_PIECE", 4096)
    monkeypatch.setattr(pieces, "AT_ONCE", 0)
    monkeypatch.setattr("zofl_mpi.problems.flat.SMALL_LAYERS", 512)
    plan = training(setting(wide), PLAIN, h=1)
    of = method(cls, plan, n_p=2, mu=1e-3, **flags)
    state = of.start()
    x = torch.cat([state.theta[: plan.setting.problem.n_client], state.theta_s])
    buffers, data, memory = torch.empty(0, dtype=x.dtype), plan.setting.data[0], of.first_moments(x)
    message = broadcast(of, x, memory, buffers)
    local = of.local(Client(0, data), message)
    assert ("point" in of._held) is kept
    _, inputs, labels = next(iter(local))
    with Allocations() as plain:
        local.forward(inputs, labels)
    with Allocations() as passes:
        told = of.train(Client(0, data), message)
    with Allocations() as step:
        of.replay(x, memory, 0, told.differences)
    layer, piece, states = 8 * (96 * 97 + 512), 8 * 4096, 5056 * 2 * (len(x) // 4096 + 2)
    assert len(x) * 8 > layer + 4 * piece + states
    most = plain.peak + (1 - kept) * layer + 4 * piece + states + kept * 2 * 8 * len(x)
    assert passes.peak <= most, (passes.peak, plain.peak, layer, states)
    assert bool(of.kept_steps) is kept and (passes.peak > plain.peak + 2 * 8 * len(x)) is kept
    assert step.peak <= 5 * piece + states


@pytest.mark.parametrize(("missing", "steps"), [(0, 2), (1, 1)])
def test_directions_are_kept_beside_a_perturbed_point(monkeypatch: Patch, missing: int, steps: int) -> None:
    """Of a network that is not small. Mutations: the point is not counted, or not told; it counts for each step."""
    monkeypatch.setattr(pieces, "AT_ONCE", 0)
    of = method(DeComFL, training(setting(mlp), PLAIN, h=2), n_p=2)
    each, point = of.direction_bytes, 8 * of.loss.flat.n
    monkeypatch.setattr(unsplit, "room", lambda on_gpu: 8 * (2 * each + point - missing))
    assert of.kept_steps == steps
    assert f"{steps * each + point:,} bytes" in str(of.plan(1)["directions of a step"])
