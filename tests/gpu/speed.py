"""How fast and in how much memory: the small models, the split network, the language model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.gpu import made
from tests.gpu.clock import kernels, peak, timed
from tests.gpu.correct import sizes_of
from tests.gpu.report import Bench
from tests.gpu.table2 import SHARES, predicted
from zofl_mpi.engine.clients import Client
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV1, SFLV2, SplitLoRA
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.rounds.split.client import CutLoss, HeadLoss
from zofl_mpi.rounds.split.costs import peak_bytes
from zofl_mpi.rounds.split.estimates import TwoPoint
from zofl_mpi.rounds.split.messages import Model as SplitModel
from zofl_mpi.rounds.split.rules import Backprop
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.local import LocalClients

Work = Callable[[], Any]
MIB = 2**20


def clients_of(method: Any) -> LocalClients:
    return LocalClients(list(method.setting.data), method=method)


def rounds_of(method: Any) -> Work:
    """A round of the method, all clients in this process, from its first state."""
    state, clients = method.start(), clients_of(method)
    return lambda: method.round(state, 0, clients)


def held(bench: Bench, name: str, work: Work) -> None:
    """The most that `work` holds on the GPU."""
    count = peak(bench, work)
    bench.figure(f"{name}: memory", None if count is None else count / MIB, "MiB")


def launches(bench: Bench, name: str, work: Work, steps: int) -> None:
    """Kernels of a local step: where a step's time is in proportion to them, launches limit it."""
    count = kernels(bench, work)
    bench.figure(f"{name}: kernels of a local step", None if count is None else count / steps, "1")


# --- small models


def zo_hfl(bench: Bench) -> None:
    """Both solves of all clients with the CNN, few clients and many."""
    sizes = sizes_of(bench)
    data, step = made.images(sizes.samples, sizes.side**2), {}
    steps = min(20, sizes.steps)
    for m in sizes.clients:
        own = made.setting(made.cnn(sizes, m, bench.device), data, m)
        flags: dict[str, Any] = {"tau": (float(steps),), "schedule_h": "constant", "batch": sizes.batch}
        method = from_flags(ZOHFL, own, **flags)
        message, clients, name = GlobalModel(method.start().x, 0), clients_of(method), f"ZO-HFL, m = {m}"

        def work(method: ZOHFL = method, clients: LocalClients = clients, message: GlobalModel = message) -> None:
            for _ in clients.ask(method.solve, message):
                pass

        seconds = timed(bench, work)
        step[m] = seconds / steps
        bench.figure(f"{name}: a local step of all clients, both solves", step[m], "s")
        bench.figure(f"{name}: local steps, both solves counted", 2 * m / step[m], "1/s")
        held(bench, name, work)
        if m == sizes.clients[0]:
            launches(bench, name, work, steps)
    few, many = sizes.clients
    bench.figure(f"ZO-HFL: local step of m = {many} over m = {few}", step[many] / step[few], "1")


def fedavg(bench: Bench) -> None:
    """FedAvg with the CNN, 10 clients: batched, and one after the other."""
    sizes = sizes_of(bench)
    m, steps, batch = sizes.clients[0], min(20, sizes.steps), min(32, sizes.batch)
    data = made.images(sizes.samples, sizes.side**2)
    flags: dict[str, Any] = {"tau": (float(steps),), "schedule_h": "constant", "batch": batch, "gamma_local": 0.01}
    seconds = {}
    for kernel in ("torch", "serial"):
        own = made.setting(made.cnn(sizes, m, bench.device, kernel=kernel), data, m)
        name = "FedAvg, CNN" + (", in turn" if kernel == "serial" else "")
        seconds[kernel] = small(bench, name, from_flags(FedAvg, own, **flags), m, steps, batch)
    bench.figure("FedAvg, CNN: clients in turn over batched", seconds["serial"] / seconds["torch"], "1")


