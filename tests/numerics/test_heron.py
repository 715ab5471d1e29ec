"""HERON-SFL: the zeroth-order estimate, its directions and passes; [C] (2), (6) to (8); its steps again from seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Capsys, Patch
from tests.numerics.split_methods import (
    ESTIMATING,
    SGD,
    STEPS_OF,
    apart,
    close,
    estimate_of,
    gradient,
    groups,
    local_of,
    method,
    mlp,
    run,
    same,
    setting,
    small,
    training,
)
from tests.numerics.test_split_pace import ADAMW, LINEAR
from tests.numerics.test_split_texts import texts_setting as texts
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split import client as client_steps
from zofl_mpi.rounds.split.client import Gradient, Key, LocalSteps, Point
from zofl_mpi.rounds.split.estimates import Estimation, ForwardMode, TwoPoint
from zofl_mpi.rounds.split.messages import Scalars
from zofl_mpi.rounds.split.rules import Backprop, GradientRule
from zofl_mpi.run.loop.client_memory import Acknowledged, recall
from zofl_mpi.run.loop.local import LocalClients


def errors(monkeypatch: Patch, frame: Tensor, n_p: int, **flags: Any) -> float:
    """|estimate - gradient| where the directions are the columns of `frame`."""
    of = method(HERON, training(setting(small)), n_p=n_p, **flags)
    local = local_of(of)
    q, x, labels = next(iter(local))
    g = gradient(local, x, labels)
    norm = math.sqrt(len(frame)) if flags["distribution"] == "sqrt_d_sphere" else 1.0
    for rule in (TwoPoint, ForwardMode):
        monkeypatch.setattr(rule, "directions", lambda *_: iter(norm * frame.T))
    assert float(g.norm()) > 0.1
    return float((estimate_of(of.rule, local, q, x, labels) - g).norm())


@pytest.mark.parametrize("distribution", ["sphere", "sqrt_d_sphere"])
@pytest.mark.parametrize("estimate", ["central", "one-sided"])
def test_the_mean_estimate_over_a_frame_is_the_gradient(monkeypatch: Patch, distribution: str, estimate: str) -> None:
    """To O(mu^2): a tenth of mu, a hundredth of the error. One-sided: a frame and its negative. Gaussian directions:
    tests/numerics/test_exact_parts.py. The derivative forwards has no error. Mutations: d, n_p, 2 or mu missing in the
    scale; a sign; another mini-batch for one of the two losses."""
    d = setting(small).problem.client_side.n
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    frame = torch.cat([frame, -frame], 1) if estimate == "one-sided" else frame
    own: dict[str, Any] = {"distribution": distribution, "estimate": estimate}
    rough, fine = (errors(monkeypatch, frame, frame.shape[1], mu=mu, **own) for mu in (1e-2, 1e-3))
    assert fine < 1e-4 and 80 < rough / fine < 120
    if estimate == "one-sided":
        assert errors(monkeypatch, frame[:, :d], d, mu=1e-3, **own) > 20 * fine, "blind to the two sides"
        assert errors(monkeypatch, frame[:, :d], d, mu=0.5, distribution=distribution, estimate="jvp") < 1e-11


def test_directions_have_their_norms_and_their_own_stream() -> None:
    """Mutations: one stream for all steps, clients or rounds; sqrt(d) forgotten; the norm of each tensor."""
    of = method(HERON, training(setting(mlp)))
    seen, d = [], of.setting.problem.client_side.n
    for i, r, q in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        local = local_of(of, i, r)

        def directions(distribution: str, local: LocalSteps = local, q: int = q) -> list[Tensor]:
            rule = TwoPoint(slice(0, d), 3, distribution)
            return list(rule.directions(local.theta, local.key(q)))

        found = directions("sqrt_d_sphere")
        assert all(abs(float(u.norm()) - math.sqrt(d)) < 1e-9 for u in found)
        for u, v in zip(found, directions("sphere"), strict=True):
            close(u, math.sqrt(d) * v)
        for u, z in zip(found, directions("gaussian"), strict=True):
            close(u / math.sqrt(d), z / z.norm())
            assert 0.8 < float(z.norm()) / math.sqrt(d) < 1.2 and abs(float(z.norm()) - math.sqrt(d)) > 1e-6
        assert all(torch.equal(a, b) for a, b in zip(found, directions("sqrt_d_sphere"), strict=True))
        seen += found
    cosines = torch.stack(seen) @ torch.stack(seen).T / d - torch.eye(len(seen))
    assert float(cosines.abs().max()) < 0.5


@pytest.mark.parametrize("room", [0, 3, 7, 100])
def test_small_directions_are_drawn_with_those_of_later_steps(monkeypatch: Patch, room: int) -> None:
    """The same ones, and no more than fit, none after the last step. Mutations: the first step's key for all; one
    step's directions taken twice; drawn without end."""
    of = method(HERON, training(setting(mlp), h=5), n_p=2)
    local, d, h = local_of(of), of.setting.problem.client_side.n, of.training.h
    monkeypatch.setattr(client_steps, "AHEAD", room * d * 8)
    drawn, most = list[int](), 0

    def draw(key: Key) -> Iterator[Tensor]:
        drawn.append(key.t)
        return of.rule.directions(local.theta, key)

    for q in range(h):
        for u, alone in zip(local.drawn(draw, local.key(q), 2 * d * 8), draw(local.key(q)), strict=True):
            assert torch.equal(u, alone)
        most = max(most, sum(map(len, local.ahead.values())))
    assert sorted(drawn) == sorted([*range(h)] * 2) and not local.ahead
    assert most <= room and (room < 6 or most > 0)


