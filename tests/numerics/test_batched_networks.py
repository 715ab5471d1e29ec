"""Batched torch modules: the trajectories of one client after the other, and the check that company does not matter."""

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bench import gpu_networks
from tests.bench.gpu_networks import (
    LABELS,
    PIXELS,
    ROUNDS,
    SAMPLES,
    SHAPE,
    STREAMS,
    C,
    compared,
    local,
    method,
    p,
    requests,
    serial,
)
from tests.conftest import Patch
from zofl_mpi import fedrzo, zo_hfl
from zofl_mpi.data import Dataset
from zofl_mpi.engine.batching import BATCHED_CLIENTS
from zofl_mpi.engine.setting import Work
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems import device_cache
from zofl_mpi.problems.kernels import functional, module_torch
from zofl_mpi.problems.models import MLP
from zofl_mpi.problems.module import Function
from zofl_mpi.problems.network import Network
from zofl_mpi.run.command.plan import parse_plan

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.slow
@pytest.mark.parametrize("call", gpu_networks.CALLS, ids=lambda call: call.__name__)
def test_what_holds_on_a_gpu_holds_on_every_device(call: Callable[[str], None], device: str) -> None:
    """Mutations: of another row its mini-batches, step sizes, mu, radius or shift; a slope of the step before; blocks
    of as many rows as there are; what a block held before; parameters in another order; inputs that are scaled twice or
    not; on the host the rows of another step."""
    call(device)


# --- whether company matters

Slopes = Callable[[Function], Callable[[Any, Any, Any], Any]]


def one_by_one(slopes: Slopes) -> Slopes:
    """Slopes that are computed for one model after the other: no company can matter, whatever the library does."""

    def made(function: Function) -> Callable[[Any, Any, Any], Any]:
        own = slopes(function)

        def each(parameters: Any, *samples: Any) -> Any:
            rows = [
                own({name: value[[k]] for name, value in parameters.items()}, *(part[[k]] for part in samples))
                for k in range(len(samples[0]))
            ]
            return {name: torch.cat([row[name] for row in rows]) for name in parameters}

        return each

    return made


def rounded(tell: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Slopes], Slopes]:
    """Slopes of which one entry is off by a factor 1 + 2^-22 where `tell` (R,) of the models' weights says so."""

    def changed(slopes: Slopes) -> Slopes:
        def made(function: Function) -> Callable[[Any, Any, Any], Any]:
            own = one_by_one(slopes)(function)

            def each(parameters: Any, *samples: Any) -> Any:
                found = own(parameters, *samples)
                for value in list(found.values())[-1:]:
                    value[tell(next(iter(parameters.values())).flatten(1)), 0] *= 1 + 2.0**-22
                return found

            return each

        return made

    return changed


COMPANY = {
    "none matters": (one_by_one, True),
    "the last place": (rounded(lambda x: torch.arange(len(x)) == 7), False),
    "a place in the middle": (rounded(lambda x: torch.arange(len(x)) == 3), False),
    "who is beside": (rounded(lambda x: x[:, 0] > x[:, 0].roll(1)), False),
    "how many there are": (rounded(lambda x: (x.abs().sum(1) > 0).sum() * torch.ones(len(x)) > 7), False),
}


@pytest.mark.parametrize(("patch", "equal"), COMPANY.values(), ids=COMPANY)
def test_the_check_finds_whether_company_matters(patch: Any, equal: bool, monkeypatch: Patch) -> None:
    """Mutations: one order alone; nobody alone; steps so short that the slopes' last bits are rounded away."""
    monkeypatch.setattr(functional, "slopes", patch(functional.slopes))
    monkeypatch.setattr(module_torch, "loss_sums", lambda asked: [own.x[:, 0] for own in asked])
    monkeypatch.setattr(module_torch, "_BLOCKS", type(module_torch._BLOCKS)())
    some = requests("one sample", "float32", "cpu", 1)[0]
    assert module_torch.equal_bits(some.function, some.data, 1, "float32") is equal


@pytest.mark.parametrize("equal", [True, False])
def test_losses_are_checked_too(equal: bool, monkeypatch: Patch) -> None:
    """Mutation: the steps alone."""
    monkeypatch.setattr(module_torch, "take_steps", lambda asked: [own.y for own in asked])
    monkeypatch.setattr(
        module_torch, "loss_sums", lambda asked: [own.x[0, :1] + (len(asked) > 1) * (not equal) for own in asked]
    )
    some = requests("one sample", "float32", "cpu", 1)[0]
    assert module_torch.equal_bits(some.function, some.data, 1, "float32") is equal