def fedrzo(bench: Bench) -> None:
    """FedRZO with the CNN, 5 clients, one direction and many."""
    sizes = sizes_of(bench)
    own = made.setting(made.cnn(sizes, 5, bench.device), made.images(sizes.samples, sizes.side**2), 5)
    for n_p in (1, 16):
        method = from_flags(FedRZONN, own, H=min(20, sizes.steps), batch=sizes.batch, n_p=n_p, eta=1e-2)
        small(bench, f"FedRZO, n_p = {n_p}", method, 5, method.local.steps(), sizes.batch)


def small(bench: Bench, name: str, method: Any, m: int, steps: int, batch: int) -> float:
    """A round of `steps` local steps of m clients; its seconds."""
    work = rounds_of(method)
    seconds = timed(bench, work)
    bench.figure(f"{name}: a local step of all {m} clients", seconds / steps, "s")
    bench.figure(f"{name}: samples", m * steps * batch / seconds, "1/s")
    held(bench, name, work)
    launches(bench, name, work, steps)
    return seconds


# --- split learning


def plain(bench: Bench, sizes: made.Sizes, bf16: bool = False, tf32: bool = False) -> float:
    """Samples a second of training the network in one piece, its batches on the device already, as one would write it.

    In the package's precision, float32 that is float32, unless `tf32`, or bfloat16 where autocast says so; but with the
    algorithms that torch chooses where bits need not be the same each time.
    """
    client, _, server = made.parts(sizes)
    network: Any = nn.Sequential(client, server)
    network.to(bench.device, memory_format=torch.channels_last)
    rule = torch.optim.Adam(network.parameters(), 1e-4)
    data = made.pictures(sizes, 1, sizes.images, 1)[0]
    x, labels = (torch.from_numpy(a).to(bench.device) for a in data.take(np.arange(len(data)), np.float32))
    x = x.view(-1, 3, sizes.pixels, sizes.pixels).contiguous(memory_format=torch.channels_last)
    precision = torch.autocast(bench.device.partition(":")[0], torch.bfloat16, enabled=bf16)

    def work() -> None:
        for _ in range(sizes.uploads):
            rule.zero_grad()
            with precision:
                loss = nn.functional.cross_entropy(network(x), labels)
            loss.backward()
            rule.step()

    torch.use_deterministic_algorithms(False)  # a problem of the package demands them again
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=tf32):
        return sizes.uploads * len(x) / timed(bench, work, 0.1)


KINDS = {"float32": {}, "TF32": {"tf32": True}, "bfloat16": {"bf16": True}}


def split(bench: Bench) -> None:
    """ResNet-18 at [C]'s batch: rounds of two clients in one process, beside plain training on the same device."""
    sizes, m = sizes_of(bench), 2
    data = made.pictures(sizes, m, sizes.images, sizes.uploads)
    samples = m * sizes.uploads * sizes.images
    flags: dict[str, Any] = {"batch": sizes.images, "h": sizes.uploads}
    rates: dict[str, float] = {}
    for kind, precision in KINDS.items():
        if "tf32" in precision and not bench.on_gpu:
            continue
        whole = plain(bench, sizes, **precision)
        bench.figure(f"ResNet-18, {kind}: plain training", whole, "samples/s")
        own = made.Setting(made.resnet(sizes, bench.device, **precision), made.STREAMS, data)
        methods = {"SFLV2": from_flags(SFLV2, own, **flags), "HERON": from_flags(HERON, own, **flags)}
        if not precision:
            methods["CSE-FSL"] = from_flags(HERON, own, estimate="exact", **flags)
            methods["SFLV1"] = from_flags(SFLV1, own, **flags)
        for name, method in methods.items():
            work = rounds_of(method)
            rate = samples / timed(bench, work, 0.1)
            bench.figure(f"ResNet-18, {kind}: {name}, clients and server", rate, "samples/s")
            held(bench, f"ResNet-18, {kind}: {name}", work)
            if not precision:
                rates[name] = rate
            if name == "SFLV2":
                bench.demand(f"ResNet-18, {kind}: SFLV2 over plain training", rate / whole, "at least", 0.7)
        forward_rate(bench, kind, methods["HERON"], data[0])
    memory_ratio(bench, sizes)
    predicted(bench, rates, forward(bench, sizes))


