"""HERON-SFL: the zeroth-order estimate, its directions, its passes; [C] equations (2), (6) to (8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn

from tests.numerics.split_methods import (
    RULES,
    STEPS_OF,
    apart,
    close,
    deep,
    estimate_of,
    gradient,
    local_of,
    method,
    mlp,
    run,
    same,
    setting,
    small,
    training,
)
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split import client as client_steps
from zofl_mpi.rounds.split.client import Gradient, Key, LocalSteps, Point
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.estimation import Estimation
from zofl_mpi.rounds.split.rules import Backprop, GradientRule


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@RULES
def test_heron_with_the_exact_gradient_is_cse_fsl_to_the_bit(rule: Optimiser, dtype: str) -> None:
    """Mutations: another order, another upload, other moments."""
    flags = {"k": 2, "beta": 0.6, "augment": "crop-flip"}
    heron = run(method(HERON, training(setting(dtype=dtype), rule, **flags), estimate="exact"), 3)
    cse = run(method(CSEFSL, training(setting(dtype=dtype), rule, **flags)), 3)
    assert same(heron, cse)
    assert (heron.local_loss, heron.server_loss) == (cse.local_loss, cse.server_loss)


def errors(monkeypatch: pytest.MonkeyPatch, frame: Tensor, n_p: int, **flags: Any) -> float:
    """|estimate - gradient| where the directions are the columns of `frame`."""
    of = method(HERON, training(setting(small)), n_p=n_p, **flags)
    local = local_of(of)
    q, x, labels = next(iter(local))
    g = gradient(local, x, labels)
    norm = math.sqrt(len(frame)) if flags["distribution"] == "sqrt_d_sphere" else 1.0
    monkeypatch.setattr(TwoPoint, "directions", lambda *_: iter(norm * frame.T))
    assert float(g.norm()) > 0.1
    return float((estimate_of(of.rule, local, q, x, labels) - g).norm())


@pytest.mark.parametrize("distribution", ["sphere", "sqrt_d_sphere"])
@pytest.mark.parametrize("estimate", ["central", "one-sided"])
def test_the_mean_estimate_over_a_frame_is_the_gradient(
    monkeypatch: pytest.MonkeyPatch, distribution: str, estimate: str
) -> None:
    """To O(mu^2): a tenth of mu, a hundredth of the error. One-sided: a frame and its negative.

    Mutations: d, n_p, 2 or mu missing in the scale; a sign; another mini-batch for one of the two losses.
    """
    d = setting(small).problem.local.n
    frame = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    frame = torch.cat([frame, -frame], 1) if estimate == "one-sided" else frame
    own: dict[str, Any] = {"distribution": distribution, "estimate": estimate}
    rough, fine = (errors(monkeypatch, frame, frame.shape[1], mu=mu, **own) for mu in (1e-2, 1e-3))
    assert fine < 1e-4 and 80 < rough / fine < 120
    if estimate == "one-sided":
        assert errors(monkeypatch, frame[:, :d], d, mu=1e-3, **own) > 20 * fine, "blind to the two sides"


def test_the_mean_gaussian_estimate_is_the_gradient() -> None:
    """1000 directions, five standard errors. Mutation: the factor d for normal directions."""
    of = method(HERON, training(setting(small)), n_p=1000, mu=1e-4, distribution="gaussian")
    local = local_of(of)
    q, x, labels = next(iter(local))
    g = gradient(local, x, labels)
    d, found = len(g), estimate_of(of.rule, local, q, x, labels)
    assert float((found - g).norm()) < 5 * float(g.norm()) * math.sqrt((d + 1) / 1000)


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_the_two_spheres_are_one_with_the_radius_scaled(estimate: str) -> None:
    """[C] equation (2), by directions of norm sqrt(d): as by those of norm 1 with mu sqrt(d).

    Mutation: the factor d for a direction of norm sqrt(d).
    """
    d = setting(mlp).problem.local.n
    kinds = [("sqrt_d_sphere", 1e-3), ("sphere", 1e-3 * math.sqrt(d))]
    own: dict[str, Any] = {"estimate": estimate, "n_p": 2}
    one, two = (
        run(method(HERON, training(setting(mlp), lr_client=1e-3), mu=mu, distribution=kind, **own), 2)
        for kind, mu in kinds
    )
    close(one.theta, two.theta, 1e-9)
    close(one.theta_s, two.theta_s, 1e-9)
    assert apart(one.theta, method(HERON, training(setting(mlp))).start().theta)


def test_directions_have_their_norms_and_their_own_stream() -> None:
    """Mutations: one stream for all steps, clients or rounds; sqrt(d) forgotten; the norm of each tensor."""
    of = method(HERON, training(setting(mlp)))
    seen, d = [], of.setting.problem.local.n
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clients_that_do_not_step_are_frozen_features_whatever_mu_and_n_p(dtype: str) -> None:
    """To the bit, running statistics too. Mutation: a perturbed pass moves the statistics."""
    starts = method(HERON, training(setting(dtype=dtype))).start()
    found = [
        run(method(HERON, training(setting(dtype=dtype), lr_client=0.0), **flags), 2)
        for flags in ({"mu": 1e-3}, {"mu": 1.0, "n_p": 3}, {"distribution": "gaussian"}, {"estimate": "central"})
    ]
    found.append(run(method(CSEFSL, training(setting(dtype=dtype), lr_client=0.0)), 2))
    assert all(same(found[0], other) for other in found[1:])
    close(found[0].theta, starts.theta, 1e-15)
    assert dtype == "float64" or torch.equal(found[0].theta, starts.theta)
    assert not torch.equal(found[0].buffers, starts.buffers)
    assert not torch.equal(found[0].theta_s, starts.theta_s)


def test_perturbed_passes_may_move_the_running_statistics() -> None:
    """Clients that do not step: what the tested network normalises by then depends on mu. Mutation: as with batch."""

    def found(cls: Any, policy: str, **flags: Any) -> Any:
        return run(method(cls, training(setting(), lr_client=0.0, batchnorm=policy), **flags), 2)

    near, far = (found(HERON, "every_pass", mu=mu) for mu in (1e-9, 1.0))
    plain = found(HERON, "batch")
    assert apart(near.buffers, far.buffers) and apart(near.buffers, plain.buffers)
    assert same(near, far, ("theta", "theta_s", "buffers_s")) and same(near, plain, ("theta", "theta_s", "buffers_s"))
    assert same(found(CSEFSL, "every_pass"), found(CSEFSL, "batch"))


def test_a_batch_of_one_sample_is_no_matter_to_constant_statistics() -> None:
    """With batches of 5, client 0 of 6 samples has one left."""
    state = run(method(HERON, training(setting(deep), batch=5, batchnorm="running")), 1)
    assert bool(state.theta.isfinite().all())


def test_a_perturbed_pass_restores_the_model_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32. Mutations: mu u subtracted again; statistics left where the pass put them."""
    kept, calls = LocalSteps.perturbed, []

    def watched(self: LocalSteps, x: Tensor, labels: Tensor, u: Tensor, mu: float) -> float:
        before = self.theta.clone(), self.buffers.clone()
        loss = kept(self, x, labels, u, mu)
        calls.append(torch.equal(self.theta, before[0]) and torch.equal(self.buffers, before[1]))
        return loss

    monkeypatch.setattr(LocalSteps, "perturbed", watched)
    run(method(HERON, training(setting(dtype="float32")), mu=0.1, n_p=2, estimate="central"), 1)
    assert calls == [True] * 2 * 2 * sum(STEPS_OF)


