"""--merge: the server takes one step on the uploads of several clients."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    RULES,
    SIZES,
    SPLIT,
    STEPS_OF,
    STREAMS,
    C,
    Parts,
    apart,
    batches,
    close,
    flat,
    interleaved,
    method,
    mlp,
    named,
    put,
    resnet,
    run,
    setting,
    statistics,
    torchs,
    training,
    whole_of,
)
from tests.numerics.test_split_pace import sizes
from zofl_mpi.engine import mean
from zofl_mpi.engine.sharing import PassResult, SharedServerStep
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.rounds.split.messages import Smashed
from zofl_mpi.rounds.split.server import Server


def merged(r: int, size: int) -> list[list[tuple[int, int]]]:
    """The (i, q) of each of the server's steps in round r."""
    found = []
    for q in range(max(STEPS_OF)):
        turn = [one for one in interleaved(r) if one[1] == q]
        found += [turn[k : k + size] for k in range(0, len(turn), size)]
    return found


def scalar() -> Parts:
    """A client that hands on two pixels' means, and a server of a 2 x 3 matrix."""
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(2, 2, bias=False))
    return client, nn.Linear(2, C), nn.Linear(2, C, bias=False)


def test_a_step_on_two_uploads_by_the_formula_of_softmax_regression() -> None:
    """W - gamma/2 sum_i (1/B) (softmax(W s_i) - e_y)^T s_i, and the gradient W^T (softmax - e_y)/B of each client's own
    loss at the cut, both at W. Mutations: the sum for the mean; the second gradient after a step on the first; what
    returns divided by G, or that of the mean loss; running on with one upload more."""
    own = setting(scalar)
    plan = training(own, Optimiser("sgd"), merge=2)
    of = method(SFLV2, plan)
    state = of.start()
    server, W = of.server(state, 0), state.theta_s.view(C, 2).numpy().copy()
    s = [STREAMS(Purpose.SYNTHETIC, i=i).standard_normal((4, 2)) for i in range(2)]
    y = [np.array([0, 1, 2, 0]), np.array([2, 2, 1, 0])]
    g, slopes = [], []
    for i in range(2):
        logits = s[i] @ W.T
        residual = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(C)[y[i]]) / 4
        g.append(residual.T @ s[i])
        slopes.append(residual @ W)
        server.step(i, Smashed(torch.from_numpy(s[i]), torch.from_numpy(y[i])), returned=True)
        assert server.steps == i
    for i in range(2):
        close(server.slopes[i], torch.from_numpy(slopes[i]))
    close(server.theta.view(C, 2), torch.from_numpy(W - 0.05 * (g[0] + g[1]) / 2))
    assert server.steps == 1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@RULES
def test_sflv2_is_a_loop_by_hand(rule: Optimiser, size: int) -> None:
    """Three clients, one server part, with BatchNorm, in an order drawn by the round; the last groups of merged steps
    smaller. One client in several rounds: tests/numerics/test_split_pace.py. Mutations: a server part each; server
    steps after all of a turn; the gradient at the cut after the server's step; a group across q; statistics of the last
    pass, or of one pass after the other; no step on the rest; groups by number of client."""
    own = setting()
    plan = training(own, rule, merge=size)
    found = run(method(SFLV2, plan), 1)
    net = whole_of(resnet)
    top, clients = net.get_submodule("1"), [copy.deepcopy(net.get_submodule("0")) for _ in SIZES]
    rules = [torchs(part.parameters(), rule, 0.05) for part in (top, *clients)]
    turns = [list(batches(plan, i, 0)) for i in range(3)]
    losses = []
    for group in merged(0, size):
        gradients, after, before = [], [], statistics(top).clone()
        losses.append(0.0)
        for i, q in group:
            x, labels = turns[i][q]
            put(top, flat(top), before)
            top.zero_grad()
            rules[1 + i].zero_grad()
            loss = cross_entropy(top(clients[i](x)), labels)
            loss.backward()
            rules[1 + i].step()
            losses[-1] += float(loss.detach()) / len(group)
            gradients.append([p.grad.clone() for p in top.parameters() if p.grad is not None])
            after.append(statistics(top).clone())
        for p, *g in zip(top.parameters(), *gradients, strict=True):
            p.grad = sum(g) / len(g)
        put(top, flat(top), sum(after) / len(after))
        rules[0].step()
    close(found.theta_s, flat(top), 1e-9)
    close(found.buffers_s, statistics(top), 1e-9)
    mean_client = sum(size_ / 31 * flat(part) for size_, part in zip(SIZES, clients, strict=True))
    close(found.theta[: own.problem.n_client], mean_client, 1e-9)
    assert found.server_steps == len(losses) and found.server_loss == pytest.approx(np.mean(losses), rel=1e-9)
    assert size == 1 or apart(found.theta_s, run(method(SFLV2, replace(plan, merge=1)), 1).theta_s)


