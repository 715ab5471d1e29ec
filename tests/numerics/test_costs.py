"""The accounts of [C]'s Table II: multiply-accumulates exactly, memory by counting the tensors that torch makes."""

import gc
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from zofl_mpi.problems.counting import Allocations, Products
from zofl_mpi.problems.saving import recomputing
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet
from zofl_mpi.rounds.split import costs
from zofl_mpi.rounds.split.client import CutLoss, HeadLoss
from zofl_mpi.rounds.split.costs import macs, peak_bytes
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.rules import Backprop

BATCH = 8
STEPS: dict[str, tuple[Any, Any]] = {
    "forward": (HeadLoss, TwoPoint),
    "slope": (CutLoss, TwoPoint),
    "auxiliary": (HeadLoss, Backprop),
    "cut": (CutLoss, Backprop),
}
"""Loss and rule of HERON, HO-SFL, CSE-FSL, SFLV2."""
MAP = BATCH * 64 * 32 * 32 * 4
"""Bytes of one feature map of the client's part."""


def step_of(problem: SplitNetwork, step: str) -> tuple[Any, Any]:
    """The loss and the rule of a step."""
    loss = STEPS[step][0](problem)
    return loss, STEPS[step][1](slice(0, loss.travels))


def peak(problem: SplitNetwork, batch: int, step: str, recompute: bool = False) -> int:
    with recomputing(problem.blocks if recompute else ()):
        return peak_bytes(*step_of(problem, step), batch)


@pytest.fixture(scope="module")
def resnet18() -> SplitNetwork:
    return SplitNetwork(*ResNet().parts((3, 32, 32), 10), (3, 32, 32), 10)


def test_the_macs_and_the_memory_of_the_papers_table(resnet18: SplitNetwork) -> None:
    """39.90, 59.85 (59.844 before the paper's rounding) and 59.51 G at batch 256. The block's input, a convolution's
    result and its normalised copy; the activations work in place. A fourth map: lambda, as large as a feature map here.
    Mutations: FLOPs for MACs; a graph kept in the forward pass; lambda forgotten; the smashed samples kept."""
    client, auxiliary, server = macs(resnet18)
    assert (client, auxiliary) == (77_266_944, 655_360)
    assert 256 * 2 * (client + auxiliary) / 1e9 == pytest.approx(39.896, abs=5e-4)
    assert 256 * 3 * (client + auxiliary) / 1e9 == pytest.approx(59.844, abs=5e-4)
    assert 256 * (3 * client + auxiliary) / 1e9 == pytest.approx(59.509, abs=5e-4)
    assert client + server == pytest.approx(555.4e6, rel=1e-3)
    inputs = BATCH * 3 * 32 * 32 * 4
    found = peak(resnet18, BATCH, "forward")
    assert 3 * MAP + inputs <= found < 3.1 * MAP + inputs
    assert found < 0.4 * min(peak(resnet18, BATCH, step) for step in ("cut", "auxiliary"))  # [C]: 0.365
    assert 4 * MAP + inputs <= peak(resnet18, BATCH, "slope") < 4.1 * MAP + inputs


def test_allocations_are_counted_once_and_given_back() -> None:
    """Mutations: views counted; freed storage kept."""
    gc.collect()
    with Allocations() as counted:
        a = torch.zeros(1000)
        b = a.view(10, 100)
        assert counted.live == 4000
        a.add_(1)
        assert counted.live == 4000
        c = a + b.reshape(-1)
        assert counted.live == counted.peak == 8000
        del c
        assert counted.live == 4000
        del a
        assert counted.live == 4000, "the view still holds it"
        del b
        assert counted.live == 0 and counted.peak == 8000


