"""FSL-SAGE: heads that are aligned with the server's gradient at the cut."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    RULES,
    SIZES,
    STEPS_OF,
    Make,
    apart,
    batches,
    close,
    flat,
    interleaved,
    method,
    mlp,
    named,
    put,
    run,
    same,
    seeded,
    setting,
    training,
    twins,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fsl_sage import FSLSAGE, Head
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.messages import Model
from zofl_mpi.rounds.split.rules import Backprop
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.loop.local import LocalClients


def sage(plan: Training, **flags: Any) -> FSLSAGE:
    return method(FSLSAGE, plan, **{"align_epochs": 5, "align_lr": 0.05, **flags})  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [lambda: mlp(True), twins], ids=["mlp", "resnet"])
def test_a_head_that_is_the_server_is_a_zero_of_the_alignment_loss(make: Make) -> None:
    """Even where the buffer is larger than a batch. Mutation: target and estimate as means over different numbers."""
    of = sage(training(setting(make), lr_server=0.0), l=1, buffer=9)
    first = run(of, 1)
    assert first.alignment_loss < 1e-25
    n = of.setting.problem.n_client
    for head in first.heads.values():
        close(head, of.start().theta[n:], 1e-9)
    assert {int(i): len(kept) for i, kept in first.smashed.items()} == {i: min(9, SIZES[i]) for i in range(3)}


def test_the_alignment_loss_is_the_distance_of_the_gradients_at_the_cut() -> None:
    """By hand, for the first uploads. Mutations: sum over samples for mean; the head's gradient; a moved server."""
    of = sage(training(setting(mlp), lr_server=0.0))
    client, head, server = (part.double() for part in seeded(mlp))
    expected = []
    for i in range(3):
        x, labels = next(batches(of.training, i, 0))
        s = client(x).detach().requires_grad_()
        slopes = [torch.autograd.grad(cross_entropy(part(s), labels), s)[0] for part in (head, server)]
        expected.append(float((slopes[0] - slopes[1]).square().sum()))
    assert run(of, 1).alignment_loss == pytest.approx(np.mean(expected), rel=1e-12)


def test_rounds_between_alignments_step_with_the_aligned_heads() -> None:
    """Rounds 1 and 2 in plain torch, each client with the head that round 0 aligned for it. Mutations: the first head
    in rounds that do not align, from the first on or from the second; that of another client; aligned in
    every round; trained on the local loss; averaged; one head for all."""
    of = sage(training(setting(mlp), Optimiser("sgd"), lr_client=0.3), l=3, align_lr=0.5)
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 1, clients=clients)
    n = of.setting.problem.n_client
    for r in (1, 2):
        expected, heads = torch.zeros(n, dtype=torch.float64), []
        for i in range(3):
            client, head, _ = (part.double() for part in seeded(mlp))
            put(client, state.theta[:n], torch.zeros(0))
            put(head, state.heads[str(i)], torch.zeros(0))
            heads.append(flat(head))
            rule = torch.optim.SGD(client.parameters(), 0.3)
            for x, labels in batches(of.training, i, r):
                rule.zero_grad()
                cross_entropy(head(client(x)), labels).backward()
                rule.step()
            expected += SIZES[i] / sum(SIZES) * flat(client)
        assert all(apart(a, b) for a, b in pairwise([of.start().theta[n:], *heads]))
        state = run(of, 1, r, clients, state)
        close(state.theta[:n], expected)