def unaligned(self: FSLSAGE, main: Server, recent: Any, heads: dict[str, Tensor], i: int) -> float:
    """A client's head as it was made: its alignment would take steps, too."""
    heads[str(i)] = self.problem.client_side.initial()[0][self.problem.n_client :]
    return 0.0


@pytest.mark.parametrize("cls", [cls for cls in SPLIT if cls is not SFLV1])
@pytest.mark.parametrize("size", [2, 3])
def test_the_server_steps_on_the_same_groups_in_every_method(
    monkeypatch: pytest.MonkeyPatch, cls: Any, size: int
) -> None:
    """FSL-SAGE with a round that aligns. Mutations: the first uploads of such a round in no group of theirs; groups
    that go on through a round."""
    own = named()
    of, groups, seen = method(cls, training(own, merge=size)), [], []
    step, met = Optimiser.step, Server.step

    def meets(self: Server, i: int, item: Any, returned: bool = False) -> None:
        seen.append(int(item.labels[0]))
        met(self, i, item, returned)

    def steps(self: Optimiser, theta: Tensor, *more: Any) -> None:
        if theta.shape == (own.problem.server_side.n,) and seen:
            groups.append(list(seen))
            seen.clear()
        step(self, theta, *more)

    monkeypatch.setattr(Server, "step", meets)
    monkeypatch.setattr(Optimiser, "step", steps)
    monkeypatch.setattr(FSLSAGE, "align", unaligned)
    for r in (0, 1):
        groups.clear()
        state = run(of, 1, r)
        first = {(i, q): int(own.data[i].rows[b][0]) for i in range(3) for q, b in enumerate(of.training.batches(i, r))}
        assert groups == [[first[one] for one in group] for group in merged(r, size)]
        assert state.server_steps == len(groups) == of.training.server_steps(r)


@pytest.mark.parametrize("k", [1, 2])
def test_the_size_of_a_step_follows_the_merged_steps_of_all_rounds(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    """Two of three clients a round. Mutations: uploads counted for steps; this round's participants for an earlier
    one's; every upload where every second goes up."""
    pace = Pace("linear", warmup=3, decay_steps=11, decay_steps_server=23)
    plan = training(setting(mlp), beta=0.6, k=k, pace=pace, merge=2)
    taken = sizes(monkeypatch, CSEFSL, plan, 4)[plan.problem.server_side.n]
    asked = [plan.participants(r) for r in range(4)]
    count = sum(max(-(-STEPS_OF[i] // k) for i in to) for to in asked)  # two are one step, one too
    assert taken == [pace.server(0.05, t) for t in range(count)]
    assert len(set(map(tuple, asked))) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_tensors_has_the_bits_of_the_mean_of_replies(dtype: torch.dtype) -> None:
    """In any order; a step on one upload keeps its term. Mutations: a sum in float64; rounding towards zero; a quantum
    of the first tensor alone; the mean of one."""
    drawn = STREAMS(Purpose.SYNTHETIC, r=3).standard_normal((5, 257)) * 10.0 ** np.arange(-9, 6, 3)[:, None]
    values = [torch.from_numpy(row).to(dtype) for row in drawn]
    expected = mean.of_replies(((i, Smashed(v, v[:0])) for i, v in enumerate(values)), range(len(values))).s
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        assert torch.equal(mean.of_tensors([values[k] for k in order]), expected)
    assert mean.of_tensors([values[0][:0]] * 2).shape == (0,)
    alone, term = SharedServerStep(), torch.tensor([1.0, 1e-30], dtype=dtype)
    alone.begin(lambda message: lambda item: PassResult((item,), None), None)
    alone.add(term)
    assert torch.equal(alone.end()[0][0], term) and not torch.equal(mean.of_tensors([term]), term)


def test_merging_is_refused_where_no_uploads_meet() -> None:
    """Mutations: accepted; a message that names another flag."""
    with pytest.raises(UserError, match="--merge 2: with --order client_major"):
        training(setting(mlp), merge=2, order="client_major")
    with pytest.raises(UserError, match=r"--merge 2: .*each client's replica"):
        method(SFLV1, training(setting(mlp), merge=2))
    with pytest.raises(UserError, match=r"--merge 2: .*no meaning"):
        method(DeComFL, training(setting(mlp), h=1, merge=2))


def test_an_upload_whose_gradient_is_not_finite_is_named_by_its_client() -> None:
    """Mutation: the place in the group for the client."""
    plan = training(setting(mlp), merge=2)
    of = method(SFLV2, plan)
    server = of.server(of.start(), 0)
    labels = torch.zeros(2, dtype=torch.int64)
    server.step(2, Smashed(torch.ones(2, 4, dtype=torch.float64), labels))
    with pytest.raises(UserError, match="client 1: the server's gradient on its upload is not finite"):
        server.step(1, Smashed(torch.full((2, 4), math.nan, dtype=torch.float64), labels))