@pytest.mark.parametrize("name", ["zo_hfl", "fedrzo_nn"])
@pytest.mark.parametrize("equal", [True, False])
def test_clients_are_batched_only_where_the_check_has_passed(name: str, equal: bool, monkeypatch: Patch) -> None:
    """Mutations: batched all the same; never batched; checked anew for each call; losses left out."""
    checked, batched = list[int](), list[Any]()
    monkeypatch.setattr(module_torch, "equal_bits", lambda *given: checked.append(given[2]) or equal)
    for compute in ("take_steps", "loss_sums"):
        plain = getattr(module_torch, compute)
        monkeypatch.setattr(module_torch, compute, lambda asked, plain=plain: batched.append(asked) or plain(asked))
    compared(local(method(name, "mlp", "torch")), serial(name, "mlp", "as stored"), name)
    assert checked == [8] and bool(batched) is equal


def test_sizes_that_were_not_checked_are_computed_one_client_after_the_other(monkeypatch: Patch) -> None:
    """Mutations: a check in the middle of a run, whose verdict other ranks may not share."""
    monkeypatch.setattr(module_torch, "equal_bits", lambda *given: pytest.fail("checked"))
    problem = made(MLP(p, C, (3,)), "torch").with_kernel("torch", Work(8))
    assert problem.batches(SAMPLES, 8) and not problem.batches(SAMPLES, 9)
    x = problem.initial(START)
    ends = [
        own.descend(SAMPLES, x, np.arange(27).reshape(3, 9), np.full(3, 0.1))
        for own in (problem, made(MLP(p, C, (3,))))
    ]
    np.testing.assert_array_equal(*ends)


# --- a block


def test_a_computation_is_always_of_the_same_shape(monkeypatch: Patch) -> None:
    """Libraries choose their ways by shapes and by where arrays lie. Mutation: the last block is not filled up."""
    asked, shapes = requests("odd cnn", "float32", "cpu", 40), set()
    plain = functional.slopes

    def noted(self: Any) -> Any:
        slopes = plain(self)

        def seen(parameters: Any, inputs: Any, labels: Any) -> Any:
            shapes.add((inputs.shape, labels.shape, *(each.shape for each in parameters.values())))
            assert {each.data_ptr() % 64 for row in range(8) for each in (p[row] for p in parameters.values())} == {0}
            return slopes(parameters, inputs, labels)

        return seen

    monkeypatch.setattr(functional, "slopes", noted)
    monkeypatch.setattr(module_torch, "_BLOCKS", type(module_torch._BLOCKS)())
    for count in (1, 3, 4, 5, 40):
        module_torch.take_steps(asked[:count])
    [(inputs, labels, *_)] = shapes
    assert inputs == (8, 3, 3, 7, 7) and labels == (8, 3, 5)


def test_a_block_follows_from_a_rows_step(monkeypatch: Patch) -> None:
    """Mutations: a block that ignores what the backward pass keeps; one that is larger than its limit allows."""
    function = gpu_networks.network("mlp", "float32", "cpu")._function
    least = 4 * (3 * function.n + 16 * (784 + 200))
    assert least < functional.step_bytes(function, 16) < 4 * least
    assert functional.step_bytes(function, 64) > functional.step_bytes(function, 16) + 48 * 4 * 784
    asked = requests("mlp", "float32", "cpu", 1)
    monkeypatch.setattr(module_torch, "MAX_CPU_ROWS", 16)
    for rows, limit in ((16, 32), (8, 15), (4, 4), (1, 0.5)):
        monkeypatch.setattr(module_torch, "STEP_BYTES", int(limit * functional.step_bytes(function, 16)))
        assert module_torch._StepBlock(asked[0].key, asked[0].data).rows.size == rows


def recordings(monkeypatch: Patch) -> tuple[list[Callable[[], None]], list[int]]:
    """A stand-in for CUDA graphs: a replay works on the tensors that it was recorded with, which hold anything then.

    Returns:
        What has been recorded, and of each replay which of these it was; both grow.
    """
    recorded, played = list[Callable[[], None]](), list[int]()

    def replayable(device: str, work: Callable[[], None]) -> Callable[[], None]:
        for _ in range(3):
            work()
        recorded.append(work)

        def replay() -> None:
            played.append(recorded.index(work))
            work()

        return replay

    monkeypatch.setattr("zofl_mpi.engine.device.replayable", replayable)
    monkeypatch.setattr(module_torch, "_BLOCKS", type(module_torch._BLOCKS)())
    return recorded, played


