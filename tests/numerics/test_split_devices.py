"""The split methods on any device: one way of computing, nothing that waits within a step, the CPU's numbers.

Where there is no GPU the same ways are taken on the CPU, with tensors that count as a GPU's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bench import gpu_split
from tests.bench.gpu_split import VARIANTS, made
from tests.conftest import Patch, start
from tests.numerics import lm_toy
from tests.numerics.split_methods import LABELS, PIXELS, SGD, C, local_of, method, run, setting, training, vectors
from zofl_mpi.data import Dataset
from zofl_mpi.engine import device as devices
from zofl_mpi.engine import lazy, messages
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.problems import device_cache, layers, split, split_lm
from zofl_mpi.problems.flat import Flat
from zofl_mpi.rounds.split.client import LocalSteps, drawn
from zofl_mpi.run.loop.local import LocalClients

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2"}
"""Operations whose result the host must know."""
WHICH = pytest.mark.parametrize("which", VARIANTS)


# --- what waits


class Asked(TorchDispatchMode):
    """Counts what the host must know of a device, aside from what is done on the host anyway."""

    def __init__(self, monkeypatch: Patch) -> None:
        super().__init__()
        self.count, self.quiet = 0, 0
        for name in ("cpu", "tolist"):
            monkeypatch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))
        monkeypatch.setattr(messages, "is_remote", lazy.is_tensor)
        for owner, name in (
            (LocalSteps, "inputs"),
            (split_lm.SplitLM, "samples"),
            (split_lm.SplitLM, "to_device"),
            (messages, "_host_dtype"),
            (layers, "one_hot"),  # which looks at its labels on the CPU alone
        ):
            monkeypatch.setattr(owner, name, self._on_host(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += not self.quiet
            return call(*arguments, **named)

        return counted

    def _on_host(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def quiet(*arguments: Any, **named: Any) -> Any:
            with self.hushed():
                return call(*arguments, **named)

        return quiet

    @contextmanager
    def hushed(self) -> Iterator[None]:
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = call(*args, **(kwargs or {}))
        name = call.overloadpacket.__name__
        masks = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        self.count += (name in WAITS or masks) and not self.quiet
        return found


def waits(of: Any) -> int:
    """How often a round, and then an evaluation, make the host wait."""
    with Patch.context() as patched:
        asked = Asked(patched)
        with asked:
            run(of, 1)
        return asked.count


@WHICH
def test_a_round_waits_as_often_however_many_steps_it_has(which: str) -> None:
    """Mutations: a loss, a coefficient of an estimate or a difference told to the host at each step; a mask."""
    few, many = (waits(made(which, h=h)) for h in (1, 4))
    assert few == many < 60


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="torch has no hollow devices"
)
def test_all_that_a_step_computes_with_lies_on_one_device() -> None:
    """Every method, client and server, on a device that holds nothing. Mutations: a tensor made on the host where the
    model is elsewhere; a number that a step tells the host."""
    ended = start(0, "-m", "tests.fake_gpu")
    assert ended.returncode == 0, ended.stderr[-2000:]
    stepped = [which for which, (cls, _, _) in {**VARIANTS, **gpu_split.TEXTS}.items() if cls is not DeComFL]
    assert ended.stdout.splitlines() == stepped


def test_an_evaluation_waits_as_often_however_many_samples_it_has(monkeypatch: Patch) -> None:
    """Mutation: numbers of each block."""
    from zofl_mpi.rounds.split import method as split_method

    found = []
    for block in (2, 29):
        monkeypatch.setattr(split_method, "EVALUATION_SAMPLES", block)
        of = made("CSEFSL", h=1)
        with Patch.context() as patched:
            asked = Asked(patched)
            with asked:
                told = of.evaluate(of.start(), 0, LocalClients(list(of.setting.data), method=of))
            found.append((asked.count, told.test_accuracy))
    assert found[0] == found[1]


# --- the same numbers


@WHICH
def test_five_rounds_agree_with_those_of_the_cpu(which: str, device: str, monkeypatch: Patch) -> None:
    """To 1e-10 of the norm, in float64, with directions from the host; on the CPU by a GPU's ways. Mutations:
    directions by a generator of the device; an upload that is the client's own memory; labels or samples of other
    positions; the layout of a mini-batch taken for another."""
    expected = vectors(run(made(which), 5))
    if device == "cpu":
        monkeypatch.setattr(messages, "is_remote", lazy.is_tensor)
        monkeypatch.setattr(device_cache, "is_host", lambda device: False)
    else:
        devices.select("cuda")
    gpu_split.agrees(which, device, expected)


@pytest.mark.parametrize("distribution", ["gaussian", "sphere", "sqrt_d_sphere"])
def test_directions_of_the_host_come_through_pinned_memory(distribution: str, monkeypatch: Patch) -> None:
    """A device of torch's that holds nothing stands for the GPU. Mutations: pageable memory, for which a GPU waits;
    other numbers than a CPU's; a sphere drawn where the model is."""
    seed, pinned, randn = Streams(3), [], torch.randn

    def noted(*size: int, pin_memory: bool = False, **kind: Any) -> Tensor:
        pinned.append(pin_memory)
        return randn(*size, **kind)

    monkeypatch.setattr(torch, "randn", noted)
    sent: list[Tensor] = []
    to = torch.Tensor.to

    def kept(own: Tensor, *arguments: Any, **named: Any) -> Tensor:
        sent.append(own.clone())
        return to(own, *arguments, **named)

    own, other = (seed(Purpose.DIRECTION, t=4) for _ in range(2))
    expected = list(drawn(own, torch.zeros(40), 2, distribution))
    monkeypatch.setattr(torch.Tensor, "to", kept)
    found = list(drawn(other, torch.zeros(40, device="meta"), 2, distribution, "host"))
    assert [u.device.type for u in found] == ["meta"] * 2 and pinned == [False, False, True, True]
    assert all(torch.equal(a, b) for a, b in zip(sent, expected, strict=True))


