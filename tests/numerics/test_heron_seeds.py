"""HERON-SFL with --uplink seeds: the server takes the clients' steps again, to the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.numerics.split_methods import SGD, STEPS_OF, apart, method, run, same, setting, training
from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split.messages import Model, Scalars
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.run.client_memory import Acknowledged, recall
from zofl_mpi.run.local import LocalClients

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
    own = setting(dtype=dtype)
    plan = training(own, **{"rule": Optimiser(), **flags})
    dense, seeds = (method(HERON, plan, **estimate, uplink=uplink) for uplink in ("dense", "seeds"))
    expected, found = run(dense, 4), run(seeds, 4)
    assert same(found, expected) and apart(found.theta, seeds.start().theta)
    assert (found.local_loss, found.server_loss) == (expected.local_loss, expected.server_loss)
    kept = plan.state == "keep"
    assert bool(found.replayed) == kept and not expected.replayed
    clients = LocalClients(list(own.data), method=seeds)
    state = run(seeds, 3, clients=clients)
    for i, moments in state.replayed.items():
        ((_, told),) = clients.ask(recall, Acknowledged(), to=[int(i)], counted=False)
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
    of = method(HERON, training(setting(), rule), n_p=3, estimate=estimate, uplink=uplink)
    client, start = Client(2, of.setting.data[2]), of.start()
    main = Server.of(of.training, start, 0)
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
    of = method(HERON, training(setting()), uplink="seeds")
    told = Scalars(np.zeros((2, 1)), of.start().buffers, torch.zeros(0), "cpu with other instructions")
    with pytest.raises(UserError, match="client 1 computes on cpu with other instructions, the server on cpu with "):
        of.replay(of.start(), 0, 1, told)
    with pytest.raises(UserError, match="--uplink seeds: --estimate exact"):
        method(HERON, training(setting()), uplink="seeds", estimate="exact")


def test_a_client_whose_replayed_model_is_not_finite_is_named() -> None:
    of = method(HERON, training(setting(), lr_client=1e300), uplink="seeds", mu=0.1)
    with pytest.raises(UserError, match=r"client \d: Update.theta is not finite"):
        run(of, 3)