def test_steps_are_replayed_in_chunks_and_one_by_one(monkeypatch: Patch) -> None:
    """Mutations: buffers filled before a recording that writes into them; new tensors in place of the recorded ones."""
    recorded, played = recordings(monkeypatch)
    monkeypatch.setattr(module_torch, "equal_bits", lambda *given: True)
    compared(local(method("fedprox", "mlp", "torch")), serial("fedprox", "mlp", "as stored"), "fedprox")
    assert played == [0, 1, 1] * ROUNDS  # 18 steps: 16, and two by themselves
    assert len(recorded) == 2


def test_full_batches_of_unequal_clients_are_not_captured(monkeypatch: Patch) -> None:
    """With `--batch 0` each client has a size of its own, of which a run computes the largest batched. Mutation: a CUDA
    graph for each size, of which 100 clients make hundreds a round."""
    recorded, _ = recordings(monkeypatch)
    expected = serial("fedavg, personal", "mlp", "as stored")
    monkeypatch.setattr(gpu_networks, "Network", partial(Network, batched_sizes=(80,)))  # as `with_kernel` makes it
    compared(local(method("fedavg, personal", "mlp", "torch")), expected, "fedavg, personal")
    assert len(recorded) == 1


def test_losses_are_not_captured(monkeypatch: Patch) -> None:
    """Mutation: a CUDA graph for each size of a mini-batch, of which clients with unequal data have many."""
    recorded, _ = recordings(monkeypatch)
    some = requests("one sample", "float32", "cpu", 1)[0]
    for size in (1, 2, 3):
        module_torch.loss_sums([module_torch.LossRequest(some.function, some.x, some.data, np.arange(size))])
    assert not recorded


def test_a_block_has_as_many_rows_as_fit() -> None:
    """Mutations: sizes that are no powers of 2; no limit."""
    for each, rows in ((64 * 784 * 4, 32), (2**21, 32), (2**21 + 1, 16), (2**25, 2), (2**26, 1), (2**30, 1)):
        assert module_torch.rows_of(each, 2**26) == rows


def test_data_lie_on_the_device_once(monkeypatch: Patch) -> None:
    """Mutations: a copy a client, or a call; one that stays when the data are gone."""
    monkeypatch.setattr(module_torch, "_BLOCKS", type(module_torch._BLOCKS)())
    monkeypatch.setattr(module_torch, "equal_bits", lambda *given: True)
    gc.collect()
    before = set(device_cache._PLACED)
    data = Dataset(PIXELS.copy(), LABELS.copy(), C)
    of = method("fedavg", "mlp", "torch", data=data)
    local(of)
    added = [device_cache._PLACED[key] for key in set(device_cache._PLACED) - before]
    assert sorted(each.numel() for each in added) == [len(LABELS), PIXELS.size]
    del added
    module_torch._BLOCKS.clear()
    del of, data
    gc.collect()
    assert set(device_cache._PLACED) <= before


# --- which kernel


def made(module: nn.Module, kernel: Any = "auto", device: str = "cpu", **further: Any) -> Network:
    return Network(module, SHAPE, C, weights=np.ones(1), device=device, kernel=kernel, **further)


def test_torch_is_taken_where_it_is_asked_for_and_a_run_keeps_its_kernel() -> None:
    """Mutations: torch on the CPU by itself; another kernel for a run that goes on; a fallback for what was named."""
    module = MLP(p, C, (3,))
    plain, many = made(module), made(module, "torch")
    assert (plain.batched_clients, many.batched_clients) == (1, BATCHED_CLIENTS)
    assert (plain.kernel_name(8), many.kernel_name(8)) == ("torch cpu", "torch cpu batched")
    for before, name in (("", "serial"), ("torch cpu", "serial"), ("torch cpu batched", "torch")):
        assert plain.kernel_for(WORK, SAMPLES, before) == (name, "", "serial")
    assert many.kernel_for(WORK, SAMPLES, "torch cpu") == ("torch", "", "")
    with pytest.raises(UserError, match="--kernel numba: must be one of auto, serial, torch"):
        parse_plan(zo_hfl, ["--method", "fedavg", "--problem", "mlp", "--kernel", "numba"])


