"""How much a step of split learning costs beside its arithmetic: `python -m tests.bench.steps [--quick]`.

Two networks whose arithmetic is small, on one core: ResNet of width 8 on images of 8 x 8 in batches of 8, and the
split network of jobs/c_pays.toml, in its batches of 32 of CIFAR-10's shape. All variants of a network run in turn; the
best of many times counts, in CPU seconds of the one thread.

- SFLV2, client and server in one process, beside training the network in one piece with torch, its batch at hand, or
  taken from the samples by their positions, as SFLV2 does, too.
- HERON's client step beside the two bare forward passes that it cannot do without; and beside these with what else
  every client of HERON does, as one would write it on a flat vector: draw a direction, go to a second point, step.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.gpu import made
from zofl_mpi.engine import device
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.problems.network import seeded
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.problems.split_images import ConvNet, ResNet
from zofl_mpi.rounds.split.messages import Model
from zofl_mpi.run.flags import built
from zofl_mpi.run.local import LocalClients

Work = Callable[[], Any]
H, AIM, MU = 20, 0.9, 1e-3
NETWORKS: dict[str, tuple[Any, int, int]] = {
    "ResNet of width 8": (ResNet(8), 8, 8),
    "split_cnn of c_pays": (ConvNet(), 32, 32),
}
"""A network, pixels a side, samples of a batch."""


def seconds(variants: Mapping[str, Work], repeats: int) -> dict[str, float]:
    """CPU seconds of a step of each variant, the best of `repeats` times that each takes H of them."""
    found = dict.fromkeys(variants, np.inf)
    for _ in range(repeats):
        for name, work in variants.items():
            start = time.thread_time()
            work()
            found[name] = min(found[name], (time.thread_time() - start) / H)
    return found


def plain(parts: Any, batches: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> Work:
    """Training the network in one piece."""
    network = nn.Sequential(parts[0], parts[2]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rule = torch.optim.Adam(network.parameters(), 1e-4)

    def work() -> None:
        for _ in range(H):
            x, labels = batches()
            rule.zero_grad()
            nn.functional.cross_entropy(network(x), labels).backward()  # type: ignore[no-untyped-call]
            rule.step()

    return work


def passes(parts: Any, x: torch.Tensor, labels: torch.Tensor) -> Work:
    """The client's two forward passes with their losses, and nothing else."""
    network = nn.Sequential(parts[0], parts[1])

    def work() -> None:
        with torch.no_grad():
            for _ in range(2 * H):
                nn.functional.cross_entropy(network(x), labels)

    return work


def least(parts: Any, x: torch.Tensor, labels: torch.Tensor) -> Work:
    """A client of HERON that keeps no seed, counts nothing and uploads nothing."""
    network = nn.Sequential(parts[0], parts[1])
    theta = nn.Parameter(nn.utils.parameters_to_vector(network.parameters()).detach())
    nn.utils.vector_to_parameters(theta, network.parameters())  # views: what moves theta moves the network
    rule, generator = torch.optim.Adam([theta], 1e-4), torch.Generator().manual_seed(1)

    def work() -> None:
        with torch.no_grad():
            for _ in range(H):
                u = torch.randn(len(theta), generator=generator)
                base = nn.functional.cross_entropy(network(x), labels)
                theta.add_(u, alpha=MU)
                plus = nn.functional.cross_entropy(network(x), labels)
                theta.sub_(u, alpha=MU)
                theta.grad = (plus - base) / MU * u
                rule.step()

    return work


def measured(name: str, repeats: int) -> None:
    """Times and ratios of one network."""
    flags, side, batch = NETWORKS[name]
    shape = (3, side, side)

    def parts() -> Any:
        return seeded(lambda: flags.parts(shape, made.CLASSES), made.STREAMS(Purpose.MODULE))

    problem = SplitNetwork(*parts(), shape, made.CLASSES)
    data = made.images(H * batch, 3 * side**2)
    own = Setting(problem, made.STREAMS, (data,))
    sflv2, heron = (built(cls, own, batch=batch, h=H) for cls in (SFLV2, HERON))
    state, clients = sflv2.start(), LocalClients([data], method=sflv2)
    message, client = Model(heron.start().theta, heron.start().buffers, 0), Client(0, data)
    x, labels = problem.samples(data, np.arange(batch))
    all_x, all_labels = problem.samples(data, np.arange(len(data)))
    draw = torch.Generator().manual_seed(1)

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.randint(len(all_labels), (batch,), generator=draw)
        return all_x[positions], all_labels[positions]

    found = seconds(
        {
            "SFLV2": lambda: sflv2.round(state, 0, clients),
            "torch": plain(parts(), lambda: (x, labels)),
            "drawing": plain(parts(), drawn),
            "HERON": lambda: list(heron.train(client, message)),
            "passes": passes(parts(), x, labels),
            "least": least(parts(), x, labels),
        },
        repeats,
    )
    us = {kind: f"{1e6 * value:.0f} us" for kind, value in found.items()}
    print(f"\n{name}, {3} x {side} x {side}, batch {batch}, d = {problem.local.n}")
    at_hand, share = (found[kind] / found["SFLV2"] for kind in ("torch", "drawing"))
    print(f"  SFLV2 {us['SFLV2']}, plain training {us['drawing']}: {share:.2f} of its rate (aim: {AIM});")
    print(f"    {at_hand:.2f} of that with its batch at hand: {us['torch']}")
    share, floor = (found["passes"] / found[kind] for kind in ("HERON", "least"))
    print(f"  HERON's client {us['HERON']}, two bare passes {us['passes']}: {share:.2f} of their rate (aim: {AIM});")
    share = found["least"] / found["HERON"]
    print(f"    {share:.2f} of that of a bare loop that also draws, moves and steps: {us['least']}, itself {floor:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: a few seconds")
    repeats = 5 if parser.parse_args().quick else 60
    device.limit_threads(1)
    device.keep_freed_memory()
    for name in NETWORKS:
        measured(name, repeats)


if __name__ == "__main__":
    main()
