"""Torch modules abreast: the trajectories of one client after the other, and bits that do not depend on the company."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.bench import gpu_networks
from tests.bench.gpu_networks import SAMPLES, SHAPE, C, in_turn, method, p, walks
from tests.bench.gpu_small import ROUNDS, compared, local
from tests.numerics.test_abreast import replays
from zofl_mpi.engine.batching import MANY
from zofl_mpi.errors import UserError
from zofl_mpi.problems import network
from zofl_mpi.problems.kernels import blocks, module_torch
from zofl_mpi.problems.models import MLP
from zofl_mpi.problems.network import Network

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.slow
@pytest.mark.parametrize("call", gpu_networks.CALLS, ids=lambda call: call.__name__)
def test_what_holds_on_a_gpu_holds_on_every_device(call: Callable[[str], None], device: str) -> None:
    """Mutations: of another row its mini-batches, step sizes, mu, radius or shift; a slope of the step before; blocks
    of as many rows as there are; what a block held before; parameters in another order; inputs that are scaled twice
    or not; on the host the rows of another step.
    """
    call(device)


# --- a client's bits, alone and among others


def test_a_computation_is_always_of_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the argument for equal bits rests on, whatever the module. Mutation: the last block is not filled up."""
    asked, shapes = walks("odd cnn", "float32", "cpu", 40), set()
    plain = network.Function.slopes

    def noted(self: Any) -> Any:
        slopes = plain(self)

        def seen(parameters: Any, inputs: Any, labels: Any) -> Any:
            shapes.add((inputs.shape, labels.shape, *(each.shape for each in parameters.values())))
            assert {each.data_ptr() % 64 for row in range(8) for each in (p[row] for p in parameters.values())} == {0}
            return slopes(parameters, inputs, labels)

        return seen

    monkeypatch.setattr(network.Function, "slopes", noted)
    monkeypatch.setattr(blocks, "_LOOPS", type(blocks._LOOPS)())
    for count in (1, 3, 4, 5, 40):
        module_torch.walked(asked[:count])
    [(inputs, labels, *_)] = shapes
    assert inputs == (8, 3, 3, 7, 7) and labels == (8, 3, 5)


def test_a_block_follows_from_a_rows_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a block that ignores what the backward pass keeps; one that is larger than its limit allows."""
    function = gpu_networks.network("mlp", "float32", "cpu")._function
    least = 4 * (3 * function.n + 16 * (784 + 200))
    assert least < function.step_bytes(16) < 4 * least
    assert function.step_bytes(64) > function.step_bytes(16) + 48 * 4 * 784
    asked = walks("mlp", "float32", "cpu", 1)
    monkeypatch.setattr(module_torch, "CPU_ROWS", 16)
    for rows, limit in ((16, 32), (8, 15), (4, 4), (1, 0.5)):
        monkeypatch.setattr(module_torch, "STEP_BYTES", int(limit * function.step_bytes(16)))
        assert module_torch._Loop(asked[0].kind, asked[0].data).block.size == rows


def test_steps_are_replayed_in_chunks_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: buffers filled before a recording that writes into them; new tensors in place of the recorded ones."""
    recorded, played = replays(monkeypatch)
    compared(local(method("fedprox", "mlp", "torch")), in_turn("fedprox", "mlp", "as stored"), "fedprox")
    assert played == [0, 1, 1] * ROUNDS  # 18 steps: 16, and two by themselves
    assert len(recorded) == 2


# --- which kernel


def made(module: nn.Module, kernel: Any = "auto", device: str = "cpu", **further: Any) -> Network:
    return Network(module, SHAPE, C, np.ones(1), device=device, kernel=kernel, **further)


def test_torch_is_taken_where_it_is_asked_for_and_a_run_keeps_its_kernel() -> None:
    """Mutations: torch on the CPU by itself; spectra beside it; a run that goes on with another kernel."""
    module = MLP(p, C, (3,))
    plain, many = made(module), made(module, "torch")
    assert (plain.abreast, many.abreast) == (1, MANY)
    assert (plain.kernel_name(8), many.kernel_name(8)) == ("torch cpu", "torch cpu abreast")
    assert plain.kernel_for(8, 2, 1) == "serial" == plain.kernel_for(8, 2, 1, "torch cpu fourier")
    assert plain.kernel_for(8, 2, 1, "torch cpu abreast") == "torch"
    for kernel, name in (("serial", "torch cpu fourier"), ("torch", "torch cpu abreast")):
        cnn = Network(
            network.seeded(lambda: module_of((1, 28, 28)), STREAMS), (1, 28, 28), 10, np.ones(1), kernel=kernel
        )
        data = gpu_networks.Dataset(np.zeros((4, 784), np.uint8), np.zeros(4, np.int64), 10)
        cnn.loss(cnn.initial(STREAMS), data)
        assert cnn.kernel_name(32) == name
    with pytest.raises(UserError, match="kernel numba: must be auto, serial or torch"):
        made(module, "numba")


STREAMS = gpu_networks.STREAMS(gpu_networks.Purpose.MODULE)


def module_of(shape: tuple[int, int, int]) -> nn.Module:
    return gpu_networks.CNN(shape, 10)


class Own(nn.Module):
    """A linear layer, and a look at the numbers themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(p, C)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layer(inputs.flatten(1))
        return logits if float(logits.detach().abs().max()) < math.inf else logits * 0


def test_what_has_no_batched_form_is_refused_in_a_sentence_and_auto_leaves_it_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Mutations: a traceback; auto that refuses what ran before; the refusal of what --kernel serial computes."""
    told = r"^--kernel torch: Own cannot be computed for many clients at once: vmap: [^\n]*; take --kernel serial$"
    with pytest.raises(UserError, match=told):
        made(Own(), "torch")
    slow = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(p, C)))
    with pytest.raises(UserError, match="not yet implemented the batching rule for aten::_weight_norm"):
        made(slow, "torch")
    assert made(Own(), "serial").kernel == "serial" and made(Own()).kernel == "auto"
    told = lambda self: self.kernel == "torch" or (self.kernel == "auto" and not self.obstacle)  # noqa: E731
    monkeypatch.setattr(Network, "uses_torch", property(told))  # as on a GPU
    left, taken = made(Own()), made(MLP(p, C, (3,)))
    assert left.obstacle.startswith("vmap: ") and not taken.obstacle
    assert (left.kernel_name(8), left.abreast, left.kernel_for(8, 2, 1)) == ("torch cpu", 1, "serial")
    assert (taken.kernel_name(8), taken.abreast, taken.kernel_for(8, 2, 1)) == ("torch cpu abreast", MANY, "torch")


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
    x = both[0].initial(STREAMS)
    generator = gpu_networks.STREAMS(gpu_networks.Purpose.BATCH)
    batches, shift = generator.integers(0, 400, (9, 6)), generator.standard_normal(both[0].n)
    serial, many = (each.descend(SAMPLES, x, batches, np.full(9, 0.1), mu=0.3, shift=shift) for each in both)
    assert np.linalg.norm(serial - x) > 0.01
    np.testing.assert_allclose(many, serial, rtol=1e-10, atol=1e-12)


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
    serial, many = (each.descend(SAMPLES, each.initial(STREAMS), batches, np.full(10, 0.1)) for each in both)
    np.testing.assert_allclose(many, serial, rtol=1e-10, atol=1e-12)
