"""Client-level differential privacy: clipped replies, noise, and the privacy account.

Neighbouring data sets differ in one client with all its data: added or removed (--participation poisson), or
replaced (fixed). McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models",
ICLR 2018. For scalars: DPZero (Zhang et al. 2023, 2310.09639), DP-ZO (Tang et al. 2024, 2401.04343).
Guarantees and their limits: `.docs/explain/privacy.md`.
"""

import functools
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Protocol, TypeVar, final, runtime_checkable

import numpy as np

from zofl_mpi import Array, Client, Clients, Purpose, Setting, Step, UserError, above, at_least, column, demand, finite
from zofl_mpi.arrays import Vector
from zofl_mpi.clients import changes
from zofl_mpi.clients.private import PrivateClients
from zofl_mpi.engine import messages
from zofl_mpi.engine.between import Between
from zofl_mpi.engine.fields import check_finite, is_finite, parts_of
from zofl_mpi.engine.messages import APART
from zofl_mpi.errors import warn
from zofl_mpi.numerics import accounting
from zofl_mpi.numerics.accounting import LARGEST_EPSILON, Account

T = TypeVar("T")
NONE, LOCAL = "none", "nobody"
HONEST = "the account is that of a sum of honest replies"
LEAKS: Mapping[str, tuple[Any, str]] = {
    "weights": ("uniform", "a client's weight tells how many samples it has"),
    "compress": (NONE, "what error feedback keeps of one round comes in a later one, beyond C"),
    "exchange": ("scalars", "a client's solutions would leave it"),
    "aggregate": ("mean", HONEST),
    "attackers": (0, HONEST),
}
"""{flag: (its only value under which nothing but the reply leaves a client, reason)}."""
DELTA = f"a probability from {accounting.DELTA:g} to below 1 (auto is 1/m^1.1, for two clients or more)"
NOISE = f"0, or from {accounting.LEAST_NOISE:g} to 2^30: of other noise no account is computed"
BUDGET = f"at most {LARGEST_EPSILON:,g}, beyond which nobody is protected and no account is computed; none: no budget"


@final
@dataclass(frozen=True, kw_only=True)
class Clipped:
    """Client to server: the clipped changes of a reply, concatenated."""

    change: Array = finite("a client's reply is not finite, so it cannot be clipped; a smaller step size may help")
    was_clipped: float = field(metadata=APART)  # 1.0 if clipped; for the experimenter, not communicated


@runtime_checkable
class Participation(Protocol):
    """The sampling of participants, as in `rounds.base.Sampling`."""

    each: bool
    expected: float

    def __call__(self, r: int) -> list[int]:
        """S_r."""


@final
@dataclass(frozen=True)
class Spent:
    """Columns of a private run."""

    clipped: float = column("1", "share of the round's replies that were clipped; nan where nobody took part")
    epsilon: float | None = column("1", "privacy spent since the start, at --delta: see --clip", None)