@pytest.mark.parametrize("start", [0, 1])
def test_the_newest_uploads_are_kept(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    """Samples and labels, in their order, of two rounds of which one aligns or none; some clients upload fewer.
    Mutations: the oldest; the last upload alone; samples of one upload beside labels of another."""
    own = named()
    of = sage(training(own), l=100, buffer=9)
    met: dict[int, torch.Tensor] = {}
    step = Server.step

    def seen(self: Server, i: int, item: Any) -> None:
        met.update(zip(item.labels.tolist(), item.s.clone(), strict=True))
        step(self, i, item)

    monkeypatch.setattr(Server, "step", seen)
    clients = LocalClients(list(own.data), method=of)
    state, labels = None, list[Any]([[], [], []])
    for r in (start, start + 1):
        state = run(of, 1, r, clients, state)
        for i, data in enumerate(own.data):
            labels[i] += [data.rows[k] for b in of.training.batches(i, r) for k in b]
            assert state.labels[str(i)].tolist() == labels[i][-9:]
            assert torch.equal(state.smashed[str(i)][-4:], torch.stack([met[k] for k in labels[i][-4:]]))


@pytest.mark.parametrize("order", ["interleave", "client_major"])
def test_sage_aligns_with_the_server_after_the_first_uploads(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """On the first batch, uploaded before. The client's steps then use the new head. Mutations: alignment before the
    server's step; the old head for the first local step."""
    of = sage(training(setting(mlp), order=order))
    seen: list[tuple[int, int]] = []
    kept = FSLSAGE.align

    def watched(self: FSLSAGE, main: Server, recent: Any, heads: Any, i: int) -> float:
        seen.append((i, main.steps))
        return kept(self, main, recent, heads, i)

    monkeypatch.setattr(FSLSAGE, "align", watched)
    run(of, 1)
    turn = [i for i, _ in interleaved(0)[:3]]
    assert seen == ([(i, 3) for i in turn] if order == "interleave" else [(0, 1), (1, 3), (2, 6)])
    client = Client(0, of.setting.data[0])
    start = of.start()
    n = of.setting.problem.n_client
    of.first(client, Model(start.theta[:n], start.buffers, 0))
    head = torch.full((len(start.theta) - n,), 0.5, dtype=torch.float64)
    local = client.scratch["model"]
    uploads = list(of.rest(client, Head(head)))
    assert len(uploads) == STEPS_OF[0] - 1
    assert torch.equal(local.theta[n:], head) and torch.equal(client.memory["head"], head)


def test_the_first_upload_of_an_aligning_round_leaves_no_second_trace() -> None:
    """With heads that do not move, an aligning round is one that does not align. Mutation: statistics moved twice."""
    found = [run(sage(training(setting()), align_epochs=0, l=k), 1, start=1) for k in (1, 100)]
    assert same(*found)
    assert (found[0].local_loss, found[0].server_loss) == (found[1].local_loss, found[1].server_loss)


@RULES
def test_sage_whose_head_is_copied_from_the_server_is_sflv2(monkeypatch: pytest.MonkeyPatch, rule: Optimiser) -> None:
    """One client, BatchNorm: theta_s before each batch. Mutation: the copy after the server's step."""
    servers: list[Server] = []
    made, forward = Server.__init__, Backprop.forward

    def make(self: Server, *given: Any) -> None:
        made(self, *given)
        servers.append(self)

    def copied(self: Backprop, local: LocalSteps, *given: Any) -> Any:
        if not local.loss.at_cut:
            local.theta[local.problem.n_client :] = servers[-1].theta
        return forward(self, local, *given)

    sfl = run(method(SFLV2, training(setting(twins, (2,)), rule)), 2, start=1)
    monkeypatch.setattr(Server, "__init__", make)
    monkeypatch.setattr(Backprop, "forward", copied)
    found = run(method(FSLSAGE, training(setting(twins, (2,)), rule), l=100), 2, start=1)
    n = setting(twins).problem.n_client
    close(found.theta[:n], sfl.theta[:n])
    close(found.theta_s, sfl.theta_s)
    close(found.buffers_s, sfl.buffers_s)


@pytest.mark.parametrize("freeze", ["client", "auxiliary"])
def test_frozen_parts_are_refused(freeze: Any) -> None:
    """Heads do not train at clients. Mutation: a flag without effect that is taken."""
    with pytest.raises(UserError, match=f"--freeze {freeze}: must be none"):
        method(FSLSAGE, training(setting(mlp), freeze=freeze))
