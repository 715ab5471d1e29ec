"""DeComFL: scalars make every model, the server's and the clients'; with one client it is MeZO."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.numerics import test_split_texts as texts
from tests.numerics.split_methods import (
    SGD,
    SIZES,
    apart,
    batches,
    close,
    flat,
    method,
    mlp,
    put,
    resnet,
    run,
    same,
    setting,
    training,
    whole_of,
)
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.decomfl import DeComFL, Missed
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.method import check_arithmetic
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run import flags
from zofl_mpi.run.client_memory import Acknowledged, recall
from zofl_mpi.run.local import LocalClients

PLAIN = Optimiser("sgd")
RULES = pytest.mark.parametrize("rule", [PLAIN, SGD, Optimiser("adamw", weight_decay=0.1)], ids=["sgd", "m", "adamw"])
SOURCES = pytest.mark.parametrize("make", [mlp, resnet, None], ids=["mlp", "resnet", "texts"])


def planned(own: Any, rule: Optimiser = PLAIN, **given: Any) -> Training:
    return training(own, rule, **{"h": 2, "lr_client": 0.05, **given})


def of(plan: Training, **given: Any) -> DeComFL:
    return method(DeComFL, plan, **given)  # type: ignore[no-any-return]


def source(make: Any, **given: Any) -> Any:
    return texts.setting() if make is None else setting(make, **given)


def joined(method: DeComFL, state: Any) -> Tensor:
    return torch.cat([state.theta[: method.setting.problem.n_client], state.theta_s])


def directions(method: DeComFL, r: int, q: int = 0) -> list[Tensor]:
    like = joined(method, method.start())
    return list(drawn(method.key(r, q)(Purpose.DIRECTION), like, method.n_p, method.distribution))


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@RULES
def test_one_client_and_one_step_a_round_are_mezo(rule: Optimiser, estimate: Any) -> None:
    """A loop by hand on the whole network, the parameters moved in place; three rounds, two directions.

    Mutations: directions of the client's part alone; a sign; n_p, 2 or mu missing in the scale; local steps that stay
    beside the round's; the loss of the auxiliary head.
    """
    own = setting(mlp, clients=(2,))
    plan = planned(own, rule, h=1)
    mezo = of(plan, n_p=2, mu=1e-3, estimate=estimate)
    found = run(mezo, 3)
    net = whole_of(mlp)
    x, memory = flat(net), dict[str, Any]()

    def loss(at: Tensor, inputs: Tensor, labels: Tensor) -> float:
        put(net, at, torch.zeros(0))
        with torch.no_grad():
            return float(cross_entropy(net(inputs), labels))

    for r in range(3):
        inputs, labels = next(batches(plan, 0, r))
        g = torch.zeros_like(x)
        for z in directions(mezo, r):
            other = loss(x - 1e-3 * z, inputs, labels) if estimate == "central" else loss(x, inputs, labels)
            slope = (loss(x + 1e-3 * z, inputs, labels) - other) / (2e-3 if estimate == "central" else 1e-3)
            g += slope / 2 * z
        rule.step(x, g, memory, 0.05)
    close(joined(mezo, found), x, 1e-10)
    n = own.problem.n_client
    assert torch.equal(found.theta[n:], mezo.start().theta[n:]) and apart(x, flat(whole_of(mlp)))


def test_a_step_is_the_projection_of_the_gradient() -> None:
    """On the mean loss of all clients, to O(mu^2): their scalars' mean is the mean loss's derivative.

    Mutations: directions of each client's own; weights of the clients forgotten.
    """
    plan = planned(setting(mlp), h=1, batch=6, weights="size")
    central = of(plan, mu=1e-4, estimate="central", n_p=3, distribution="sphere")
    start = central.start()
    net = whole_of(mlp)
    total = torch.zeros(len(flat(net)), dtype=torch.float64)
    for i, size in enumerate(SIZES):
        net.zero_grad()
        inputs, labels = next(batches(plan, i, 0))
        cross_entropy(net(inputs), labels).backward()
        total += size / sum(SIZES) * torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
    moved = (joined(central, run(central, 1)) - joined(central, start)) / -0.05
    expected = sum(len(u) * (u @ total) * u for u in directions(central, 0)) / 3
    close(moved, torch.as_tensor(expected), 1e-6)
    assert float(moved.norm()) > 0.1


@SOURCES
def test_the_scalars_of_equal_clients_are_those_of_one(make: Any) -> None:
    """Each mini-batch is all data, in an order of the client's own. Mutation: a sum for the mean."""
    own = source(make)
    data = own.data[0]
    one, three = (replace(own, data=(data,) * count) for count in (1, 3))
    alone, together = (of(planned(each, batch=6, h=3), n_p=2) for each in (one, three))
    found, same_found = run(alone, 2), run(together, 2)
    close(joined(alone, found), joined(together, same_found), 1e-9)
    np.testing.assert_allclose(found.scalars, same_found.scalars, rtol=1e-6, atol=1e-12)
    assert apart(joined(alone, found), joined(alone, alone.start()))


