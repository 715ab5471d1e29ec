"""Robust means of clients' replies, and Byzantine clients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from functools import cached_property
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Clients, Purpose, Setting, Step, UserError, at_least, demand
from zofl_mpi.clients import changes
from zofl_mpi.clients.wrapped import Wrapped
from zofl_mpi.engine import mean, messages
from zofl_mpi.engine.between import Between
from zofl_mpi.engine.clients import Weights
from zofl_mpi.engine.fields import UsedWith, parts_of
from zofl_mpi.numerics.schedules import kind_and_number

MEAN, MEDIAN, TRIMMED, CLIP = "mean", "median", "trimmed", "clip"
NUMBERS_AT_ONCE = 1 << 20  # entries of all replies sorted at once: 8 MB in float64
SCALE = 10.0  # as --attack noise needs


@final
@dataclass(frozen=True)
class Robust(Between):
    """Aggregation at the server, and clients that lie; the default is the exact mean of honest replies.

    D_i is the change that client i reports, as its reply declares it (`zofl_mpi.change`): y_i - x of a local model,
    ZO-HFL's f+ - f-, DeComFL's and HiSo's differences of losses over the distance of their points. Median and trimmed
    mean are taken coordinate by coordinate and count every reply alike, whatever --weights says (Yin, Chen,
    Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018).
    Clipping by norm is one step of centred clipping about the server's model, then the weighted mean. Sources: Sun,
    Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated Learning?", 2019; Karimireddy, He, Jaggi, ICML 2021. A
    liar is honest in what it keeps, and lies in what it sends, in every round that it takes part in.

    Attributes:
        aggregate: the server's mean of replies: mean; median; trimmed:F (in each coordinate without the
            ceil(F |S_r|) largest numbers and as many smallest); clip:C (clients' changes D_i clipped to norm C).
        attackers: share F of clients that send false changes D_i, below 1/2: ceil(F m) clients drawn at random.
        attack: what attackers send: sign (-D_i), noise (a Gaussian vector as long as D_i) or scale (10 D_i).
    """

    USED_WITH: ClassVar[UsedWith] = {"attack": {"attackers": ()}}
    setting: Setting[Any]
    aggregate: str = MEAN
    attackers: float = at_least(0, 0.0, "a share")
    attack: Literal["sign", "noise", "scale"] = "sign"
    reads_each = True

    def __post_init__(self) -> None:
        _parsed(self.aggregate)
        demand(self.attackers < 0.5, "attackers", self.attackers, "below 1/2: nothing tells a majority of liars")

    @property
    def active(self) -> bool:
        """True if the run has attackers or a robust mean; the server then holds all replies."""
        return self.aggregate != MEAN or self.attackers > 0

    @property
    def sorts(self) -> bool:
        """True if the aggregation sorts coordinates (median, trimmed)."""
        return _parsed(self.aggregate)[0] in (MEDIAN, TRIMMED)

    def check(self, method: Any) -> None:
        """Refuse a robust mean that the method cannot use, or that so few replies leave nothing to average."""
        if not self.active:
            return
        replies = method.setting.m if method.sampling is None else int(method.sampling.size(0))
        size = 0 if method.example_reply is None else messages.size(method.example_reply)  # 0: unknown
        self.setting.context.of(self).update(replies=replies, size=size)
        kind, share = _parsed(self.aggregate)
        each = map(changes.along, changes.steps(type(method)).values())
        allowed = "mean, trimmed:F or clip:C: each client's direction is its own, no two share one"
        demand(kind != MEDIAN or not any(each), "aggregate", self.aggregate, allowed)
        flags = {name: value for part in parts_of(method) for name, value in vars(part).items()}
        allowed = "scalars with --aggregate or --attackers, which read them"
        demand(flags.get("exchange", "scalars") == "scalars", "exchange", flags.get("exchange"), allowed)
        sparse = str(flags.get("compress", "")).startswith("topk")
        allowed = "mean or clip:C: of uploads by --compress topk most numbers are 0, and their middle is"
        demand(not (self.sorts and sparse), "aggregate", self.aggregate, allowed)
        if self.sorts and replies < (3 if kind == MEDIAN else 2 * _ceiling(share, replies) + 1):
            few = f"a round has too few replies for it, {replies}"
            raise UserError(f"--aggregate {self.aggregate}: {few}; take more participants (--beta, --m), or the mean")

    def wrapped(self, clients: Clients, method: Any) -> Clients:
        return RobustClients(clients, method, self)

    @cached_property
    def liars(self) -> frozenset[int]:
        """The attackers, the same in all rounds."""
        m = self.setting.m
        order = self.setting.streams(Purpose.ATTACK).permutation(m)
        return frozenset(order[: _ceiling(self.attackers, m)].tolist())

    def left_out(self, replies: int) -> int:
        """Number of largest (and of smallest) entries left out; the median keeps one or two."""
        most = (replies - 1) // 2
        kind, share = _parsed(self.aggregate)
        return most if kind == MEDIAN else min(most, _ceiling(share, replies))

    def read(self, i: int, message: Any, reply: Any) -> Any:
        """Client i's reply as the server reads it: an attacker's lie, then clipped; else unchanged."""
        at, units = changes.bases(reply, message), [changes.unit(message, c) for c in changes.of(type(reply))]
        fields = {path: x for path, x in mean.averaged(reply).items() if path[0] in at}
        D = {path: np.subtract(x, at[path[0]], dtype=np.float64) for path, x in fields.items()}
        factor, norm, (kind, C) = 1.0, _norm(D), _parsed(self.aggregate)
        C *= units[0]
        if i in self.liars and self.attack == "noise":
            generator = self.setting.streams(Purpose.ATTACK, r=message.r, i=i, t=1)
            noise = {path: generator.standard_normal(d.shape) for path, d in D.items()}
            D = {path: norm / _norm(noise) * d for path, d in noise.items()}
        elif i in self.liars:
            factor = SCALE if self.attack == "scale" else -1.0
        if kind == CLIP and abs(factor) * norm > C:
            factor *= C / (abs(factor) * norm)
        if factor == 1 and i not in self.liars:
            return reply
        new = {path: np.asarray(at[path[0]] + factor * D[path]).astype(x.dtype) for path, x in fields.items()}
        return messages.replace_arrays(reply, new)

    def plan_lines(self, rounds: int) -> dict[str, str | float]:
        """Lines of --dry-run: memory at the server, and the attackers."""
        if not self.active:
            return {}
        replies, size = (self.setting.context.of(self)[name] for name in ("replies", "size"))
        liars = f"{len(self.liars)} of {self.setting.m} clients ({self.attack})" if self.attackers else "nobody"
        held = f"{replies * size:,} bytes, {replies} replies of {size:,} bytes: the server holds all of a round's"
        return {"aggregate": self.aggregate, "lie in what they send": liars, "memory of the aggregate": held}


@final
class RobustClients(Wrapped):
    """Clients with robustly aggregated replies, some of them attackers; the server holds all replies."""

    def __init__(self, inner: Clients, method: Any, robust: Robust) -> None:
        super().__init__(inner, method)
        self.robust = robust
        asked = f"--aggregate {robust.aggregate}", f"--attackers {robust.attackers}"
        self.flag = asked[robust.aggregate == MEAN]

    def mean(
        self, step: Step, message: Any, *, weights: Weights = None, counted: bool = True, nobody: Any = None, **how: Any
    ) -> Any:
        if changes.reply_of(step) is None:
            self.refuse(counted, step, "clients.mean")
            return self.inner.mean(step, message, weights=weights, counted=counted, nobody=nobody, **how)
        robust, asked = self.robust, self.inner.ask(step, message, counted=counted, **how)
        replies = {i: robust.read(i, message, reply) for i, reply in asked}
        if robust.sorts:
            return middle(replies, robust.left_out(len(replies)))
        return mean.of_replies(replies.items(), list(replies), weights)

    def sum(
        self, step: Step, message: Any, term: Any, *, stretch: float | None = None, nobody: Any = None, **how: Any
    ) -> Callable[[], Any]:
        """Robust sum of vectors along the clients' own directions; their lengths are the changes.

        Trimmed: the vectors of the largest and smallest D_i are left out, and the sum of the others is scaled up.
        """
        kind = changes.reply_of(step)
        if kind is None or not changes.along(kind):
            self.refuse(True, step, "clients.sum")
        robust, asked = self.robust, self.inner.ask(step, message, **how)

        def read() -> Any:
            replies = {i: robust.read(i, message, changes.alone(reply)) for i, reply in asked}
            k = robust.left_out(len(replies)) if robust.sorts else 0
            lengths = {i: float(changes.changed(reply, message)[0]) for i, reply in replies.items()}
            kept = sorted(replies, key=lengths.__getitem__)[k : len(replies) - k]
            total = mean.Sum(m=self.m, term=lambda i, reply: term(i, message, reply))
            for i in kept:
                total.add(i, replies[i])
            return mean.local_mean(total) * (len(replies) / len(kept))

        return read


def middle(replies: Mapping[int, Any], k: int) -> Any:
    """Coordinate-wise mean without the k largest and k smallest entries, in float64."""
    arrays, means = [mean.averaged(reply) for reply in replies.values()], dict[mean.Path, Array]()
    width = max(1, NUMBERS_AT_ONCE // len(replies))
    for path, x in arrays[0].items():
        flat = [each[path].reshape(-1) for each in arrays]
        means[path] = np.empty(x.shape, x.dtype)
        found = means[path].reshape(-1)
        for low in range(0, x.size, width):
            numbers = np.sort(np.stack([y[low : low + width] for y in flat]), axis=0)
            found[low : low + width] = numbers[k : len(flat) - k].mean(axis=0, dtype=np.float64)
    each = {i: mean.each_of(reply) for i, reply in replies.items()}
    return mean.with_each(messages.replace_arrays(next(iter(replies.values())), means), each)


def _norm(D: Mapping[mean.Path, NDArray[np.float64]]) -> float:
    """Norm of all fields as one vector; the same bits for any number of library threads."""
    return math.sqrt(math.fsum(float(np.square(d).sum()) for d in D.values()))


def _ceiling(share: float, count: int) -> int:
    """ceil(share count), exact for the decimal number as typed."""
    return int((Decimal(str(share)) * count).to_integral_value(ROUND_CEILING))


def _parsed(aggregate: str) -> tuple[str, float]:
    """Parse --aggregate into its kind and number (0: none); UserError if malformed."""
    kinds = {MEAN: None, MEDIAN: None, TRIMMED: lambda F: 0 < F < 0.5, CLIP: lambda C: 0 < C < math.inf}
    allowed = "mean, median, trimmed:F with a share F above 0 and below 1/2, or clip:C with a norm C above 0"
    return kind_and_number("aggregate", aggregate, kinds, allowed)
