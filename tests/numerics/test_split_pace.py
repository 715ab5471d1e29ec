"""Step sizes that change with an optimiser's own steps, and a decay apart from the gradient, in split training."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    LOCKSTEP,
    SGD,
    SPLIT,
    STEPS_OF,
    apart,
    batches,
    close,
    flat,
    gradient,
    method,
    mlp,
    run,
    same,
    setting,
    torchs,
    training,
    whole_of,
)
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.rounds.split.client import Gradient, LocalSteps, Point
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.training import Training

ADAMW = Optimiser("adamw", weight_decay=0.1)
LINEAR = Pace("linear", warmup=3, decay_steps=11, decay_steps_server=23)
WARM = Pace(warmup=5)


@pytest.mark.parametrize("pace", [replace(LINEAR, decay_steps_server=0), WARM], ids=["linear", "warm-up"])
@pytest.mark.parametrize("rule", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_one_client_takes_the_steps_of_torch_with_a_scheduler(rule: Optimiser, pace: Pace) -> None:
    """SFLV2 in three rounds is plain training: both sides count their steps on through the rounds. Mutations: steps
    counted from 0 in each round; from 1; rounds counted for steps; the size that comes next."""
    own = setting(mlp, clients=(2,))
    plan = training(own, rule, pace=pace)
    state = run(method(SFLV2, plan), 3)
    net = whole_of(mlp)
    theirs = torchs(net.parameters(), rule, 0.05)

    def factor(t: int) -> float:
        if t < pace.warmup:
            return t / pace.warmup
        return 1.0 if pace is WARM else max(0.0, (11 - t) / (11 - 3))

    sizes = torch.optim.lr_scheduler.LambdaLR(theirs, factor)
    for r in range(3):
        for x, labels in batches(plan, 0, r):
            theirs.zero_grad()
            cross_entropy(net(x), labels).backward()
            theirs.step()
            sizes.step()
    close(torch.cat([state.theta[: own.problem.n_client], state.theta_s]), flat(net))
    assert apart(state.theta_s, run(method(SFLV2, replace(plan, pace=Pace())), 3).theta_s)


def sizes(monkeypatch: pytest.MonkeyPatch, cls: Any, plan: Training, rounds: int, **flags: Any) -> dict[int, list[Any]]:
    """{length of what moved: the sizes of the steps, in their order}."""
    found: dict[int, list[float]] = {}
    step = Optimiser.step

    def seen(self: Optimiser, theta: Tensor, g: Tensor, memory: Any, lr: float) -> None:
        found.setdefault(len(theta), []).append(lr)
        step(self, theta, g, memory, lr)

    monkeypatch.setattr(Optimiser, "step", seen)
    run(method(cls, plan, **flags), rounds)
    return found


@pytest.mark.parametrize("cls", SPLIT)
def test_each_side_counts_its_own_steps_where_clients_rest(monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
    """Clients of 2, 3 and 4 local steps, two of which take part in a round; SFLV1's replicas count for themselves.
    Mutations: rounds for the rounds that a client took part in; the server's steps of one client; of every step where
    every second one goes up; a replica that counts the others' steps; one length for both sides."""
    k = 1 if cls in LOCKSTEP else 2
    plan = training(setting(mlp), beta=0.6, k=k, pace=LINEAR)
    more = {"align_epochs": 0} if cls is FSLSAGE else {}
    found = sizes(monkeypatch, cls, plan, 4, **more)
    n = plan.problem
    own, top = (
        found[length] for length in (n.n_client if cls in (*LOCKSTEP, FSLSAGE) else n.client_side.n, n.server_side.n)
    )
    steps, met, expected, served = [0, 0, 0], [0, 0, 0], [], []
    for r in range(4):
        for i in plan.participants(r):
            expected += [LINEAR.client(0.05, steps[i] + q) for q in range(STEPS_OF[i])]
            count = -(-STEPS_OF[i] // k)
            before = met[i] if cls is SFLV1 else sum(met)
            served += [LINEAR.server(0.05, before + q) for q in range(count)]
            steps[i], met[i] = steps[i] + STEPS_OF[i], met[i] + count
    assert sorted(own) == sorted(expected) and sorted(top) == sorted(served)
    assert min(own) == min(top) == 0.0 and len({*own}) > 5 and len({len(plan.participants(r)) for r in range(4)}) == 1
    assert {i for r in range(4) for i in plan.participants(r)} == {0, 1, 2}


def test_a_zeroth_order_step_decays_as_a_first_order_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gradient in the estimate's place HERON's forward passes make CSE-FSL's steps, to the bit. Mutations: no
    decay; the decay as a part of the gradient that is estimated, or of the moments."""

    def exact(self: TwoPoint, local: LocalSteps, point: Point, labels: Tensor, key: Any) -> Gradient:
        total, count = local.total, local.count
        g = gradient(local, point.x, labels)
        local.total, local.count = total, count
        return Gradient((g,))

    plan = training(setting(mlp), ADAMW, pace=LINEAR)
    cse = run(method(CSEFSL, plan), 3)
    monkeypatch.setattr(TwoPoint, "__call__", exact)
    assert same(run(method(HERON, plan), 3), cse)
    assert apart(cse.theta, run(method(CSEFSL, training(setting(mlp), Optimiser("adamw"), pace=LINEAR)), 3).theta)
