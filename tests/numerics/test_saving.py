"""Backward passes that hold less memory: the same gradient, statistics that move once, the memory that is counted."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.numerics.lm_toy import problem as texts_problem
from tests.numerics.lm_toy import setting as texts_setting
from tests.numerics.split_methods import (
    ESTIMATING,
    GENERATOR,
    LABELS,
    PIXELS,
    SPLIT,
    STREAMS,
    C,
    Make,
    apart,
    close,
    groups,
    local_of,
    method,
    resnet,
    run,
    seeded,
    setting,
    training,
    twins,
    vectors,
)
from tests.unit.made import complaint
from zofl_mpi.data import Dataset
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.problems import saving
from zofl_mpi.problems.counting import Allocations, Products
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network
from zofl_mpi.problems.saving import PLAIN, Saving, saving_of
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ResNet
from zofl_mpi.rounds.split.costs import STEP_COUNTED, STEP_MACS, macs, peak_bytes, step_macs

FIRST_ORDER = [cls for cls in SPLIT if cls not in ESTIMATING]


@pytest.mark.parametrize("cls", FIRST_ORDER)
@pytest.mark.parametrize(
    ("make", "memory"),
    [(resnet, "checkpoint"), (twins, "checkpoint"), (groups, "accumulate:2"), (groups, "accumulate:3")],
)
def test_a_run_is_the_plain_one_to_rounding(cls: Any, make: Make, memory: str) -> None:
    """Last batches are of 2, 2 and 3 samples. Mutations: running statistics that move in both computations, or not at
    all; parts that count alike; the last part forgotten; the gradient of the last part; uploads of one part."""
    own = setting(make)
    lean, plain = (run(method(cls, training(own, client_memory=each)), 2) for each in (memory, "none"))
    for name, value in vectors(lean).items():
        close(value, vectors(plain)[name])
    assert apart(lean.theta, method(cls, training(own)).start().theta)


@pytest.mark.parametrize("cls", [CSEFSL, SFLV2])
@pytest.mark.parametrize("memory", ["checkpoint", "accumulate:2", "accumulate:3"])
def test_texts_count_by_their_tokens(cls: Any, memory: str) -> None:
    """Mutations: parts weighted by texts; logits recomputed with other labels."""
    own = texts_setting(texts_problem())
    lean, plain = (run(method(cls, training(own, client_memory=each)), 1) for each in (memory, "none"))
    close(lean.theta, plain.theta)
    assert apart(lean.theta, method(cls, training(own)).start().theta)


@pytest.mark.parametrize("batchnorm", ["running", "every_pass"])
def test_statistics_that_stay_and_parts_of_a_batchnorm_that_normalises_by_them(batchnorm: str) -> None:
    """Mutations: refused in parts with running statistics; moved twice where perturbed passes move them too."""
    own = setting(resnet)
    plain = run(method(CSEFSL, training(own, batchnorm=batchnorm)), 2)
    for memory in ("checkpoint", "accumulate:3")[: 2 if batchnorm == "running" else 1]:
        lean = run(method(CSEFSL, training(own, batchnorm=batchnorm, client_memory=memory)), 2)
        close(lean.theta, plain.theta)
        close(lean.buffers, plain.buffers)


def test_clients_that_choose_by_device_hold_their_graphs_so() -> None:
    """HERON's exact estimate is CSE-FSL. Mutation: the plain rule there."""
    lean = method(HERON, training(setting(groups), client_memory="accumulate:2"), estimate="exact")
    assert lean.rule.saving == Saving(parts=2)
    close(run(lean, 1).theta, run(method(CSEFSL, training(setting(groups))), 1).theta)


# --- memory and products


@pytest.mark.parametrize("memory", ["none", "checkpoint", "accumulate:2", "accumulate:4"])
@pytest.mark.parametrize("cls", [CSEFSL, SFLV2])
@pytest.mark.parametrize("batch", [4, 6])
def test_the_memory_that_is_counted_is_that_of_a_real_step(cls: Any, memory: str, batch: int) -> None:
    """To the byte, also where parts are unequal. Mutations: the graph of all parts; the mini-batch as one; two and
    three samples in as many parts as all; the plain step."""
    of = method(cls, training(setting(groups), client_memory=memory, batch=batch))
    local = local_of(of, 1)
    q, x, labels = next(iter(local))
    with Allocations() as counted:
        point = of.rule.forward(local, x, labels)
        slope = torch.zeros_like(point.smashed)  # type: ignore[arg-type]
        of.rule(local, point, slope if of.loss.at_cut else labels, local.key(q))
        del point
    inputs = x.nbytes
    assert peak_bytes(of.loss, of.rule, batch) == inputs + counted.peak


