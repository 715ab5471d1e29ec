"""--passes-abreast: several perturbed passes as one give the numbers of one pass after the other."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.numerics import gpt2_toy
from tests.numerics.split_methods import (
    SGD,
    SIDE,
    STEPS_OF,
    C,
    Make,
    Parts,
    apart,
    close,
    local_of,
    method,
    mlp,
    resnet,
    run,
    same,
    setting,
    small,
    training,
    twins,
    vectors,
)
from tests.numerics.test_per_sample import convolutions, groups, of_client, tokens
from tests.numerics.test_split_texts import setting as words
from zofl_mpi.engine import memory
from zofl_mpi.errors import UserError
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.split_cnn import ConvNet
from zofl_mpi.problems.stacked import Stacked
from zofl_mpi.rounds.split.costs import STEP_BYTES

CENTRAL: dict[str, Any] = {"estimate": "central"}


def cnn() -> Parts:
    return ConvNet((16, 16), (2, 1), 2).parts((1, SIDE, SIDE), C)


def source(make: Any) -> Any:
    """Images, texts of GPT-2 (the word for what trains), or words of a problem of one's own (None)."""
    if make is None:
        return words()
    return gpt2_toy.setting(gpt2_toy.problem(train=make)) if isinstance(make, str) else setting(make)


CASES: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
    (HERON, cnn, {"n_p": 5, "passes_abreast": 2}, {}),
    (HERON, cnn, {"n_p": 2, "passes_abreast": 3, **CENTRAL}, {}),
    (HERON, resnet, {"n_p": 3, "passes_abreast": 3}, {}),
    (HERON, resnet, {"n_p": 3, "passes_abreast": 2}, {"batchnorm": "running"}),
    (HERON, twins, {"n_p": 2, "passes_abreast": 4, **CENTRAL}, {"freeze": "client"}),
    (HERON, groups, {"n_p": 2, "passes_abreast": 2, "head_gradient": "exact"}, {}),
    (HERON, convolutions, {"n_p": 2, "passes_abreast": 2, "head_gradient": "exact", "exact_layers": 1}, {}),
    (HERON, tokens, {"n_p": 2, "passes_abreast": 2, "distribution": "sphere"}, {"freeze": "auxiliary"}),
    (HERON, "lora", {"n_p": 3, "passes_abreast": 2}, {}),
    (HERON, "all", {"n_p": 1, "passes_abreast": 2, **CENTRAL}, {}),
    (HERON, None, {"n_p": 2, "passes_abreast": 2}, {}),
    (HOSFL, resnet, {"n_p": 3, "passes_abreast": 2}, {}),
    (HOSFL, groups, {"n_p": 2, "passes_abreast": 4, **CENTRAL}, {}),
    (HOSFL, "lora", {"n_p": 2, "passes_abreast": 2}, {}),
    (DeComFL, resnet, {"n_p": 3, "passes_abreast": 2}, {}),
    (DeComFL, mlp, {"n_p": 1, "passes_abreast": 2, **CENTRAL}, {}),
]


@pytest.mark.parametrize(("cls", "make", "flags", "plan"), CASES)
def test_five_rounds_are_those_of_one_pass_after_the_other(
    cls: Any, make: Any, flags: dict[str, Any], plan: dict[str, Any]
) -> None:
    """To 1e-10 of the norms, in float64; also where the last passes of a step are fewer.

    Mutations: the other side for one's own; a neighbour's loss; passes beyond the last full lot left out; points of
    another part of theta; statistics of the batch over all points, or kept.
    """
    own = source(make)
    round_of = training(own, SGD, **{"h": 2, "lr_client": 0.01, **plan})
    kinds = [method(cls, round_of, **{**flags, "passes_abreast": k}) for k in (1, flags["passes_abreast"])]
    one, many = (run(of, 5) for of in kinds)
    for name, vector in vectors(one).items():
        assert float((vectors(many)[name] - vector).norm()) <= 1e-10 * float(vector.norm()), name
    assert apart(one.theta, kinds[0].start().theta)
    assert torch.allclose(torch.tensor(many.local_loss), torch.tensor(one.local_loss), equal_nan=True)