@pytest.mark.parametrize("call", [call for call in gpu_split.CALLS if call is not gpu_split.five_rounds])
def test_what_a_gpu_shows_runs_on_any_device(call: Any, device: str) -> None:
    """The benchmark's calls; on the CPU, that they run."""
    if device == "cuda":
        devices.select("cuda")
    elif call is gpu_split.no_step_waits:
        pytest.skip("nothing waits for a CPU")
    call(device)


# --- samples


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("each", [False, True], ids=["numbers", "of each feature"])
def test_samples_on_a_device_have_the_bits_of_the_hosts(dtype: str, kind: Any, each: bool, monkeypatch: Patch) -> None:
    """Mutations: a scale that is rounded otherwise than the inputs; no shift; positions for rows; a data set that is
    placed anew with each mini-batch, or never."""
    p = PIXELS.shape[1]
    factors = [np.linspace(0.1, 0.9, p), np.linspace(-1, 1, p)] if each else [1 / 255, -0.3]
    data = Dataset((250 * PIXELS).astype(kind), LABELS.copy(), C, np.arange(50)[::-1], *factors)
    positions = np.array([3, 0, 49, 3])
    placed: list[int] = []
    tensor = torch.tensor
    monkeypatch.setattr(device_cache, "is_host", lambda device: False)
    monkeypatch.setattr(torch, "tensor", lambda values, **named: placed.append(1) or tensor(values, **named))
    for most in (device_cache.MAX_BYTES_ON_GPU, 0):
        monkeypatch.setattr(device_cache, "MAX_BYTES_ON_GPU", most)
        for _ in range(2):
            inputs, labels = device_cache.samples_on("cpu", data, positions, dtype)
            expected = data.take(positions, np.dtype(dtype))
            assert inputs.numpy().tobytes() == expected[0].tobytes() and inputs.numpy().dtype == expected[0].dtype
            assert np.array_equal(labels.numpy(), expected[1]) and labels.dtype == torch.int64
    assert len(placed) == 2 + 2 * each


# --- the same bits each time, in full precision


@pytest.fixture
def as_before() -> Iterator[None]:
    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, filled = torch.backends.cudnn, torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
    torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = flags
    torch.set_float32_matmul_precision(precision)


def sharp(tf32: bool = False) -> tuple[bool, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        not cudnn.benchmark,
        cudnn.allow_tf32 is tf32,
        not torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        torch.get_float32_matmul_precision() == ("high" if tf32 else "highest"),
    )