def forward_rate(bench: Bench, kind: str, method: HERON, data: Any) -> None:
    """HERON's client step beside the forward passes of its evaluations alone."""
    client, state, problem = Client(0, data), method.start(), method.setting.problem
    message = SplitModel(state.theta, state.buffers, 0)

    def steps() -> None:
        for _ in method.train(client, message):
            pass

    theta, buffers = (problem.to_device(t) for t in problem.client_side.initial())
    x, labels = problem.samples(data, np.arange(method.training.batch))
    evaluations = (1 + method.estimation.n_p) * method.training.steps(0)

    def passes() -> None:
        with torch.no_grad(), problem.client_side.bound_to(theta, buffers):
            for _ in range(evaluations):
                problem.local_loss(problem.smash(x), labels)

    own, least = timed(bench, steps, 0.1), timed(bench, passes, 0.1)
    bench.figure(f"ResNet-18, {kind}: HERON's client step", own / method.training.steps(0), "s")
    bench.demand(f"ResNet-18, {kind}: HERON's client step, share of its forward rate", least / own, "at least", 0.85)


def memory_ratio(bench: Bench, sizes: made.Sizes) -> None:
    """A client's step without a backward pass beside those with one, beyond the model: [C] Table II."""
    problem = made.resnet(sizes, bench.device)
    head, cut = HeadLoss(problem), CutLoss(problem)
    steps = {"HERON": (head, TwoPoint), "SFLV2": (cut, Backprop), "CSE-FSL": (head, Backprop)}
    peaks = {name: peak_bytes(loss, rule(slice(0, loss.travels)), sizes.images) for name, (loss, rule) in steps.items()}
    for name, count in peaks.items():
        bench.figure(f"ResNet-18, float32: memory of a client's step, {name}", count / MIB, "MiB")
    for name, share in SHARES.items():
        ratio = peaks["HERON"] / peaks[name]
        bench.demand(f"ResNet-18, float32: memory of a client's step, HERON over {name}", ratio, "at most", share)


def forward(bench: Bench, sizes: made.Sizes) -> float:
    """Samples a second of the whole network's forward pass, as evaluations take it."""
    problem = made.resnet(sizes, bench.device)
    theta, buffers, theta_s, buffers_s = (
        problem.to_device(t) for t in (*problem.client_side.initial(), *problem.server_side.initial())
    )
    x, _ = problem.example(sizes.images)

    def work() -> None:
        with (
            problem.evaluating(),
            problem.client_side.bound_to(theta, buffers),
            problem.server_side.bound_to(theta_s, buffers_s),
        ):
            problem.logits(x)

    return len(x) / timed(bench, work, 0.1)


def language(bench: Bench) -> None:
    """GPT-2 medium's shapes with LoRA: HERON and SplitLoRA."""
    sizes = sizes_of(bench)
    data = made.texts(sizes, sizes.texts * sizes.uploads)
    for bf16 in (False, True):
        problem, kind = made.gpt2(sizes, bench.device, bf16=bf16), "bfloat16" if bf16 else "float32"
        own = made.setting(problem, data, 1)
        flags: dict[str, Any] = {"batch": sizes.texts, "h": sizes.uploads}
        for cls in (HERON, SplitLoRA):
            work, name = rounds_of(from_flags(cls, own, **flags)), f"GPT-2 {sizes.model}, {kind}: {cls.__name__}"
            seconds = timed(bench, work, 0.2)
            bench.figure(f"{name}, a step of client and server", seconds / sizes.uploads, "s")
            bench.figure(f"{name}, tokens", sizes.uploads * sizes.texts * sizes.tokens / seconds, "1/s")
            held(bench, name, work)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "speed-resnet": split,
    "speed-gpt2": language,
    "speed-zo_hfl": zo_hfl,
    "speed-fedavg": fedavg,
    "speed-fedrzo": fedrzo,
}