def test_parts_and_blocks_take_less_memory_and_blocks_more_products() -> None:
    """Mutations: one more pass of the head; none more at the cut for parts; a pass that is not counted."""
    problem = SplitNetwork(*ResNet(8, (2, 2), 3, norm="group").parts((1, 16, 16), C), (1, 16, 16), C)
    own = replace(setting(groups), problem=problem, data=(Dataset(np.zeros((64, 256)), np.zeros(64, int), C),) * 2)
    client, head, _ = macs(problem)
    for cls, passes in ((CSEFSL, 3 * (client + head)), (SFLV2, 3 * client)):
        found, needs = {}, {}
        for memory in ("none", "checkpoint", "accumulate:4"):
            of = method(cls, training(own, batch=16, client_memory=memory))
            found[memory], needs[memory] = of.costs(), of.device_needs()[0]
        more = step_macs(of.loss, replace(of.rule, saving=Saving(True))) - step_macs(
            of.loss, replace(of.rule, saving=PLAIN)
        )
        assert 0.7 * client < more <= client
        again = client if of.loss.at_cut else 0
        wanted = {"none": passes, "checkpoint": passes + more, "accumulate:4": passes + again}
        for memory, each in wanted.items():
            assert found[memory][STEP_MACS] == round(16 * each)
            assert needs[memory].macs * 16 == round(16 * each)
        assert needs["accumulate:4"].bytes < needs["checkpoint"].bytes < needs["none"].bytes
        assert found["accumulate:4"][STEP_COUNTED] == found["none"][STEP_COUNTED] + 16 * again


# --- blocks computed again


class Square(nn.Module):
    """Changes its input in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(x)


def backward(forward: Any, bf16: bool, passes: int = 1) -> tuple[list[list[Tensor]], list[Tensor], int, int]:
    """Gradients of some passes through one graph, BatchNorm's statistics, peak bytes and FLOPs.

    Each of three blocks is computed by `forward(block, x)`.
    """
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(True), nn.Conv2d(4, 4, 3, padding=1)) for _ in range(3)]
    last, x = nn.Linear(4 * 36, C), torch.randn(5, 4, 6, 6)
    net = nn.ModuleList([*blocks, last])
    with Allocations() as counted, Products() as products:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for block in blocks:
                x = forward(block, x)
            loss = last(x.flatten(1)).float().logsumexp(1).sum()
        again = ((loss, list(net.parameters()), None, k < passes - 1) for k in range(passes))
        found = [list(torch.autograd.grad(*each)) for each in again]
        del x, loss
    return found, list(net.buffers()), counted.peak, products.flops


@pytest.mark.parametrize("bf16", [False, True])
def test_blocks_are_computed_again_as_torch_does_it(bf16: bool) -> None:
    """To the bit and byte, in as many products; also by two backward passes through one graph. Mutations: in float32
    beside autocast; a block computed to its end; tensors that live on; a second pass without tensors."""
    from torch.utils.checkpoint import checkpoint

    def theirs(block: nn.Module, x: Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)

    def ours(block: nn.Module, x: Tensor) -> Any:
        return saving._checkpointed(block.forward, x)

    for passes in (1, 2):
        (g, buffers, *sizes), (wanted, others, *like) = (backward(how, bf16, passes) for how in (ours, theirs))
        assert sizes == like
        for one, other in zip([*itertools.chain(*g), *buffers], [*itertools.chain(*wanted), *others], strict=True):
            assert torch.equal(one, other)
    plain = backward(lambda block, x: block(x), bf16)
    assert backward(ours, bf16)[2] < 0.9 * plain[2] and plain[3] < sizes[1]


def test_a_block_that_changes_its_input_is_refused() -> None:
    """Mutation: the changed input taken, which gives another gradient."""
    block = nn.Sequential(Square(), nn.Linear(3, 3), nn.Tanh())
    end = saving._checkpointed(block.forward, torch.ones(2, 3) * 2)
    with pytest.raises(RuntimeError, match="changes the input of its block in place"):
        end.sum().backward()
    with torch.no_grad():
        assert not saving._checkpointed(block.forward, torch.ones(2, 3)).requires_grad


# --- networks


class Deep(nn.Module):
    """Two sequences, with layers that have no parameters first and last, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        tanh = nn.Tanh()
        self.first = nn.Sequential(nn.Flatten(), nn.Linear(36, 9), tanh, nn.Linear(9, 9), tanh)
        self.last = nn.Sequential(nn.Linear(9, C))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x) * 2)  # type: ignore[no-any-return]