@pytest.mark.parametrize(
    ("cut", "head", "dtype", "bf16"), [(2, "pooled", "float64", False), (1, "linear", "float32", True)]
)
@pytest.mark.parametrize(
    ("step", "recompute"),
    [("forward", False), ("slope", False), ("auxiliary", False), ("cut", False), ("auxiliary", True)],
)
def test_two_small_steps_tell_the_memory_of_a_large_one(
    cut: int, head: str, dtype: str, bf16: bool, step: str, recompute: bool
) -> None:
    """To the byte. Mutations: the peak itself scaled; frees left out; sizes of 2 samples taken for all."""
    parts = ResNet(8, (1, 1, 1), cut, head).parts((3, 32, 32), 10)  # type: ignore[arg-type]
    problem = SplitNetwork(*parts, (3, 32, 32), 10, dtype=dtype, bf16=bf16)
    for batch in (2, 17):
        with Allocations() as counted, recomputing(problem.blocks if recompute else ()):
            loss, rule = step_of(problem, step)
            costs._trial(loss, rule, *costs._example(loss, batch))
        inputs = batch * 3 * 32 * 32 * (8 if dtype == "float64" else 4)
        # the inputs are made within the block here, and are no part of what peak_bytes adds them to
        own = inputs + 8 * batch + sum(t.numel() * t.element_size() for t in problem.client_side.initial())
        assert peak(problem, batch, step, recompute) == counted.peak - own + inputs


class Halves(nn.Module):
    """Other operations for other numbers of samples."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(len(x) % 2):
            x = x + 1
        return x + 0


def test_small_steps_that_differ_and_peaks_that_move() -> None:
    """9 samples of 6 numbers: inputs, x + 1, (x + 1) + 0. A tensor of 100 bytes, or one of 10 for each sample: the peak
    moves. Mutations: the events matched by their number alone; the events' sums extrapolated."""
    problem = SplitNetwork(Halves(), nn.Linear(6, 3), nn.Linear(6, 3), (6,), 3)
    two, three = (costs._counted(*step_of(problem, "forward"), n, Allocations(), costs._trial).events for n in (2, 3))
    assert costs._peak(two, three, 9) is None
    assert peak(problem, 9, "forward") >= 3 * 9 * 6 * 4
    assert costs._peak([(0, 4), (0, -4), (1, 8)], [(0, 4), (1, 8), (0, -4)], 9) is None
    two, three = ([(0, 100), (0, -100), (1, 10 * n), (1, -10 * n)] for n in (2, 3))
    assert [costs._peak(two, three, n) for n in (2, 10, 11, 40)] == [100, 100, 110, 400]
    assert costs._peak([], [], 7) == 0


def test_products_are_counted_as_torch_counts_them() -> None:
    """Convolutions, products, their backward passes; twice as many for as many samples. Mutation: no backward pass."""
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))

    def step(n: int) -> None:
        net(torch.ones(n, 2, 8, 8)).sum().backward()

    found = []
    for n in (3, 6):
        with Products() as own:
            step(n)
        with FlopCounterMode(display=False) as theirs:
            step(n)
        assert own.flops == theirs.get_total_flops() > 0
        found.append(own.flops)
    assert found[1] == 2 * found[0]


def test_counting_does_not_load_torch_s_compiler() -> None:
    """Which would take seconds at the start of every run. Mutations: torch's own counter, or checkpoints; no tangent
    for the bias of a linear layer behind the moving ones.
    """
    script = (
        "import sys\nfrom zofl_mpi.rounds.split import costs\n"
        "from zofl_mpi.problems.split import SplitNetwork\n"
        "from zofl_mpi.problems.split_images import ResNet\n"
        "p = SplitNetwork(*ResNet(2, (1, 1)).parts((1, 8, 8), 10), (1, 8, 8), 10)\n"
        "from zofl_mpi.rounds.split.estimates import TwoPoint\nfrom zofl_mpi.rounds.split.client import HeadLoss\n"
        "from zofl_mpi.rounds.split.estimates import ForwardMode\nfrom zofl_mpi.rounds.split.rules import Backprop\n"
        "costs.macs(p)\n"
        "for r in (TwoPoint, Backprop): costs.peak_bytes(HeadLoss(p), r(slice(0, p.client_side.n)), 64)\n"
        "costs.peak_bytes(HeadLoss(p), ForwardMode(slice(0, p.n_client)), 64)\n"
        "with costs.recomputing(p.blocks): costs.step_macs(HeadLoss(p), Backprop(slice(0, p.client_side.n)))\n"
        "print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])\n"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert told.stdout == "[]\n"