@pytest.mark.parametrize("make", [resnet, cnn, convolutions, tokens])
def test_a_step_leaves_model_and_statistics_as_they_are(make: Make) -> None:
    """Mutations: the statistics of a perturbed pass kept; parameters left stacked; NaN of the trial left behind."""
    of = method(HERON, training(setting(make)), n_p=3, passes_abreast=3)
    local = local_of(of)
    modules = [m for own in local.problem.local.modules for m in own.modules()]
    held = [list(m._parameters.items()) for m in modules]
    q, x, labels = next(iter(local))
    before, theta = local.buffers.clone(), local.theta.clone()
    moves = [(u, mu) for u in local.directions(2, q, "gaussian") for mu in (0.01, -0.01)]
    found = local.abreast(x, labels, moves)
    assert torch.equal(local.buffers, before) and torch.equal(local.theta, theta) and not found.requires_grad
    close(found, torch.stack([local.perturbed(x, labels, u, mu) for u, mu in moves]))
    assert float((found[0] - found[1]).abs()) > 1e-5
    for module, parameters in zip(modules, held, strict=True):
        assert all(module._parameters[name] is p for name, p in parameters)


@pytest.mark.parametrize("cls", [HERON, HOSFL])
@pytest.mark.parametrize(
    ("flags", "calls"), [({"n_p": 5, "passes_abreast": 2}, 3), ({"passes_abreast": 2, **CENTRAL}, 1)]
)
def test_as_many_calls_of_the_network_as_lots_of_passes(cls: Any, flags: dict[str, Any], calls: int) -> None:
    """And one for the upload. Mutation: one call a pass all the same."""
    of = method(cls, training(setting(small)), **flags)
    seen: list[bool] = []
    of.setting.problem.client.register_forward_hook(lambda *given: seen.append(given[2].requires_grad))
    run(of, 1)
    assert seen == [False] * ((calls + 1) * sum(STEPS_OF))


@pytest.mark.parametrize("cls", [HERON, HOSFL])
def test_seeds_give_the_bits_of_the_dense_uplink(cls: Any) -> None:
    """Mutation: differences in another order than their directions."""
    plan = training(setting(resnet), Optimiser("sgd"))
    dense, seeds = (run(method(cls, plan, n_p=3, passes_abreast=2, uplink=way), 2) for way in ("dense", "seeds"))
    assert same(dense, seeds) and apart(dense.theta, method(cls, plan).start().theta)


def held(cls: Any, make: Make, count: int, n_p: int = 8, **flags: Any) -> float:
    own = setting(make, dtype="float32")
    return float(method(cls, training(own, h=1), n_p=n_p, passes_abreast=count, **flags).costs()[STEP_BYTES])


def square() -> Parts:
    """Three layers of 64 to 64 numbers, without biases, without a head that counts."""
    layers = [nn.Linear(64, 64, bias=False) for _ in range(3)]
    return nn.Sequential(nn.Flatten(), *layers), nn.Linear(64, C), nn.Linear(64, C)


@pytest.mark.parametrize(("flags", "directions"), [({}, 1.0), (CENTRAL, 0.5)])
def test_the_memory_of_a_step_has_every_copy(flags: dict[str, Any], directions: float) -> None:
    """A point is d numbers, its direction as many, held until the step; a pass of 4 samples has 4 x 64 numbers of each
    of two maps at each point, and three products of batches of matrices need no copies of these.

    Mutations: one copy for all; points without directions; a direction for both sides; maps of one pass.
    """
    d = 3 * 64 * 64 + 64 * C + C
    two, four, eight = (held(HERON, square, k, **flags) for k in (2, 4, 8))
    maps = 2 * 4 * 64 * 4
    assert (eight - four) / 4 == (four - two) / 2 == (1 + directions) * 4 * d + maps


@pytest.mark.parametrize("cls", [HERON, HOSFL, DeComFL])
def test_every_methods_account_grows_with_the_copies(cls: Any) -> None:
    """Also where maps are most of it. Mutation: an account of one pass."""
    one, two, four = (held(cls, resnet, k) for k in (1, 2, 4))
    assert one < two < four
    assert four - two > one / 2