@pytest.mark.parametrize("source", ["float32", "float64", "texts"])
@pytest.mark.parametrize(("cls", "first"), [(HERON, CSEFSL), (HOSFL, SFLV2)])
def test_clients_that_do_not_step_are_frozen_features_whatever_mu_and_n_p(cls: Any, first: Any, source: str) -> None:
    """To the bit, running statistics too, and on texts of differing length. Mutations: a perturbed pass moves the
    statistics, or leaves its perturbation behind; shapes of the longest sample."""
    plan = training(texts() if source == "texts" else setting(dtype=source), lr_client=0.0, batch=3)
    expected, start = run(method(first, plan), 2), method(first, plan).start()
    for flags in (
        {"mu": 1e-3},
        {"mu": 1.0, "n_p": 3},
        {"distribution": "gaussian"},
        {"estimate": "central", "mu": 1.0, "n_p": 2},
        {"estimate": "jvp"},
    ):
        found = run(method(cls, plan, **flags), 2)
        assert same(found, expected) and found.server_loss == expected.server_loss
    assert apart(run(method(cls, replace(plan, lr_client=0.05), **flags), 2).theta, expected.theta)
    close(expected.theta, start.theta, 1e-15)
    assert source != "float32" or torch.equal(expected.theta, start.theta)
    assert source == "texts" or not torch.equal(expected.buffers, start.buffers)
    assert not torch.equal(expected.theta_s, start.theta_s)


def test_perturbed_passes_may_move_the_running_statistics() -> None:
    """Clients that do not step: what the tested network normalises by then depends on mu. Mutation: as with batch."""

    def found(cls: Any, policy: str, **flags: Any) -> Any:
        return run(method(cls, training(setting(), lr_client=0.0, batchnorm=policy), **flags), 2)

    near, far = (found(HERON, "every_pass", mu=mu) for mu in (1e-9, 1.0))
    plain = found(HERON, "batch")
    assert apart(near.buffers, far.buffers) and apart(near.buffers, plain.buffers)
    assert same(near, far, ("theta", "theta_s", "buffers_s")) and same(near, plain, ("theta", "theta_s", "buffers_s"))
    assert same(found(CSEFSL, "every_pass"), found(CSEFSL, "batch"))


ONE, CENTRAL, JVP = ({"estimate": name} for name in ("one-sided", "central", "jvp"))
HEAD, EACH = {"head_gradient": "exact"}, {"directions": "per-sample"}