START = STREAMS(Purpose.MODULE)
WORK = Work(8)


class Own(nn.Module):
    """A linear layer, and a look at the numbers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(p, C)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(inputs.flatten(1))
        return logits if float(logits.detach().abs().max()) < math.inf else logits * 0


def test_what_has_no_batched_form_is_refused_in_a_sentence_and_auto_leaves_it_in_turn(monkeypatch: Patch) -> None:
    """Mutations: a traceback; auto that refuses what ran before; the refusal of what --kernel serial computes."""
    told = r"^--kernel torch: Own cannot be computed for many clients at once: vmap: [^\n]*; use --kernel serial$"
    with pytest.raises(UserError, match=told):
        made(Own(), "torch")
    slow = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(p, C)))
    with pytest.raises(UserError, match="not yet implemented the batching rule for aten::_weight_norm"):
        made(slow, "torch")
    assert made(Own(), "serial").kernel == "serial" and made(Own()).kernel == "auto"
    as_on_a_gpu = lambda self: self.kernel == "torch" or (self.kernel == "auto" and not self.why_not_batchable)  # noqa: E731
    monkeypatch.setattr(Network, "uses_torch", property(as_on_a_gpu))  # as on a GPU
    left, taken = made(Own()), made(MLP(p, C, (3,)))
    assert left.why_not_batchable.startswith("vmap: ") and not taken.why_not_batchable
    assert (left.kernel_name(8), left.batched_clients) == ("torch cpu", 1)
    assert left.kernel_for(WORK, SAMPLES).name == "serial"
    assert taken.kernel_name(8) == "torch cpu batched" and taken.batched_clients == BATCHED_CLIENTS
    assert taken.kernel_for(WORK, SAMPLES) == ("torch", "", "serial")


WIDTH = 12
"""Of a layer: a group that is normalised has half of them. Of two, which may be nearly equal, rounding would grow."""


@pytest.mark.parametrize(
    "part",
    [
        nn.BatchNorm1d(WIDTH, track_running_stats=False),
        nn.BatchNorm1d(WIDTH).eval(),
        nn.LayerNorm(WIDTH),
        nn.GroupNorm(2, WIDTH),
        nn.Dropout(0.0),
        nn.Dropout(0.5).eval(),
        nn.utils.parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH), orthogonal_map="cayley"),
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        nn.ReLU(inplace=True),
    ],
    ids=lambda part: type(part).__name__,
)
def test_layers_that_a_network_may_have_agree_with_those_of_one_client(part: nn.Module) -> None:
    """Mutations: statistics of all rows in place of a row's own; frozen parameters in x; a parameter that moves to the
    place of another."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(p, WIDTH), part, nn.Linear(WIDTH, C))
    both = [made(module, kernel, dtype=np.float64) for kernel in ("serial", "torch")]
    x = both[0].initial(START)
    generator = STREAMS(Purpose.BATCH)
    batches, shift = generator.integers(0, 400, (9, 6)), generator.standard_normal(both[0].n)
    alone, many = (each.descend(SAMPLES, x, batches, np.full(9, 0.1), mu=0.3, shift=shift) for each in both)
    assert np.linalg.norm(alone - x) > 0.01
    np.testing.assert_allclose(many, alone, rtol=1e-10, atol=1e-12)


def test_a_module_that_shares_a_parameter_moves_it_once() -> None:
    """Mutations: two copies of it; one of two gradients."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.one, self.other = nn.Linear(p, C), nn.Linear(C, C), nn.Linear(C, C)
            self.other.weight = self.one.weight

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.other(torch.tanh(self.one(self.first(inputs.flatten(1)))))  # type: ignore[no-any-return]

    module = Tied()
    both = [made(module, kernel, dtype=np.float64) for kernel in ("serial", "torch")]
    batches = np.arange(60).reshape(10, 6)
    alone, many = (each.descend(SAMPLES, each.initial(START), batches, np.full(10, 0.1)) for each in both)
    np.testing.assert_allclose(many, alone, rtol=1e-10, atol=1e-12)


def test_which_problems_may_have_a_gpu() -> None:
    """All others say that they compute on the CPU. Mutation: one that is given a GPU and does not use it, or is not."""
    able = {name for family in (zo_hfl, fedrzo) for name, choice in family.PROBLEMS.items() if choice.gpu}
    assert able == {"mlp", "cnn"}