def test_a_dry_run_tells_how_many_and_memory_that_runs_out_names_the_flag() -> None:
    """Mutations: a line where nothing is abreast; a flag that is 1 named."""
    line = "perturbed passes that are computed as one"
    for cls in (HERON, HOSFL, DeComFL):
        plan = training(setting(mlp), h=2)
        one, many = method(cls, plan, n_p=4), method(cls, plan, n_p=4, passes_abreast=3)
        assert many.plan(1)[line] == 3 and line not in one.plan(1)
        assert {**many.plan(1), line: 0} == {**one.plan(1), line: 0}
        assert "--batch (now 4) or --passes-abreast (now 3)" in memory.remedy(many)
        assert "passes-abreast" not in memory.remedy(one)


class Told(nn.Module):
    """Asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE * SIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x.flatten(1))
        return found * (2.0 if float(found.sum()) > 0 else 1.0)


class Past(nn.Module):
    """Uses its parameters past itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE * SIDE, 4)
        self.own = [self.inner.weight]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.flatten(1), self.own[0], self.inner.bias)


@pytest.mark.parametrize("cls", [HERON, HOSFL])
@pytest.mark.parametrize(
    ("make", "flags", "plan", "told"),
    [
        (small, {"passes_abreast": 0}, {}, r"0: must be from 1 to 2, the perturbed passes of a local step \(--n-p 2\)"),
        (small, {"passes_abreast": -2}, {}, "-2: must be from 1 to 2, "),
        (small, {"passes_abreast": 4, "n_p": 3}, {}, r"4: must be from 1 to 3, .+ \(--n-p 3\)"),
        (
            small,
            {"passes_abreast": 5, "n_p": 2, **CENTRAL},
            {},
            r"5: must be from 1 to 4, .+ \(--n-p 2, on both sides\)",
        ),
        (
            small,
            {"estimate": "exact"},
            {},
            "2: --estimate exact has no perturbed passes; take one-sided or central, or",
        ),
        (small, {"estimate": "jvp"}, {}, "2: --estimate jvp has no perturbed passes"),
        (groups, {"directions": "per-sample"}, {}, "2: with --directions per-sample passes go one by one; take global"),
        (resnet, {}, {"batchnorm": "every_pass"}, "2: with --batchnorm every_pass each pass moves the running stat"),
        (of_client(Told, 4), {}, {}, r"2: torch cannot compute this network at several points at once \(.+\); take"),
        (of_client(Past, 4), {}, {}, "2: this network uses parameters past the modules that hold them"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run(
    cls: Any, make: Make, flags: dict[str, Any], plan: dict[str, Any], told: str
) -> None:
    """Mutation: points that no pass tells apart, whose estimates are 0."""
    with pytest.raises(UserError, match=f"^--passes-abreast {told}"):
        method(cls, training(setting(make), **plan), **{"n_p": 2, "passes_abreast": 2, **flags})


def test_nothing_that_is_estimated_has_no_passes() -> None:
    flags = {"head_gradient": "exact", "exact_layers": 1, "rest": "frozen", "n_p": 2}
    with pytest.raises(UserError, match=r"^--passes-abreast 2: nothing is estimated here; take 1$"):
        method(HERON, training(setting(mlp)), passes_abreast=2, **flags)


def test_networks_without_statistics_take_every_pass() -> None:
    """Mutation: the flag's name alone refused."""
    run(method(HERON, training(setting(mlp), batchnorm="every_pass"), n_p=2, passes_abreast=2), 1)


def test_attention_that_a_cpu_computes_point_by_point_is_not_told_of() -> None:
    """Mutation: torch's warning at each pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(method(HERON, training(gpt2_toy.setting(), h=1), n_p=2, passes_abreast=2), 1)


def test_what_is_frozen_is_not_stacked() -> None:
    """LoRA alone is. Mutation: all parameters stacked."""
    own = gpt2_toy.problem()
    found = Stacked(own.local, slice(0, own.local.n))
    assert len(found._places) == len(own.local.parameters) and all("lora" in name for name in found._places)
    assert sum(span.stop - span.start for span, _ in found._places.values()) == own.local.n