@RULES
@pytest.mark.parametrize(
    ("make", "dtype"), [(mlp, "float32"), (resnet, "float32"), (resnet, "float64"), (None, "float64")]
)
def test_a_client_that_has_rested_makes_the_servers_model_of_what_it_missed(
    make: Any, rule: Optimiser, dtype: str
) -> None:
    """To the bit, moments too, whenever it comes back: some clients rest, some begin late.

    Mutations: its own last steps kept; a round missed or taken twice; the step sizes of another round; moments of the
    local steps; scalars of its own in place of the means.
    """
    own = source(make) if make is None else source(make, dtype=dtype)
    pace = Pace("linear", warmup=2, decay_steps=13)
    rested = of(planned(own, rule, beta=0.4, pace=pace), n_p=2)
    clients = LocalClients(list(own.data), method=rested)
    state, missed = rested.start(), set[int]()
    for r in range(6):
        before = state
        state = run(rested, 1, r, clients, state)
        (i,) = rested.training.participants(r)
        missed.add(r - rested.training.latest(r).get(i, 0))
        ((_, told),) = clients.ask(recall, Acknowledged(), to=[i], counted=False)
        assert torch.equal(torch.as_tensor(told.entries["x"]), joined(rested, before)), r
        for name, value in before.optimiser.items():
            assert torch.equal(torch.as_tensor(told.entries["own"][name]), torch.as_tensor(value)), (r, name)
    assert len(missed - {0}) > 1 and max(missed) > 1
    assert state.scalars.shape == (6, 2, 2) and np.isfinite(state.local_loss)
    assert apart(joined(rested, state), joined(rested, rested.start()))