def network(module: nn.Module, memory: str = "none", **more: Any) -> Network:
    shape = (1, 6, 6)
    return Network(module, shape, C, client_memory=memory, weights=np.ones(1), dtype=np.float64, **more)


@pytest.mark.parametrize("make", [lambda: MLP(36, C, (9, 8)), lambda: CNN((1, 6, 6), C), Deep])
def test_a_network_s_local_steps_are_the_plain_ones_to_rounding(make: Any) -> None:
    """Mutations: parts that count alike; a layer left out of its group, or one that comes twice."""
    module, data = seeded(make), Dataset(PIXELS[:, :36], LABELS, C)  # type: ignore[type-var]
    batches, gammas = STREAMS(Purpose.BATCH).integers(60, size=(3, 7)), np.full(3, 0.1)
    plain = network(module)
    x = plain.initial(GENERATOR)
    end = plain.descend(data, x, batches, gammas, mu=0.3)
    for memory in ("checkpoint", "accumulate:3", "accumulate:9"):
        lean = network(module, memory)
        np.testing.assert_allclose(lean.descend(data, x, batches, gammas, mu=0.3), end, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(lean.gradient(x, data), plain.gradient(x, data), rtol=1e-12, atol=1e-14)
    assert np.abs(end - x).max() > 1e-3


def test_a_network_s_memory_and_products_are_those_of_a_real_step() -> None:
    """Mutations: the plain step's; groups that are the sequence's layers, which save nothing."""
    client, _, server = ResNet(8, (1, 1), norm="group").parts((1, 6, 6), C)
    module, found = nn.Sequential(client, server), {}
    for memory in ("none", "checkpoint", "accumulate:4"):
        problem = network(module, memory)
        function = problem._function
        data = Dataset(PIXELS[:, :36], LABELS, C)
        inputs, labels = function.samples(data, np.arange(60))
        point = function.vector(problem.initial(GENERATOR))
        with Allocations() as counted, Products() as products, function.bound_to(point):
            function.gradient(inputs, labels)
        own = labels.nbytes + point.nbytes + inputs.nbytes
        assert problem.client_bytes(60, True) == counted.peak + own
        assert problem.flops(60) == products.flops
        found[memory] = problem.client_bytes(60, True), problem.flops(60)
    assert found["accumulate:4"][0] < found["none"][0] and found["accumulate:4"][1] == found["none"][1]
    assert found["checkpoint"][0] < found["none"][0] < found["checkpoint"][1]


# --- refusals


def test_what_cannot_be_is_told_in_a_sentence() -> None:
    """Mutations: accepted; a plain pass in silence."""
    for text in ("accumulate", "accumulate:1", "accumulate:x", "checkpoint:2", "accumulate:1e3", ""):
        assert "choose none, checkpoint, or accumulate:PARTS" in complaint(saving_of, text)
    for text in ("none", "checkpoint", "accumulate:7"):
        assert str(saving_of(text)) == text
    for cls in FIRST_ORDER:
        said = complaint(method, cls, training(setting(resnet), client_memory="accumulate:2"))
        assert "--client-memory accumulate:2: BatchNorm normalises by the mini-batch" in said
    one = lambda: (nn.Flatten(), nn.Linear(64, C), nn.Linear(64, C))  # noqa: E731
    said = complaint(method, CSEFSL, training(setting(one), client_memory="checkpoint"))
    assert "no sequence of layers that could be computed again; use accumulate:PARTS" in said
    for cls, flags in itertools.product((HERON, HOSFL, DeComFL), ({}, {"exact_layers": 1, "head_gradient": "exact"})):
        if cls is HERON or not flags:
            said = complaint(method, cls, training(setting(groups), h=2, client_memory="checkpoint"), **flags)
            assert "this method's clients take no backward pass" in said
    said = complaint(network, MLP(36, C), "checkpoint", kernel="torch")
    assert "--kernel torch computes many clients at once" in said
    assert "no sequence of layers" in complaint(network, nn.Sequential(nn.Flatten(), nn.Linear(36, C)), "checkpoint")
    normed = nn.Sequential(nn.Flatten(), nn.Linear(36, C), nn.BatchNorm1d(C, track_running_stats=False))
    assert "another gradient" in complaint(network, normed, "accumulate:2")
    network(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, C)).eval(), "accumulate:2")
