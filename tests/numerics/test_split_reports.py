"""Reports and costs of the split methods: the whole network scored, the bytes announced and counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    ALL,
    LABELS,
    PIXELS,
    SIDE,
    batches,
    method,
    mlp,
    put,
    resnet,
    run,
    seeded,
    setting,
    training,
    vectors,
    whole_of,
)
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.run.local import LocalClients


@pytest.mark.parametrize("cls", ALL)
def test_a_report_is_of_the_whole_network_in_evaluation_mode(cls: Any) -> None:
    """29 test samples over 3 clients. Mutations: batch statistics; the head's logits; a mean of means."""
    of = method(cls, training(setting()))
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 2, clients=clients)
    told = of.evaluate(state, 1, clients)
    net, n = whole_of(resnet).eval(), of.setting.problem.n_client
    put(net, torch.cat([state.theta[:n], state.theta_s]), torch.cat([state.buffers, state.buffers_s]))
    rows = of.setting.test.rows
    with torch.no_grad():
        logits = net(torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE))
    labels = torch.from_numpy(LABELS[rows])
    assert told.test_loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-12)
    assert told.test_accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()), rel=1e-12)
    before = vectors(state)
    assert all(torch.equal(before[name], value) for name, value in vectors(state).items())


@pytest.mark.parametrize("beta", [1.0, 0.6])
@pytest.mark.parametrize("cls", [HERON, CSEFSL, FSLSAGE])
def test_the_local_loss_is_the_mean_over_clients_and_their_local_steps(cls: Any, beta: float) -> None:
    """In plain torch, of clients that do not step: 2, 3 and 4 batches. FSL-SAGE with and without an alignment.

    Mutations: a sum over clients or steps in place of either mean; a mean over all batches, or over clients that rest.
    """
    flags = {"align_epochs": 0} if cls is FSLSAGE else {}
    of = method(cls, training(setting(mlp), lr_client=0.0, beta=beta), **flags)
    client, head, _ = (part.double() for part in seeded(mlp))
    for r in (0, 1):
        losses = []
        for i in of.training.participants(r):
            with torch.no_grad():
                each = [float(cross_entropy(head(client(x)), labels)) for x, labels in batches(of.training, i, r)]
            losses.append(np.mean(each))
        assert len(losses) == (3 if beta == 1 else 2)
        assert run(of, 1, r).local_loss == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("kind", ["float32", "float64", "bf16", "some"])
def test_the_plan_announces_the_bytes_that_are_counted(cls: Any, kind: str) -> None:
    """Mutations: 4 bytes for float64, or for bfloat16; a client 0 that rests; the head in SplitFed's messages."""
    own = setting(dtype="float64" if kind == "float64" else "float32", bf16=kind == "bf16")
    flags = {"beta": 0.3} if kind == "some" else {}
    flags |= {} if cls in (SFLV1, SFLV2) else {"k": 2}
    of = method(cls, training(own, **flags))
    start = 1 if cls is FSLSAGE else 0
    to = of.training.participants(0)
    start = next(r for r in range(start, 50) if of.training.participants(r) == to and (r % 10 or cls is not FSLSAGE))
    clients = LocalClients(list(own.data), method=of)
    state = run(of, 1, start, clients)
    row, plan = clients.ledger.row(np.zeros((1, 0, 5))), of.plan(1)
    assert plan["bytes down and up, all clients, a round"] == row.bytes_down.sum() + row.bytes_up.sum()
    assert plan["bytes of labels, all clients, a round"] == state.label_bytes
    if 0 in to:
        assert plan["bytes down, client 0, a round"] == row.bytes_down[:, 0].sum()
        assert plan["bytes up, client 0, a round"] == row.bytes_up[:, 0].sum()
    else:
        whole = method(cls, training(own, **{**flags, "beta": 1.0})).plan(1)
        for line in ("bytes down, client 0, a round", "bytes up, client 0, a round"):
            assert plan[line] == whole[line]
    if cls is FSLSAGE:
        clients = LocalClients(list(own.data), method=of)
        run(of, 1, 0, clients)
        aligned = clients.ledger.row(np.zeros((1, 0, 5))).bytes_down.sum()
        further = (aligned - row.bytes_down.sum()) / len(to)
        assert plan["further bytes down, each client, every 10 rounds"] == further


@pytest.mark.parametrize("cls", [HERON, CSEFSL, SFLV2, FSLSAGE])
def test_a_model_that_is_not_finite_ends_the_run_in_a_sentence(cls: Any) -> None:
    """The server's part, or a client's, whichever is found first."""
    with pytest.raises((UserError, ClientError), match="not finite"):
        run(method(cls, training(setting(mlp), Optimiser("sgd", weight_decay=1e10), lr_server=1e300)), 2)