@pytest.mark.parametrize(
    ("cls", "flags", "k", "passes", "bases"),
    [
        (HERON, ONE, 2, 2, 9),
        (HERON, CENTRAL, 1, 4, 9),
        (HERON, CENTRAL, 100, 4, 3),
        (HERON, {**ONE, **HEAD}, 100, 2, 9),
        (HERON, {**CENTRAL, **HEAD}, 100, 4, 9),
        (HERON, {**ONE, **EACH}, 1, 2, 9),
        (HERON, {**CENTRAL, **EACH, **HEAD}, 1, 4, 9),
        (HERON, JVP, 1, 2, 9),
        (HERON, JVP, 100, 2, 3),
        (HOSFL, ONE, 1, 2, 9),
        (HOSFL, CENTRAL, 1, 4, 9),
        (HOSFL, {**ONE, **EACH}, 1, 2, 9),
        (HOSFL, JVP, 1, 2, 9),
    ],
)
def test_a_client_runs_forward_only_as_often_as_it_says(
    monkeypatch: Patch, cls: Any, flags: dict[str, Any], k: int, passes: int, bases: int
) -> None:
    """For each of 9 local steps those of two directions, and a base where it is needed; autograd is the server's alone.
    Mutations: a second base, or one that nothing asks for; grad mode; autograd, or a further pass, for the head's
    gradient; HO-SFL's head; the global estimate for that of each sample; hooks that stay."""
    of = method(cls, training(setting(groups), k=k), n_p=2, **flags)
    problem, calls = of.setting.problem, []
    seen: dict[str, list[bool]] = {"client": [], "auxiliary": []}

    def hook(own: list[bool], module: nn.Module, output: Tensor) -> None:
        own.append(output.requires_grad or not module.training or (torch.is_grad_enabled() and flags != JVP))

    for name, own in seen.items():
        part: nn.Module = getattr(problem, name)
        part.register_forward_hook(lambda module, _, output, own=own: hook(own, module, output))
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    assert seen["client"] == [False] * (passes * sum(STEPS_OF) + bases)
    heads = 0 if cls is HOSFL else len(seen["client"]) + (9 if flags == {**ONE, **EACH} else 0)  # of each sample, too
    assert seen["auxiliary"] == [False] * heads
    assert len(calls) == state.server_steps == sum(math.ceil(h / k) for h in STEPS_OF)
    plan = of.plan(1)
    if flags != JVP:
        assert plan["forward passes of a local step"] in (passes + 1, "4, and 1 more where it is uploaded")
    assert plan.get("of these, with twice the products", passes) == passes
    own = [m for part in (problem.client, problem.auxiliary) for m in part.modules() if m is not part]
    assert not any(m._forward_hooks for m in own)


def test_a_radius_that_drowns_in_rounding_is_told_once(monkeypatch: Patch, capsys: Capsys) -> None:
    """Not where one direction of many is orthogonal to the gradient. Mutation: a threshold for float32 in float64."""
    monkeypatch.setattr(client_steps, "_warned", [])
    run(method(HERON, training(setting(dtype="float32")), mu=1e-3, n_p=20), 2)
    run(method(HERON, training(setting(dtype="float64")), mu=1e-9), 1)
    assert capsys.readouterr().err == ""
    run(method(HERON, training(setting(dtype="float32")), mu=1e-9), 2)
    told = capsys.readouterr().err
    assert told.count("zofl_mpi: warning: ") == told.count("\n") == 1
    assert "2 of 2 losses" in told and "rounding in float32: take a larger --mu, or --dtype float64" in told
    monkeypatch.setattr(client_steps, "_warned", [])
    run(method(HERON, training(setting(dtype="float64")), mu=1e-17), 1)
    assert "rounding in float64: take a larger --mu\n" in capsys.readouterr().err


