"""FedKSeed: clients train the entire network along K shared directions and exchange K numbers.

Qin, Chen, Qian, Ding, Li, Deng, "Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication
Cost under 18 Kilobytes", ICML 2024, arXiv:2312.06353.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Client, Clients, Directions, Purpose, at_least, column, demand, flag_group
from zofl_mpi.engine.lazy import Tensor
from zofl_mpi.rounds.split.client import Key
from zofl_mpi.rounds.split.costs import Traffic
from zofl_mpi.rounds.split.messages import SplitState
from zofl_mpi.rounds.split.pieces import PieceEstimates
from zofl_mpi.rounds.split.rules import Lines
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.rounds.split.unsplit import ModelBroadcast, UnsplitMethod, Uploaded


@final
@dataclass(frozen=True)
class FedKSeed(UnsplitMethod):
    """The whole network along K fixed directions u_k by forward passes; in any round the model is x_0 - sum_k c_k u_k.

    Each local step draws a seed k and moves along u_k by the step size times the two-point estimate. A participant
    receives the K numbers c_k, from which it rebuilds the server's model exactly. It sends, summed by seed, its steps'
    loss differences times step sizes; the server adds their mean to c. Either side sends K numbers in the run's
    precision, for any number of rounds and steps. The optimiser must be plain SGD: only its model is a function of
    these sums.

    Attributes:
        seeds: K; the model is rebuilt from x_0 in one pass over the seeds used so far.
        seed_weights: probabilities of the seeds at a local step: uniform, or magnitude (FedKSeed-Pro): softmax of each
            seed's mean magnitude of loss differences so far (0 before the first), scaled to 0...1 over the seeds.
            Magnitude sends K more numbers down and 2 K more up: sums of magnitudes, and counts.
    """

    training: Training = flag_group(
        batch=32, h=20, lr_client=2e-3, optimiser="sgd", weights="uniform", paper={"batch": 8, "h": 200}
    )
    seeds: int = at_least(1, 512, "a whole number of seeds", paper=4096)
    seed_weights: Literal["uniform", "magnitude"] = "uniform"

    def round(self, state: KSeedState, r: int, clients: Clients) -> KSeedState:
        """Ask the participants for their sums, add the mean to c, and rebuild the model."""
        known = self.known(state.sums)
        message = SeededModel(**vars(self.broadcast(state, r)), magnitudes=known[1:])
        booked = dict.fromkeys(self.training.participants(r), message.booked(known.nbytes))
        average, loss = self.averaged(clients, message, booked, 0 * state.sums)
        sums = state.sums + average.differences
        x = self.model(self.known(sums)[0])
        own = {"optimiser": state.optimiser, "local_loss": loss, "sums": sums}
        return self.next_state(KSeedState, x, average.buffers, **own)

    def start(self) -> KSeedState:
        rows = 1 if self.seed_weights == "uniform" else 3
        return KSeedState(**vars(super().start()), sums=np.zeros((rows, self.seeds)))

    def known(self, sums: NDArray[np.float64]) -> NDArray[Any]:
        """(1, K) c as it travels; (2, K) with the seeds' mean magnitudes."""
        known = sums[:1] if len(sums) == 1 else np.stack([sums[0], sums[1] / np.maximum(sums[2], 1e-300)])
        return known.astype(self.setting.dtype)

    def model(self, c: NDArray[Any]) -> Tensor:
        """(d,) x_0 - sum_k c_k u_k."""
        x, rule = self.problem.to_device(self.loss.flat.initial()[0]), self.rule
        for k in np.flatnonzero(c).tolist():
            estimate = rule.estimate(rule.draw_pieces(x, self.key(k)), [float(c[k])])
            self.training.optimiser.step_by_parts(x, estimate, {}, 1.0)
        return x

    def train(self, client: Client, message: SeededModel) -> Uploaded:
        """Take local steps along the directions of randomly drawn seeds."""
        h, drawn = self.training.h, self.drawn(message, client.i).tolist()
        sizes = [self.training.client_size(message.r, client.i, q) for q in range(h)]

        def move(x: Tensor, q: int, estimate: PieceEstimates) -> None:
            self.training.optimiser.step_by_parts(x, estimate, {}, sizes[q])

        own = self.reply(client, message, self.rule, lambda q: self.key(drawn[q]), move)
        differences, sums = own.differences[:, 0], np.zeros((3, self.seeds))
        for row, values in enumerate((differences * sizes, np.abs(differences), np.ones(h))):
            np.add.at(sums[row], drawn, values)
        return replace(own, differences=sums[: 1 + 2 * len(message.magnitudes)].astype(self.setting.dtype))

    def drawn(self, message: SeededModel, i: int) -> NDArray[np.int64]:
        """(h,) the seeds of client i's local steps."""
        weights = None
        if len(message.magnitudes):
            a = message.magnitudes[0].astype(np.float64)
            e = np.exp((a - a.min()) / max(a.max() - a.min(), 1e-300))
            weights = e / e.sum()
        return self.setting.streams(Purpose.SEEDS, r=message.r, i=i).choice(self.seeds, self.training.h, p=weights)

    def key(self, k: int) -> Key:
        """Random numbers of seed k."""
        return Key(self.setting.streams, t=k)

    def __post_init__(self) -> None:
        for flag, only in {"optimiser": "sgd", "momentum": 0, "weight_decay": 0}.items():
            value = getattr(self.training.optimiser, flag)
            demand(value == only, flag, value, f"{only}: the model is made from sums of plain SGD's steps")
        super().__post_init__()

    @cached_property
    def traffic(self) -> Traffic:
        """K numbers each way, more with --seed-weights magnitude."""
        rows, itemsize = (1, 1) if self.seed_weights == "uniform" else (2, 3), np.dtype(self.setting.dtype).itemsize
        sums, losses = tuple(row * self.seeds * itemsize for row in rows), self.rule.needs_point
        return Traffic(self.training, scalars=1, unsplit=True, sums=sums, losses=losses)

    def plan(self, rounds: int) -> Lines:
        return {**super().plan(rounds), "directions from which a model is made": self.directions(rounds).drawn}

    def directions(self, rounds: int) -> Directions:
        """Upper bound: K, or the number of local steps if smaller."""
        steps = sum(len(self.training.participants(r)) for r in range(rounds)) * self.training.h
        return Directions(min(self.seeds, steps), self.loss.flat.n)


@final
@dataclass(frozen=True)
class SeededModel(ModelBroadcast):
    """The model, and the data for drawing seeds; a client of a federation rebuilds the model from K numbers."""

    magnitudes: NDArray[Any]  # (1, K) mean magnitudes of the seeds' loss differences; (0, K) with uniform weights


@final
@dataclass(frozen=True, kw_only=True)
class KSeedState(SplitState):
    """The server's state after a round."""

    sums: NDArray[np.float64] = column(
        "1",
        "c of each seed; with --seed-weights magnitude also the sum of its differences' magnitudes, and their number",
    )
