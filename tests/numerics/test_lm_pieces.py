"""Whole language models by forward passes alone: losses layer by layer, and steps piece by piece."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bench.peers import whole
from tests.numerics.lm_toy import moved, setting
from tests.numerics.split_methods import Optimiser, broadcast, close, method, run, training
from tests.numerics.test_lm_families import cut
from zofl_mpi.engine.clients import Client
from zofl_mpi.methods.decomfl import DeComFL, HiSo
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.problems import lm
from zofl_mpi.problems.counting import Allocations
from zofl_mpi.rounds.split import pieces
from zofl_mpi.rounds.split.pieces import Piecewise, PiecewiseDirections

CLASSES: dict[Any, dict[str, Any]] = {DeComFL: {"n_p": 2}, HiSo: {"n_p": 2}, FedKSeed: {"seeds": 3}}
KINDS = ["gpt2", "llama", "opt with projections and norm after", "gemma"]
OWN = pytest.mark.parametrize("cls", CLASSES)


@pytest.fixture
def plan(kind: str, train: str, stored: Callable[[str], str]) -> Any:
    tied = train == "tied"
    own = cut(stored(kind), train="all" if tied else train, tied=tied, auxiliary_blocks=0, label_smoothing=0.1)
    return training(setting(own), Optimiser("sgd"), h=2, lr_client=0.05)


def joined(us: PiecewiseDirections, p: int) -> Tensor:
    return torch.cat([us(p, j) for j in range(len(us.parts))])


@OWN
@pytest.mark.parametrize(
    ("kind", "train"),
    [
        *((kind, train) for kind in KINDS for train in ("all", "tied")),
        (KINDS[0], "norm"),
        *((k, "lora") for k in KINDS[:2]),
    ],
)
def test_a_loss_layer_by_layer_is_that_of_the_whole_vector(
    plan: Any, cls: Any, train: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At theta + mu u, in float64, logits of a few tokens of the vocabulary at a time. Mutations: a norm, a bias or the
    embedding's factor at theta; a tied matrix at another point than the embedding; K left out; a token that is
    counted in two columns' parts, or in none; smoothing by the last part alone."""
    monkeypatch.setattr(pieces, "CPU_PIECE", 64)
    monkeypatch.setattr(pieces, "AT_ONCE", 0)
    of = method(cls, plan, mu=0.1, **CLASSES[cls])
    x, buffers = of.loss.flat.initial()
    x = moved(x)
    local, rule = (
        of.local(Client(0, plan.setting.data[0]), broadcast(of, x, {}, buffers)),
        of.rule,
    )
    if cls is HiSo:
        rule = replace(rule, K=1 + torch.rand(len(x), generator=torch.Generator().manual_seed(2), dtype=x.dtype))
    _, inputs, labels = next(iter(local))
    us = rule.draw_pieces(x, of.key(1) if cls is FedKSeed else of.key(0, 0))
    columns = lm.TOKEN_BLOCK
    for mu in (0.1, -0.2):
        expected = local.perturbed(inputs, labels, joined(us, 0), mu)
        monkeypatch.setattr(lm, "TOKEN_BLOCK", 7)
        close(rule._shifted_loss(local, inputs, labels, us, 0, mu), expected)
        monkeypatch.setattr(lm, "TOKEN_BLOCK", columns)
        assert expected != local.perturbed(inputs, labels, joined(us, 0), 0.0)


@OWN
@pytest.mark.parametrize("train", ["all", "tied", "lora"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_steps_are_those_of_the_whole_vector(plan: Any, cls: Any, train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of two steps, whose losses and estimates another run makes of whole directions. Mutations: a piece
    that is left out; the second direction's share, or K, of another piece."""
    of, found = method(cls, plan, mu=0.1, **CLASSES[cls]), []

    def loss(model: Any, x: Tensor, target: Tensor, us: PiecewiseDirections, p: int, mu: float) -> Tensor:
        return model.perturbed(x, target, joined(us, p), mu)  # type: ignore[no-any-return]

    def estimate(rule: Piecewise, us: PiecewiseDirections, differences: Any) -> Any:
        g: Any = sum(rule.term(difference, joined(us, p)) for p, difference in enumerate(differences))
        yield slice(0, len(g)), g

    monkeypatch.setattr(pieces, "CPU_PIECE", 64)
    found.append(run(of, 2))
    monkeypatch.setattr(Piecewise, "_shifted_loss", staticmethod(loss))
    monkeypatch.setattr(Piecewise, "estimate", estimate)
    found.append(run(of, 2))
    for name in ("theta", "theta_s"):
        close(*(getattr(state, name) for state in found))
        assert float((getattr(found[0], name) - getattr(of.start(), name)).norm()) > 1e-3


@pytest.mark.parametrize("train", ["tied"])
@pytest.mark.parametrize("kind", KINDS[:1])
def test_weight_decay_is_each_authors_own(plan: Any) -> None:
    """DeComFL's and HiSo's of all numbers, biases and norms too, as in DeComFL's code. Mutation: MeZO's, whose code
    leaves biases and norms out."""
    decays = replace(plan, optimiser=Optimiser("sgd", weight_decay=0.25))
    for cls in (DeComFL, HiSo):
        of = method(cls, decays)
        x = moved(of.loss.flat.initial()[0])
        found = x.clone()
        of.step(found, of.first_moments(x), 0, 0, iter([(slice(0, len(x)), torch.zeros_like(x))]))
        close(found, x - 0.05 * 0.25 * x)


@pytest.mark.parametrize("flags", [{}, {"estimate": "central"}], ids=str)
def test_a_step_never_holds_the_matrix_of_the_vocabulary(flags: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied, most of a small GPT-2: of it a pass makes the rows of its tokens, and then those of some tokens' logits.
    Mutations: an embedding in the whole matrix; logits by a part of the whole one."""
    monkeypatch.setitem(whole.SIZES, 1, (4000, 64, 3, 2))
    monkeypatch.setattr(pieces, "CPU_PIECE", 8192)
    monkeypatch.setattr(pieces, "AT_ONCE", 0)
    monkeypatch.setattr(lm, "TOKEN_BLOCK", 50)
    monkeypatch.setattr("zofl_mpi.problems.flat.SMALL_LAYERS", 512)
    tokens = torch.randint(0, 4000, (1, 5))
    of = whole.method_of(1, tokens, False, **flags)
    x, client = of.loss.flat.initial()[0], Client(0, of.setting.data[0])
    local = of.local(client, broadcast(of, x, {}, torch.zeros(0)))
    _, inputs, labels = next(iter(local))
    with Allocations() as plain:
        local.forward(inputs, labels)
    with Allocations() as passes:
        of.train(client, broadcast(of, x, {}, torch.zeros(0)))
    most = 4 * (64 * 257 + 512 + 4 * 8192) + 5056 * (len(x) // 8192 + 2)  # a layer, some pieces, the generator's states
    assert passes.peak <= plain.peak + most, (passes.peak, plain.peak, most)
    assert most < 4 * 4000 * 64 / 2