@pytest.mark.usefixtures("as_before")
def test_a_gpu_is_told_to_give_the_same_bits_before_it_computes(monkeypatch: Patch) -> None:
    """Mutations: a setting that is left out; TF32 unasked; cuBLAS's workspace in place of the user's."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    devices.reproducible()
    assert devices.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert all(sharp()) and torch.is_deterministic_algorithms_warn_only_enabled()
    devices.reproducible(tf32=True)
    assert all(sharp(tf32=True))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    devices.reproducible()
    assert devices.os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8" and all(sharp())


class OnGPU(torch.Tensor):
    """A vector that counts as a GPU's."""

    is_cuda = True


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("strict", "tf32"), [(False, False), (True, False), (False, True)])
def test_within_a_model_on_a_gpu_torch_warns_or_refuses(strict: bool, tf32: bool, monkeypatch: Patch) -> None:
    """And is told once a process. Mutations: nothing set where nobody has selected a device; refusals in place of
    warnings; attention that only warns; --tf32 that reaches nothing; settings made anew for each pass."""
    told = list[object]()
    monkeypatch.setattr(torch, "set_float32_matmul_precision", told.append)
    own = Flat([torch.nn.Linear(2, 1)], strict, tf32)
    for theta in (own.initial()[0], *[own.initial()[0].as_subclass(OnGPU)] * 3):
        with own.bound_to(theta):
            on_gpu = isinstance(theta, OnGPU)
            assert torch.are_deterministic_algorithms_enabled() is on_gpu
    assert torch.is_deterministic_algorithms_warn_only_enabled() is not strict
    assert torch.backends.cudnn.allow_tf32 is tf32 and told == ["high" if tf32 else "highest"]


def test_the_kernel_of_a_result_tells_its_arithmetic() -> None:
    """Mutations: TF32 untold; told where a CPU computes, which has none."""
    for place, told in (("cuda:0", "torch cuda bf16 tf32"), ("cpu", "torch cpu bf16")):
        own = SimpleNamespace(device=place, bf16=True, tf32=True)
        assert split.TorchSplit.kernel_name(own, 8) == told  # type: ignore[arg-type]


def test_attention_is_held_to_the_same_bits() -> None:
    """Mutation: a language model whose kernels may warn."""
    own = lm_toy.problem()
    assert own.client_side._strict and own.server_side._strict and not setting().problem.client_side._strict


# --- bfloat16


@pytest.mark.parametrize("which", ["HERON", "SFLV2"])
def test_losses_in_bfloat16_are_near_those_in_float32(which: str, device: str) -> None:
    """A step rounds weights, inputs and outputs of each of 14 layers to 8 bits, which moves logits by at most so many
    roundings of the largest, and the loss by twice that. Mutations: bfloat16 for the losses themselves; no bfloat16 at
    all."""
    if device == "cuda":
        devices.select("cuda")
    losses = []
    for bf16 in (False, True):
        of = method(VARIANTS[which][0], training(setting(dtype="float32", bf16=bf16, device=device), SGD, h=2))
        local = local_of(of)
        _, x, labels = next(iter(local))
        with torch.no_grad(), local.bound_to(local.buffers):
            smashed = of.setting.problem.smash(x)
            loss = None if of.loss.at_cut else of.setting.problem.local_loss(smashed, labels)  # else it has no head
        assert smashed.dtype == (torch.bfloat16 if bf16 else torch.float32)
        assert loss is None or loss.dtype == torch.float64
        state = run(of, 1)
        assert all(torch.isfinite(vector).all() for vector in vectors(state).values())
        losses.append(np.array([state.server_loss if loss is None else float(loss), state.server_loss]))
    difference = np.abs(losses[1] - losses[0])
    assert np.all(difference > 0) and np.all(difference <= 2 * 3 * 14 * 2.0**-9 * np.max(losses))


def test_what_arrives_at_a_gpu_has_its_channels_last(monkeypatch: Patch) -> None:
    """As before it travelled; on a CPU it stays as it came. Mutations: the layout that travels; another on a CPU."""
    own = setting().problem
    came = torch.arange(2.0 * 3 * 4 * 5).view(2, 3, 4, 5)
    assert own.to_device(came) is came
    monkeypatch.setattr(device_cache, "is_host", lambda device: False)
    found = own.to_device(came)
    assert torch.equal(found, came) and found.is_contiguous(memory_format=torch.channels_last)
    assert own.to_device(came.flatten()).is_contiguous()
