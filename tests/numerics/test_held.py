"""What a client's device holds in a step: the count, and the bytes that torch's allocator gives out in a real one."""

import functools
import gc
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.numerics import lm_toy
from tests.numerics.split_methods import (
    EMBEDDINGS,
    LABELS,
    PIXELS,
    SGD,
    SIDE,
    STREAMS,
    C,
    groups,
    method,
    mlp,
    resnet,
    run,
    seeded,
    setting,
    training,
    worded,
)
from tests.numerics.test_fleet import fleet, normalised
from zofl_mpi.data import Dataset
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.fleet import HELD_BYTES
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.heron_sfl import METHODS
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL, HiSo
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.models import CNN, MLP
from zofl_mpi.problems.network import Network
from zofl_mpi.rounds.split import costs, pieces, unsplit
from zofl_mpi.rounds.split.costs import STEP_BYTES, WITHOUT, frozen_bytes
from zofl_mpi.rounds.split.unsplit import UnsplitMethod

BATCH, WHO = 6, 2
"""Of 15 samples of client WHO: three local steps, the first two alike."""
FEW = 64 * 8
"""Bytes of running sums and losses, a number each, and of what is in NumPy's memory of a mini-batch of images."""
T, TARGETS = lm_toy.CONTEXT - 2, 9


def allocated(work: Callable[[], object], ignored: Collection[int]) -> int:
    """The most bytes that torch's allocator has given out at once in `work`, those of some sizes not counted."""
    gc.collect()  # garbage of other steps, freed meanwhile, would count as memory given back
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            work()
    finally:
        gc.enable()
    assert seen.profiler is not None
    events = (event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]")
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(size for size in sizes if abs(size) not in ignored))


def uncounted(problem: Any) -> set[int]:
    """Sizes of what no tensor of a step holds: a generator's state, and in a convolution its inputs, unrolled."""
    state, sizes = len(torch.Generator().get_state()), list[int]()
    parts = [*problem.client_side.modules[:1], *problem.server_side.modules]
    modules = [m for part in parts for m in part.modules() if isinstance(m, nn.Conv2d)]
    hooks = [
        m.register_forward_hook(lambda m, _, y: sizes.append(m.weight[0].numel() * y[0, 0].numel())) for m in modules
    ]
    (theta, buffers), (theta_s, buffers_s) = problem.client_side.initial(), problem.server_side.initial()
    x, labels = problem.example(2)
    with (
        torch.no_grad(),
        problem.client_side.bound_to(theta, buffers),
        problem.server_side.bound_to(theta_s, buffers_s),
    ):
        problem.forward_loss(problem.smash(x), labels)
    for hook in hooks:
        hook.remove()
    return {state, *(8 * count * size for count in range(1, BATCH + 1) for size in sizes)}


def longest_texts() -> Setting:
    """Each of the longest input, with the longest completion, as memory is counted for."""
    own = lm_toy.setting()
    rows = np.full((15, 2 + lm_toy.CONTEXT), 6, np.uint16)
    rows[:, :2] = T + 1 - TARGETS, T + 1
    return replace(own, data=(Dataset(rows, np.zeros(15, np.int64), 1),) * 3)


PROBLEMS: dict[str, Callable[[], Setting]] = {
    "mlp": lambda: setting(mlp),
    "convolutions": lambda: setting(groups),
    "batchnorm": lambda: setting(resnet),
    "frozen layers": lambda: fleet(normalised, "first", ()),
    "texts": longest_texts,
    "embedding": lambda: worded(EMBEDDINGS["bare"]),
    "tied": lambda: worded(EMBEDDINGS["tied"]),
}
EXACT = {"head_gradient": "exact", "exact_layers": 1}
STEPS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    **{cls.__name__: (cls, {}, {}) for cls in METHODS.values()},
    **{cls.__name__: (cls, {"n_p": 3}, {}) for cls in [DeComFL, HiSo]},
    "SFLV2, checkpoint": (SFLV2, {}, {"client_memory": "checkpoint"}),
    "SFLV2, accumulate": (SFLV2, {}, {"client_memory": "accumulate:3"}),
    "CSEFSL, checkpoint": (CSEFSL, {}, {"client_memory": "checkpoint"}),
    "CSEFSL, accumulate": (CSEFSL, {}, {"client_memory": "accumulate:2"}),
    "CSEFSL, frozen head": (CSEFSL, {}, {"freeze": "auxiliary"}),
    "CSEFSL, averaged moments": (CSEFSL, {}, {"state": "average"}),
    "HERON, central": (HERON, {"estimate": "central", "n_p": 2}, {}),
    "HERON, jvp": (HERON, {"estimate": "jvp"}, {}),
    "HERON, seeds": (HERON, {"uplink": "seeds", "n_p": 3}, {}),
    "HERON, signs": (HERON, {"directions": "per-sample"}, {}),
    "HERON, exact head": (HERON, {"head_gradient": "exact"}, {}),
    "HERON, exact layers": (HERON, EXACT, {}),
    "HERON, frozen layers": (HERON, {**EXACT, "rest": "frozen"}, {}),
    "HOSFL, signs": (HOSFL, {"directions": "per-sample"}, {}),
    "HOSFL, exact layers": (HOSFL, {"exact_layers": 1}, {}),
    "DeComFL, one step": (DeComFL, {"n_p": 3}, {"h": 1}),
    "HiSo, central": (HiSo, {"estimate": "central", "n_p": 2}, {}),
}
"""A method, its flags, those of the round."""
OPTIMISERS = {"sgd": Optimiser("sgd"), "momentum": SGD, "adam": Optimiser()}