@final
@dataclass(frozen=True)
class Signs(GradientRule):
    """A rule of one's own: the signs of the gradient."""

    def forward(self, model: LocalSteps, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        return Backprop(self.part).forward(model, x, labels, upload)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        (g,) = Backprop(self.part)(model, point, target, key).parts
        return Gradient((None if g is None else g.sign(),))


@pytest.mark.parametrize("cls", ESTIMATING)
def test_a_rule_of_ones_own_takes_the_steps_of_both_losses(monkeypatch: Patch, cls: Any) -> None:
    """Every entry of theta_c moves by the step size, or not at all. Mutation: a method that knows its rules by name."""
    plan = training(setting(mlp, (0,)), Optimiser("sgd"), h=1, lr_client=0.01)
    monkeypatch.setattr(Estimation, "rule", lambda self, plan, loss, *_: Signs(slice(0, loss.travels)))
    of = method(cls, plan)
    n, start = plan.problem.n_client, of.start().theta
    moved = (run(of, 1).theta - start)[:n].abs()
    assert ((moved < 1e-15) | ((moved - 0.01).abs() < 1e-12)).all() and float(moved.mean()) > 0.005


MOMENTUM = Optimiser("sgd", momentum=0.9, weight_decay=0.01)
STATES = ("keep", "reset", "average")
SEEDS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (HERON, {"optimiser": SGD}, {}),
    (HERON, {"optimiser": MOMENTUM}, {"n_p": 3, "estimate": "central"}),
    (HERON, {"state": "reset"}, {"distribution": "gaussian"}),
    (HERON, {"state": "average", "beta": 0.7}, {"n_p": 2}),
    (HERON, {"state": "average", "optimiser": Optimiser("sgd", momentum=0.9)}, {}),
    (HERON, {"beta": 0.7}, {"n_p": 2, "distribution": "sphere", "mu": 0.01}),
    (HERON, {"freeze": "client", "k": 3}, {"estimate": "central"}),
    (HERON, {"freeze": "auxiliary", "weights": "uniform", "order": "client_major"}, {}),
    (HERON, {"beta": 0.7, "weights": "uniform"}, {"n_p": 2, "distribution": "sphere", "mu": 0.01, **HEAD}),
    (HERON, {"state": "reset", "k": 2}, {"distribution": "gaussian", **HEAD}),
    (HERON, {"optimiser": MOMENTUM}, {"n_p": 2, "exact_layers": 3, **HEAD}),
    *((HERON, {"optimiser": ADAMW, "beta": 0.6, "state": state, "pace": LINEAR}, {}) for state in STATES),
    (HOSFL, {"optimiser": MOMENTUM}, {"n_p": 3, "estimate": "central"}),
    (HOSFL, {"state": "average", "beta": 0.7}, {"n_p": 2}),
    (HOSFL, {"freeze": "client", "order": "client_major"}, {}),
    (HOSFL, {"state": "reset"}, {"n_p": 2, "exact_layers": 3}),
]


@pytest.mark.parametrize(
    ("dtype", "cls", "flags", "estimate"), [*(("float32", *row) for row in SEEDS), ("float64", *SEEDS[3])]
)
def test_scalars_and_seeds_give_the_dense_uplinks_bits(
    dtype: str, cls: Any, flags: dict[str, Any], estimate: dict[str, Any]
) -> None:
    """Four rounds, BatchNorm and Adam's moments included. Mutations: directions of another round, client or step, or as
    long as theta_l; moments begun anew, or those of another client, of the head, or kept where they are to be reset;
    the mean of n_p as their sum; the frozen part replayed; weights of other clients; the head or the last layers of the
    round before; the full step size in a replay, or that of another round."""
    own = setting(dtype=dtype)
    plan = training(own, **{"optimiser": Optimiser(), **flags})
    dense, seeds = (method(cls, plan, **estimate, uplink=uplink) for uplink in ("dense", "seeds"))
    expected, found, start, n = run(dense, 4), run(seeds, 4), seeds.start(), plan.problem.n_client
    assert same(found, expected) and found.server_loss == expected.server_loss
    assert apart(found.theta[:n], start.theta[:n]) == (plan.freeze != "client")
    assert apart(found.theta[n:], start.theta[n:]) == (plan.freeze != "auxiliary" and cls is HERON)
    assert found.local_loss == expected.local_loss or cls is HOSFL
    assert bool(found.replayed) == (plan.state == "keep") and not expected.replayed
    if {"head_gradient", "exact_layers"} & estimate.keys():
        return  # the client's moments are those of what it sends, too
    clients = LocalClients(list(own.data), method=seeds)
    state = run(seeds, 3, clients=clients)
    for i, moments in state.replayed.items():
        ((_, told),) = clients.ask(recall, Acknowledged(), to=[int(i)], counted=False)
        for name, value in told.entries["moments"].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moments[name])), (i, name)


def test_replays_that_cannot_be_are_told() -> None:
    """Other vector instructions draw other directions. Mutations: no check."""
    of = method(HERON, training(setting()), uplink="seeds")
    told = Scalars(None, np.zeros((2, 1)), of.start().buffers, torch.zeros(0), "cpu with other instructions")
    with pytest.raises(UserError, match="client computes on cpu with other instructions, the server on cpu with "):
        of.replay(of.start(), 0, 1, told)
    for cls in (HERON, HOSFL):
        with pytest.raises(UserError, match="--uplink seeds: it sends the scalars of estimates"):
            method(cls, training(setting()), uplink="seeds", estimate="exact")
    of = method(HERON, training(setting(), lr_client=1e300), uplink="seeds", mu=0.1)
    with pytest.raises(UserError, match=r"client \d: Update.theta is not finite"):
        run(of, 3)
