"""SplitFed (SFLV1, SFLV2) is training of the whole network; CSE-FSL too where its head is the server."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    RULES,
    SGD,
    SIZES,
    apart,
    batches,
    close,
    fedavg,
    flat,
    interleaved,
    is_whole,
    method,
    resnet,
    run,
    same,
    seeded,
    seeded_flat,
    setting,
    small,
    statistics,
    torchs,
    training,
    twins,
    whole_of,
)
from zofl_mpi.engine.streams import Streams
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser


@pytest.mark.parametrize("cls", [SFLV1, SFLV2])
def test_splitfed_leaves_the_head_and_obeys_freeze(cls: Any) -> None:
    """In float32: the mean of equal numbers is that number; in float64 it is so to rounding."""
    of = method(cls, training(setting(dtype="float32")))
    n, start, found = of.setting.problem.n_client, of.start(), run(of, 2)
    assert torch.equal(found.theta[n:], start.theta[n:]) and (found.theta[:n] != start.theta[:n]).any()
    found = run(method(cls, training(setting(dtype="float32"), freeze="client")), 2)
    assert torch.equal(found.theta, start.theta) and apart(found.theta_s, start.theta_s)


def returning() -> Streams:
    """With --beta 0.6 some client takes part in round 0, rests in round 1, and is back in round 2."""
    own = setting(small)
    for seed in range(100):
        plan = training(replace(own, streams=Streams(seed)), beta=0.6)
        zero, one, two = (plan.participants(r) for r in range(3))
        if set(zero) & set(two) - set(one):
            return Streams(seed)
    raise AssertionError


@pytest.mark.parametrize("beta", [1.0, 0.6])
@pytest.mark.parametrize("state", ["keep", "reset", "average"])
@RULES
def test_sflv1_is_fedavg_on_the_unsplit_network(rule: Optimiser, state: str, beta: float) -> None:
    """To rounding, BatchNorm included; in turns or client by client.

    Mutations: the server's replicas are one; their moments lost, or kept; the gradient at the cut after the server's
    step; uniform weights; a replica's running statistics not averaged; moments of who rests lost; moments averaged at
    one side only; the number of steps rounded, or the largest.
    """
    own = replace(setting(), streams=returning())
    plan = training(own, rule, state=state, beta=beta)
    found = run(method(SFLV1, plan), 4)
    net = fedavg(plan, resnet, 4, (0, 1, 2))
    is_whole(found, own, net, 1e-9)
    assert apart(flat(net), flat(whole_of(resnet)))
    again = run(method(SFLV1, replace(plan, order="client_major")), 4)
    assert same(found, again)
    if rule is not SGD:
        for another in {"keep", "reset", "average"} - {state}:
            other = run(method(SFLV1, replace(plan, state=another)), 4)
            assert apart(found.theta, other.theta) and apart(found.theta_s, other.theta_s)


@RULES
def test_sflv1_does_not_depend_on_the_cut(rule: Optimiser) -> None:
    found = []
    for cut in (0, 1):
        own = setting(lambda cut=cut: resnet(cut))
        state = run(method(SFLV1, training(own, rule)), 2)
        found.append(torch.cat([state.theta[: own.problem.n_client], state.theta_s]))
    assert len(found[0]) == len(found[1])
    close(*found, 1e-9)


@RULES
def test_sflv2_with_one_client_is_plain_training(rule: Optimiser) -> None:
    """Mutations: the server's gradient at the cut after its own step; its moments lost between rounds."""
    own = setting(clients=(2,))
    plan = training(own, rule)
    state = run(method(SFLV2, plan), 3)
    is_whole(state, own, fedavg(plan, resnet, 3, (0,)), 1e-9)


@RULES
def test_with_one_client_sflv1_is_sflv2_to_the_bit(rule: Optimiser) -> None:
    one, two = (run(method(cls, training(setting(clients=(1,)), rule)), 3) for cls in (SFLV1, SFLV2))
    assert same(one, two) and (one.server_steps, one.server_loss) == (two.server_steps, two.server_loss)


@RULES
def test_sflv2_is_a_loop_by_hand(rule: Optimiser) -> None:
    """Three clients, one server part, in turns. Mutations: a server part each; server steps after all of a turn."""
    own = setting()
    plan = training(own, rule)
    found = run(method(SFLV2, plan), 1)
    net = whole_of(resnet)
    top, clients = net[1], [copy.deepcopy(net[0]) for _ in SIZES]
    rules = [torchs(part, rule, 0.05) for part in (top, *clients)]
    turns = [list(batches(plan, i, 0)) for i in range(3)]
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


@RULES
def test_sflv1_with_constant_statistics_is_fedavg_in_evaluation_mode(rule: Optimiser) -> None:
    """Mutation: gradients through the batch's statistics."""
    own = setting()
    plan = training(own, rule, batchnorm="running")
    net = fedavg(plan, resnet, 3, (0, 1, 2))
    is_whole(run(method(SFLV1, plan), 3), own, net, 1e-9)


@RULES
def test_cse_fsl_with_the_server_as_its_head_is_sflv2(rule: Optimiser) -> None:
    """One client, k = 1: theta_a is theta_s for ever. Mutations: a head that does not step; uploads after a step."""
    cse, sfl = (run(method(cls, training(setting(twins, (2,)), rule)), 3) for cls in (CSEFSL, SFLV2))
    n = sum(p.numel() for p in seeded(twins)[0].parameters())
    close(cse.theta[n:], cse.theta_s)
    close(cse.theta[:n], sfl.theta[:n])
    close(cse.theta_s, sfl.theta_s)
    close(cse.buffers_s, sfl.buffers_s)
    assert apart(cse.theta_s, seeded_flat(twins))