@final
@dataclass(frozen=True)
class Privacy(Between):
    """Clipped replies D_i <- D_i min(1, C/|D_i|), one noise vector on their sum, and the privacy account (epsilon,
    delta).

    All clients have equal weight. The sum's divisor is fixed: beta m, or m with ZO-HFL's --divide m. `D_i` is a change
    of the model (or of SCAFFOLD's c_i), or the scalars that a method sends, as its reply declares them
    (`zofl_mpi.change`).

    Attributes:
        clip: C, the clipping norm of a client's reply: none, or a number. The other flags of this group need a number.
        noise_multiplier: z, 0 or at least 0.04; the sum's noise has standard deviation z C in each entry.
        epsilon: privacy budget, at most 1000; determines z from the planned rounds. none: no budget.
        delta: delta of the account, at least 1e-12; auto: 1/m^1.1.
        participation: sampling of clients: fixed (beta m clients a round) or poisson (each client independently with
            probability beta: group sizes vary and may be 0). Their epsilons cannot be compared: neighbours differ.
        trust: party that adds the noise: server (to the sum) or nobody (each client to its scalars).
        mechanism: noise: gaussian, or laplace for pure epsilon (Laplace noise of scale z C on scalars clipped in l1;
            for vectors the K-norm mechanism, with uniform direction and radius Gamma(n, z C)).
    """

    setting: Setting[Any]
    clip: Literal["none"] | float = above(0, NONE, "none or a norm")
    noise_multiplier: float = at_least(0, 0.0, "a noise multiplier")
    epsilon: Literal["none"] | float = above(0, NONE, "none or a number")
    delta: Literal["auto"] | float = above(0, "auto", "auto or a probability")
    participation: Literal["fixed", "poisson"] = "fixed"
    trust: Literal["server", "nobody"] = "server"
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    protects = private = reads_change = True

    @property
    def active(self) -> bool:
        """True if replies are clipped."""
        return self.clip != NONE

    @property
    def poisson(self) -> bool:
        return self.participation == "poisson"

    @property
    def signal(self) -> float:
        """Norm of the last round's mean clipped reply divided by C, before noise; not for publication."""
        return float(self._known.get("signal", math.nan))

    @property
    def C(self) -> float:
        """C, the clipping norm."""
        return float(self.clip)

    @property
    def _known(self) -> dict[str, Any]:
        """Cached values of this group: the sampling, kinds of replies, and the last round's clipping."""
        return self.setting.context.of(self)

    def check(self, method: Any) -> None:
        kinds = changes.steps(type(method)).values()
        scalars = bool(kinds) and all(c.scalar for kind in kinds for c in changes.of(kind))
        self._known["along"] = {kind for kind in kinds if changes.along(kind)}
        if self.active and not isinstance(method.sampling, Participation):
            own = f"{type(method).__name__} has no `sampling: Sampling = flag_group()` (zofl_mpi.rounds.base)"
            raise UserError(f"--clip {self.clip:g}: the account needs who takes part, and {own}")
        self.bind(method, method.sampling, scalars)
        if self.active and method.example_reply is not None:
            _refuse_others(method.example_reply)

    def bind(self, method: Any, sampling: Any, scalars: bool = False) -> None:
        """Bind the account to a method and its participants; UserError if flags contradict or protect nobody.

        `scalars`: whether its clients send scalars, to which they can add noise themselves.
        """
        self._known["sampling"] = sampling
        given, noised = self.delta != "auto", self.noise_multiplier > 0 or self.epsilon != NONE
        for f in fields(self) if not self.active else ():
            value = vars(self)[f.name]
            demand(not f.init or f.default in (MISSING, value), f.name, value, f"{f.default} without --clip C, a norm")
        if self.mechanism == "laplace":
            demand(not given, "delta", self.delta, "left out: --mechanism laplace has no delta")
        else:
            demand(accounting.DELTA <= self._delta < 1 or not (given or noised), "delta", self._delta, DELTA)
        demand(self.epsilon == NONE or float(self.epsilon) <= LARGEST_EPSILON, "epsilon", self.epsilon, BUDGET)
        z = self.noise_multiplier
        demand(z == 0 or accounting.LEAST_NOISE <= z <= 2**30, "noise_multiplier", z, NOISE)
        if self.trust == LOCAL and not scalars:
            raise UserError(
                "--trust nobody: needs clients that send scalars; take --method zo_hfl, decomfl, hiso or fedkseed"
            )
        if self.active and self.setting.fleet is not None:
            raise UserError("--devices with --clip: who is off, late or too small depends on a client; leave it out")
        met = [(name, vars(each)[name]) for each in parts_of(method) for name in LEAKS if name in vars(each)]
        for name, value in met if self.active else ():
            demand(value == LEAKS[name][0], name, value, "{} with --clip: {}".format(*LEAKS[name]))

    def wrapped(self, clients: Clients, method: Any) -> Clients:
        return PrivateClients(clients, method, self)

    # --- a client

    def answering(self, step: Step) -> Step:
        """Wrap a step: its reply holds the clipped changes and nothing else."""
        return changes.with_replies(step, self._clipped_reply)

    def _clipped_reply(self, client: Client, message: Any, reply: Any, before: dict[str, Any]) -> Any:
        """The clipped changes of a reply."""
        found = changes.of(type(reply))
        if not found:
            return reply
        _refuse_others(reply)
        sent = self.clipped(client.i, changes.changed(reply, message), message.r, all(c.scalar for c in found))
        if not is_finite(sent.change):
            check_finite(reply)  # its class has an error message of its own
        if not any(c.memory for c in found):
            return sent
        sizes = [changes.size(getattr(reply, c.name)) for c in found]
        for c, D in zip(found, np.split(sent.change, np.cumsum(sizes)[:-1]), strict=True):
            if c.memory:  # the server's mean stays the mean over clients
                client.memory[c.memory] = (before.get(c.memory, 0) + D).astype(D.dtype)
        return sent

    def clipped(self, i: int, values: Array, r: int, scalars: bool = False) -> Clipped:
        """(k,) client i's values in round r, clipped; with noise under --trust nobody."""
        exact = np.asarray(values, np.float64)
        norm = float(np.abs(exact).sum() if scalars and self.mechanism == "laplace" else np.linalg.norm(exact))
        most = self.C * (1 - 4 * float(np.finfo(self.setting.dtype).eps))  # rounding cannot make a value longer than C
        if norm > most:
            values = (exact * (most / norm)).astype(values.dtype)
        if self.trust == LOCAL:
            values = values + self._noise(i, r, len(values), scalars)
        return Clipped(change=values, was_clipped=float(norm > most))

    def as_sent(self, reply: Any) -> Any:
        found = changes.of(type(reply)) if self.active else ()
        scalars = found and all(c.scalar for c in found)
        return Clipped(change=np.zeros(len(found)), was_clipped=0.0) if scalars else reply

    # --- the server

    def clipped_change(self, i: int, message: Any, reply: Clipped) -> Vector:
        """(k + 1,) a client's changes, then its clip count."""
        return self.with_clip_count(reply.change, reply)

    def adding(self, term: Any) -> Any:
        """Wrap a term of a sum: it reads the clipped changes and appends the clip count."""
        if term == self.clipped_change:
            return term

        @functools.wraps(term)
        def added(i: int, message: Any, reply: Clipped) -> Vector:
            (kind,) = self._known["along"]
            told = dict.fromkeys((f.name for f in fields(kind)), 0.0) | {changes.of(kind)[0].name: float(*reply.change)}
            return self.with_clip_count(term(i, message, kind(**told)), reply)

        return added

    def with_clip_count(self, values: Array, reply: Clipped) -> Vector:
        """(n + 1,) the values, then C if the reply was clipped: the sum then counts clipped replies, at their scale."""
        return np.append(np.asarray(values, np.float64), self.C * reply.was_clipped)

    def add_noise(
        self, total: Vector, clipped: float, asked: int, r: int, scalars: bool = False, unit: float = 1
    ) -> Vector:
        """The noised sum of round r, for publication; `unit` scales it. Stores the share of clipped replies."""
        self._known["clipped"] = round(clipped) / asked if asked else math.nan
        self._known["signal"] = float(np.linalg.norm(total)) / (unit * self.C * (self.denominator(asked) or math.nan))
        noise = 0.0 if self.trust == LOCAL else self._noise(self.setting.m, r, total.size, scalars).reshape(total.shape)
        return np.asarray(total + unit * noise)

    def participants(self, r: int) -> list[int]:
        """S_r, ascending."""
        return sorted(self._known["sampling"](r))

    def denominator(self, asked: int) -> float:
        """Divisor of the sum: the number asked, or beta m under Poisson sampling, whose number is private."""
        return float(self._known["sampling"].expected) if self.poisson else asked

    def _noise(self, i: int, r: int, n: int, scalars: bool) -> Vector:
        """(n,) noise of client i in round r; i = m: the server's."""
        scale = self.noise_multiplier * self.C
        if not scale:
            return np.zeros(n)
        generator = self.setting.streams(Purpose.PRIVACY, r=r, i=i)
        if self.mechanism == "laplace" and scalars:
            return generator.laplace(scale=scale, size=n)
        v = generator.standard_normal(n)
        length = scale if self.mechanism == "gaussian" else generator.gamma(n, scale) / np.linalg.norm(v)
        return np.asarray(length * v)

    # --- the account

    @property
    def _delta(self) -> float:
        if self.mechanism == "laplace":
            return 0.0
        return self.setting.m**-1.1 if self.delta == "auto" else float(self.delta)

    def cost(self, rounds: int, z: float | None = None) -> float:
        """Epsilon after `rounds` rounds; under --trust nobody that of the client that takes part most often."""
        return self._account.epsilon(self.noise_multiplier if z is None else z, self._times(rounds))

    @property
    def _account(self) -> Account:
        m, sampling = self.setting.m, self._known["sampling"]
        asked, poisson = (m, False) if self.trust == LOCAL else (sampling.expected, sampling.each)
        return Account(m, asked, poisson, self._delta)

    def _times(self, rounds: int) -> int:
        """Rounds that the account charges a client: all, or under --trust nobody those of the busiest client."""
        counts, most = self._known.setdefault("taken", (np.zeros(self.setting.m, np.int64), [0]))
        for r in range(len(most) - 1, rounds if self.trust == LOCAL else 0):
            counts[self._known["sampling"](r)] += 1
            most.append(int(counts.max()))
        return most[rounds] if self.trust == LOCAL else rounds

    def derived_flags(self, rounds: int, before: int) -> dict[str, Any]:
        """z, and the number of rounds if fewer, from a budget; UserError if both are given."""
        z, budget = self.noise_multiplier, math.inf if self.epsilon == NONE else float(self.epsilon)
        if not z and budget == math.inf:
            return {}
        allowed = f"at most {accounting.ROUNDS:,}: of more noised ones no account is computed"
        demand(rounds <= accounting.ROUNDS, "rounds", rounds, allowed)
        if z and budget < math.inf and not before:
            raise UserError(f"--epsilon {budget:g}, --noise-multiplier {z:g}: one follows from the other; give one")
        z = z or self._account.noise(budget, self._times(rounds))
        whole = self.cost(rounds, z)
        if whole == budget == math.inf:
            beyond = f"the epsilon of {rounds} rounds is beyond {LARGEST_EPSILON:,g}, up to which it is computed"
            raise UserError(f"--noise-multiplier {z:g}: {beyond}; take a larger one, or fewer --rounds")
        if 0 < before < rounds:
            less = f"{self.cost(before, z):.4g} for {before}"
            warn(f"--rounds {rounds}: epsilon {whole:.4g} at delta {self._delta:.3g}, in place of {less}")
        if whole <= budget:
            return {"noise_multiplier": z} if budget < math.inf else {}
        rounds = max(before, bisect_right(range(rounds + 1), budget, key=lambda r: self.cost(r, z)) - 1)
        warn(f"--epsilon {budget:g}: the run ends after round {rounds}; the next one would exceed it")
        return {"noise_multiplier": z, "rounds": rounds}

    def columns(self, done: int, evaluated: bool) -> Spent | None:
        """The columns after `done` rounds; epsilon where the run is evaluated."""
        if not self.active:
            return None
        epsilon = self.cost(done) if evaluated and self.noise_multiplier else None
        return Spent(self._known.get("clipped", math.nan), epsilon)

    def plan_lines(self, rounds: int) -> dict[str, str]:
        """Lines of --dry-run: epsilon after the run, half of it, and twice its rounds."""
        if not self.active or not self.noise_multiplier:
            return {}
        who = "one client more or less" if self._account.poisson else "one client for another"
        planned = [T for T in sorted({max(1, rounds // 2), rounds, 2 * rounds}) if self.cost(T) < math.inf]
        return {f"epsilon, delta ({who}) of {T} rounds": f"{self.cost(T):.4g}, {self._delta:.3g}" for T in planned}


def _refuse_others(reply: Any) -> None:
    """Refuse a reply with fields that are no change: they would leave the client unclipped."""
    kind = type(reply)
    others = changes.others(kind)
    for path, value in messages.leaves(reply) if others else ():
        array = messages.as_array(value)
        if path[0] in others and array is not None and array.size:
            why = next(f.metadata.get("leaves") for f in fields(kind) if f.name == path[0])
            what = why or f"{kind.__name__}.{path[0]}, which is no change, would leave the client"
            raise UserError(f"--clip: {what}")