@functools.lru_cache(maxsize=1)
def setting_of(problem: str) -> Setting:
    """Made once: no step changes it."""
    return PROBLEMS[problem]()


def made(which: str, problem: str, optimiser: str) -> Any:
    cls, flags, rounds = STEPS[which]
    usual = {"h": 2} if issubclass(cls, UnsplitMethod) else {}
    plan = training(setting_of(problem), OPTIMISERS[optimiser], **{"batch": BATCH, **usual, **rounds})
    return method(cls, plan, **flags)


def step_of(of: Any) -> int:
    """Bytes of the local steps of a client, beyond what it got; not those of messages and of the server."""
    if isinstance(of, UnsplitMethod):
        return whole_round(of)
    state, client = of.start(), Client(WHO, of.setting.data[WHO])
    head = not (of.loss.at_cut or isinstance(of, FSLSAGE))
    message = of.begin_round(state, 0, head=head)

    def steps() -> None:
        local, answer = of.train(client, message), None
        with suppress(StopIteration):
            while True:
                sent = local.send(answer)
                answer = torch.zeros_like(sent.s) if of.loss.at_cut else None
                del sent

    return allocated(steps, uncounted(of.problem))


def whole_round(of: Any) -> int:
    """The same of a method whose clients answer once."""
    train, found, replies, ignored = type(of).train, [], [], uncounted(of.problem)

    @functools.wraps(train)
    def measured(self: Any, client: Client, message: Any) -> Any:
        found.append(allocated(lambda: replies.append(train(self, client, message)), ignored))
        return replies.pop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(of), "train", measured)
        patched.setattr(pieces, "AT_ONCE", 0)  # a device computes as a large network does, and draws again
        patched.setattr(unsplit, "DIRECTIONS_SHARE", 0)
        run(of, 1)
    return max(found[1:])  # the first client of a process unpacks what all of them share


ONCE = ("central", "seeds", "frozen head", "averaged", "one step", "accumulate")
"""Ways whose memory differs by counts of tensors alone, whatever the network: with two of them."""


def cases(problem: str) -> Iterator[tuple[str, Any]]:
    """(name, method) of all steps that the problem's network can take, those of ONCE with two networks alone."""
    for which, (cls, _, _) in STEPS.items():
        if problem not in ("mlp", "convolutions") and any(way in which for way in ONCE):
            continue
        several = problem == "mlp" and which in ("CSEFSL", "HERON", "DeComFL, one step")
        for name in OPTIMISERS if several else ["sgd" if cls is FedKSeed else "adam"]:
            with suppress(UserError):  # BatchNorm in parts, signs of texts, ...
                yield f"{problem}: {which}, {name}", made(which, problem, name)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_device_holds_what_torch_allocates_in_a_real_step(problem: str) -> None:
    """By torch's own allocator. Uncounted are generators' states and what a kernel takes while it computes: of a
    convolution in float64 its unrolled inputs and a result in another layout, of BatchNorm's backward pass a copy of a
    map. Counted but not allocated: tokens and labels, which are NumPy's, and zeros of a derivative along directions.

    Mutations: no frozen weights; no perturbed copy; no direction, or those drawn ahead; no moments; a step alone; the
    passes of `rule.trial`; the auxiliary head where the loss is at the cut; the model before DeComFL's local steps."""
    maps = {"batchnorm": 2 * 2 * SIDE * SIDE, "convolutions": 2 * 2 * SIDE * SIDE, "frozen layers": 4 * 4 * 4}
    for name, of in cases(problem):
        count, got = int(of.device_needs()[0].bytes), 0
        if isinstance(of, UnsplitMethod):  # the model and the moments before the round, which all clients share here
            x = of.loss.flat.initial()[0]
            got = x.nbytes + sum(value.nbytes for value in of.first_moments(x).values() if isinstance(value, Tensor))
        known = frozen_bytes(of.loss) + got + step_of(of)
        numpys = 2 * 8 * BATCH * T if problem == "texts" else 0
        within = problem == "convolutions" and "jvp" not in name
        slack = FEW + (0 if within else 8 * BATCH * maps.get(problem, 0))
        assert -slack <= count - known <= numpys + slack, (name, count, known)