@pytest.mark.parametrize(("estimate", "k", "passes"), [("one-sided", 2, 3), ("one-sided", 1, 3), ("central", 1, 5)])
def test_a_client_runs_forward_only_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch, estimate: Any, k: int, passes: int
) -> None:
    """h (1 + n_p) passes without a graph, and no call of autograd at a client. Mutations: a second base; grad mode."""
    of = method(HERON, training(setting(), k=k), n_p=2, estimate=estimate)
    problem, seen, calls = of.setting.problem, [], []

    def hook(module: nn.Module, given: Any, output: Tensor) -> None:
        seen.append((torch.is_grad_enabled(), output.requires_grad, module.training))

    for part in (problem.client, problem.auxiliary):
        part.register_forward_hook(hook)
    grad = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **b: calls.append(1) or grad(*a, **b))
    state = run(of, 1)
    assert seen == [(False, False, True)] * 2 * passes * sum(STEPS_OF)
    assert len(calls) == state.server_steps == sum(math.ceil(h / k) for h in STEPS_OF)
    assert of.plan(1)["forward passes of a local step"] in (passes, "4, and 1 more where it is uploaded")


def test_central_passes_over_the_base_where_nothing_goes_up() -> None:
    of = method(HERON, training(setting(), k=100), n_p=1, estimate="central")
    count: list[int] = []
    of.setting.problem.client.register_forward_hook(lambda *_: count.append(1))
    run(of, 1)
    assert len(count) == 2 * sum(STEPS_OF) + 3


def test_a_radius_that_drowns_in_rounding_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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

    def forward(self, model: LocalSteps, q: int, x: Tensor, labels: Tensor, upload: bool = True) -> Point:
        return Backprop(self.part).forward(model, q, x, labels, upload)

    def __call__(self, model: LocalSteps, point: Point, target: Tensor, key: Key) -> Gradient:
        (g,) = Backprop(self.part)(model, point, target, key).parts
        return Gradient((None if g is None else g.sign(),))


@pytest.mark.parametrize("cls", [HERON, HOSFL])
def test_a_rule_of_ones_own_takes_the_steps_of_both_losses(monkeypatch: pytest.MonkeyPatch, cls: Any) -> None:
    """Every entry of theta_c moves by the step size, or not at all. Mutation: a method that knows its rules by name."""
    plan = training(setting(mlp, (0,)), Optimiser("sgd"), h=1, lr_client=0.01)
    monkeypatch.setattr(Estimation, "rule", lambda self, plan, loss, *_: Signs(slice(0, loss.travels)))
    of = method(cls, plan)
    n, start = plan.problem.n_client, of.start().theta
    moved = (run(of, 1).theta - start)[:n].abs()
    assert ((moved < 1e-15) | ((moved - 0.01).abs() < 1e-12)).all() and float(moved.mean()) > 0.005