@SOURCES
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_bytes_are_the_scalars_of_the_rounds_that_were_missed(make: Any, beta: float) -> None:
    """8 h n_p up, and as much down for each round since the last; BatchNorm's statistics both ways; 8 for r and loss.

    --dry-run tells the same. Mutations: the scalars of the last round alone; those before the first participation
    left out; a model that travels.
    """
    own = source(make)
    scalar = of(planned(own, beta=beta, h=3), n_p=2)
    clients = LocalClients(list(own.data), method=scalar)
    state, last, total = scalar.start(), dict[int, int](), 0
    statistics = 8 * (own.problem.local.b + own.problem.top.b)
    for r in range(5):
        to = scalar.training.participants(r)
        state = run(scalar, 1, r, clients, state)
        row, _ = clients.account()
        down, up = row.bytes_down.sum(axis=0), row.bytes_up.sum(axis=0)
        expected = {i: (8 * 3 * 2 * (r - last.get(i, 0)) + statistics + 8, 8 * 3 * 2 + statistics + 8) for i in to}
        assert {i: (int(down[i]), int(up[i])) for i in range(3)} == {i: expected.get(i, (0, 0)) for i in range(3)}
        total += sum(sum(ways) for ways in expected.values())
        last |= dict.fromkeys(to, r)
        line = str(scalar.plan(r + 1)[f"GiB in {r + 1} rounds: all but labels"])
        assert float(line.split("(")[1].split()[0]) * (r + 1) * 2**30 == pytest.approx(total, rel=1e-4)
    assert scalar.plan(1)["further bytes down, a client, for each round since its last"] == 48


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@pytest.mark.parametrize("make", [mlp, resnet], ids=["mlp", "resnet"])
def test_the_passes_of_a_step_are_those_that_are_told(
    monkeypatch: pytest.MonkeyPatch, make: Any, estimate: Any
) -> None:
    """No graph; BatchNorm's statistics move in one of them. Mutations: a gradient; statistics that stay."""
    own = setting(make)
    scalar = of(planned(own), n_p=3, estimate=estimate)
    seen: list[bool] = []
    smash = type(own.problem).smash

    def counted(self: Any, inputs: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return smash(self, inputs)

    monkeypatch.setattr(type(own.problem), "smash", counted)
    start = scalar.start()
    buffers = torch.cat([start.buffers, start.buffers_s])
    told = scalar.train(Client(1, own.data[1]), Missed(start.scalars, buffers, 0))
    assert seen == [False] * (2 * scalar.passes)
    assert scalar.passes == {"one-sided": 4, "central": 6 + (make is resnet)}[estimate]
    lines = scalar.plan(1)
    assert lines["forward passes of a local step"] == scalar.passes and lines["backward passes of a local step"] == 0
    assert told.differences.shape == (2, 3)
    if make is resnet:
        assert apart(told.buffers, buffers)


def test_costs_are_those_of_the_whole_network() -> None:
    """Mutations: the head's products; the client's alone; the memory of a pass through the head."""
    own = setting(mlp)
    costs = of(planned(own)).costs()
    products = 64 * 4 + 4 * 5 + 5 * 3
    assert costs["multiply-accumulates of a sample at the client"] == products
    assert costs["multiply-accumulates of a client's step"] == 2 * 4 * products
    assert float(costs["peak bytes of a client's step, beyond its model"]) >= 4 * 8 * (64 + 5 + 5)


def test_a_run_goes_on_from_state_and_memories() -> None:
    """As a checkpoint keeps them. Mutation: something that only the method remembers."""
    plan = planned(setting(resnet), Optimiser(), beta=0.6)
    first = of(plan)
    clients = LocalClients(list(plan.setting.data), method=first)
    whole = run(first, 5)
    half = run(first, 3, clients=clients)
    kept = dict(clients.ask(recall, Acknowledged(), counted=False))
    again = of(planned(setting(resnet), Optimiser(), beta=0.6))
    later = LocalClients(list(plan.setting.data), method=again)
    for i, client in later._clients.items():
        client.memory.update(copy.deepcopy(dict(kept[i].entries)))
    found = run(again, 2, 3, later, half)
    assert same(found, whole) and np.array_equal(found.scalars, whole.scalars)


def test_what_cannot_be_is_refused() -> None:
    own = setting(mlp)
    for given, words in (
        ({"h": 0}, "--h 0: must be at least 1: the scalars of equally many steps are averaged"),
        ({"k": 2}, "--k 2: must be 1"),
        ({"freeze": "client"}, "--freeze client: must be none"),
        ({"state": "reset"}, "--state reset: must be keep"),
        ({"mu": 0.0}, "--mu 0.0: must be a smoothing radius"),
        ({"n_p": 0}, "--n-p 0: must be a whole number of directions"),
    ):
        with pytest.raises(UserError, match=words):
            flags.built(DeComFL, own, **{"batch": 4, **given})
    wild = Optimiser("sgd", weight_decay=1e10)
    for h, words in (
        (1, "the model is not finite after the round"),
        (2, "client 0 .*a loss is not finite; a smaller"),
    ):
        with pytest.raises((UserError, ClientError), match=words):
            run(of(planned(own, wild, lr_client=1e300, h=h)), 1)
    with pytest.raises(UserError, match="--method decomfl: client 1 computes on another processor, the server on cpu"):
        check_arithmetic(own.problem, 1, "another processor", "--method decomfl", "")