@pytest.mark.parametrize("memory", ["none", "checkpoint", "accumulate:3"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_whole_network_holds_what_torch_allocates_in_a_real_step(name: str, memory: str) -> None:
    """Of `descend`, beside the first model, and of a loss. Labels are NumPy's; a convolution's inputs unrolled and a
    map in another layout are a kernel's. Mutations: without the gradient, the mini-batch, or the model; the plain step
    for all; a graph kept for a loss."""
    make, maps, unrolled = {
        "mlp": (lambda: MLP(SIDE * SIDE, C, (90, 80)), 0, ()),
        "cnn": (lambda: CNN((1, SIDE, SIDE), C, (3, 5)), 3 * SIDE * SIDE, (25 * SIDE * SIDE, 75 * SIDE * SIDE // 4)),
    }[name]
    problem = Network(seeded(make), (1, SIDE, SIDE), C, client_memory=memory, weights=np.ones(1), dtype=np.float64)
    ignored = {8 * count * size for count in range(1, BATCH + 1) for size in unrolled}
    data, x = Dataset(PIXELS, LABELS, C), problem.initial(STREAMS(Purpose.START))
    batch = np.arange(BATCH)
    step = allocated(lambda: problem.descend(data, x, batch[None], np.full(1, 0.1)), ignored)
    loss = allocated(lambda: problem.losses(0, x[None], data, batch), ignored)
    for gradient, known in ((True, step - x.nbytes), (False, loss)):
        assert abs(problem.client_bytes(BATCH, gradient) - known) <= FEW + 8 * BATCH * maps, known


def test_frozen_weights_are_those_of_the_parts_that_a_client_holds() -> None:
    """The embedding that the head shares counts once. Mutations: the server's; the head's at the cut; twice; none."""
    own = PROBLEMS["texts"]()
    parts = own.problem.parts
    for which, held in (("SFLV2", parts[:1]), ("HERON", parts[:2]), ("DeComFL", (parts[0], parts[2]))):
        cls, flags, _ = STEPS[which]
        of = method(cls, training(own, Optimiser("sgd"), h=2), **flags)
        weights = {p.data_ptr(): p.nbytes for part in held for p in part.parameters() if not p.requires_grad}
        masks = {b.data_ptr(): b.nbytes for part in held for b in part.buffers()}
        frozen = sum((weights | masks).values())
        assert frozen_bytes(of.loss) == frozen
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(costs, "frozen_bytes", lambda loss: 0)
            without = of.held_bytes(of.rule)
        assert of.held_bytes(of.rule) - without == frozen > 0


def test_a_remedy_that_takes_more_memory_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Parts hold the sum and a whole further gradient. Mutations: nothing said; said of one that helps."""
    lean, plain = (made(which, "mlp", "sgd") for which in ("CSEFSL, accumulate", "CSEFSL"))
    counted = lean.costs()
    alone = plain.held_bytes(plain.rule)
    assert counted[HELD_BYTES + WITHOUT] == alone < counted[HELD_BYTES] and HELD_BYTES not in plain.costs()
    found = f"holds {counted[HELD_BYTES]:,} bytes, without it {alone:,}"
    assert f"--client-memory accumulate:2: a client's step {found}" in capsys.readouterr().err
    helps = made("CSEFSL, accumulate", "convolutions", "sgd").costs()
    assert helps[HELD_BYTES] < helps[HELD_BYTES + WITHOUT] and not capsys.readouterr().err


def test_passes_of_pieces_are_counted_with_the_layer_that_is_perturbed() -> None:
    """Passes along directions hold the largest layer of theta + mu u, and a piece of u, that is all of it here.
    Mutation: a pass at the model itself."""
    of = made("DeComFL", "mlp", "sgd")
    largest, d = 8 * SIDE * SIDE * 4, 8 * of.loss.flat.n
    assert of.costs()[STEP_BYTES] >= largest + d
