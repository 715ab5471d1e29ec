"""Split networks of whole numbers: an embedding as a client, or as a layer of one, with its own matrix or a shared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    EMBEDDINGS,
    LABELS,
    RULES,
    SIZES,
    STEPS_OF,
    TOKENS,
    VOCABULARY,
    Make,
    close,
    embedded,
    flat,
    local_of,
    method,
    put,
    run,
    seeded,
    statistics,
    torchs,
    training,
    whole_of,
    worded,
)
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.costs import STEP_BYTES
from zofl_mpi.rounds.split.training import Training

MAKES = pytest.mark.parametrize("make", EMBEDDINGS.values(), ids=EMBEDDINGS)


def text(plan: Training, i: int, q: int) -> tuple[Tensor, Tensor]:
    rows = plan.setting.data[i].rows[list(plan.batches(i, 0))[q]]
    return torch.from_numpy(TOKENS[rows]).long(), torch.from_numpy(LABELS[rows])


@MAKES
@RULES
def test_sflv1_trains_them_as_whole_networks(make: Make, rule: Optimiser) -> None:
    """By torch's own optimiser. Mutations: tokens as floats; a shared matrix twice in theta; one of its gradients."""
    own = worded(make)
    plan = training(own, rule)
    found = run(method(SFLV1, plan), 1)
    nets = []
    for i in range(3):
        net = whole_of(make)
        for m in net.modules():
            if isinstance(m, nn.Embedding):
                m.sparse = False
        step = torchs(net.parameters(), rule, 0.05)
        for q in range(STEPS_OF[i]):
            x, labels = text(plan, i, q)
            step.zero_grad()
            cross_entropy(net(x), labels).backward()
            step.step()
        nets.append(net)
    mean = sum(size / sum(SIZES) * flat(net) for size, net in zip(SIZES, nets, strict=True))
    close(torch.cat([found.theta[: own.problem.n_client], found.theta_s]), mean, 1e-9)


@MAKES
@pytest.mark.parametrize("cls", [HERON, DeComFL])
def test_an_estimate_is_a_difference_of_losses(monkeypatch: pytest.MonkeyPatch, cls: Any, make: Make) -> None:
    """Perturbed as a whole, and layer by layer as a device does. Mutations: a shared matrix perturbed in one place; a
    token moved by mu."""
    for lean in (False, True):
        monkeypatch.setattr("zofl_mpi.rounds.split.pieces.AT_ONCE", 0 if lean else 2**22)
        plan = training(worded(make), Optimiser("sgd"), h=1)
        of = method(cls, plan, mu=0.1)
        local = local_of(of)
        q, x, labels = next(iter(local))
        assert torch.equal(x, text(plan, 0, 0)[0])
        theta, point = local.theta.clone(), of.rule.forward(local, x, labels)
        if cls is HERON:
            (u,) = of.rule.directions(theta, local.key(q))
            found = of.rule(local, point, labels, local.key(q)).differences
        else:
            us = of.rule.draw_pieces(theta, local.key(q))
            u = torch.cat([us(0, j) for j in range(len(us.parts))])
            found = of.rule.differences(local, point, labels, us)
        client, head, server = (part.double() for part in seeded(make))
        net = nn.Sequential(client, head if cls is HERON else server)

        def loss(at: Tensor, net: nn.Module = net, x: Tensor = x, labels: Tensor = labels) -> Tensor:
            put(net, at, statistics(net))
            return cross_entropy(net(x), labels)

        assert float(found[0]) == pytest.approx(float((loss(theta + 0.1 * u) - loss(theta)).detach()), rel=1e-9)


@MAKES
def test_their_steps_are_costed(make: Make) -> None:
    """Mutation: a table of floats for the example."""
    for cls in (HERON, CSEFSL, SFLV2, DeComFL):
        of = method(cls, training(worded(make), h=1))
        assert of.costs()[STEP_BYTES] > 0 and of.device_needs()[0].bytes > 8 * of.setting.problem.n_client


def test_what_is_no_function_of_its_parameters_is_refused() -> None:
    """Mutations: accepted; fractions cut off; the complaint about floats where the numbers are beyond the matrix."""
    for client, words in (
        (lambda: nn.Embedding(VOCABULARY, 3, max_norm=0.1), "the client part changes its parameters in a forward pass"),
        (lambda: nn.Embedding(2, 3), "index out of range"),
    ):
        with pytest.raises(UserError, match=words):
            worded(embedded(client, 3))
    own = worded(EMBEDDINGS["bare"])
    odd = replace(own.data[0], inputs=TOKENS + 0.5)
    with pytest.raises(UserError, match="takes whole numbers"):
        own.problem.samples(odd, np.arange(2))


def test_the_last_layers_hold_a_matrix_that_an_earlier_one_shares() -> None:
    """The shared matrix lies first in theta_c. Mutation: where the last layer's other neighbours begin."""
    for count in (1, 2, 3):
        of = method(HERON, training(worded(EMBEDDINGS["tied"])), exact_layers=count, head_gradient="exact")
        assert of.rule.parts[1].start == 0
