"""Client-level differential privacy: replies clipped at the client, noise, and the account of what rounds cost.

Neighbouring: one client with all its data more or less (--participation poisson), or one for another (fixed). McMahan,
Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR 2018. Of scalars: DPZero (Zhang
et al. 2023, 2310.09639), DP-ZO (Tang et al. 2024, 2401.04343). What is guaranteed, and what is not:
`zofl_mpi/methods/README.md#privacy`.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi import Array, Client, Clients, Purpose, Setting, Step, UserError, above, at_least, column, demand, finite
from zofl_mpi.engine.messages import APART
from zofl_mpi.errors import warn
from zofl_mpi.numerics.accounting import Account
from zofl_mpi.rounds.base import Sampling

NONE = "none"
COUNTS = "a client's weight tells how many samples it has; take --weights uniform"
Vector = NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True)
class Clipped:
    """Client to server: a clipped reply."""

    change: Array = finite("a client's reply is not finite, so it cannot be clipped; a smaller step size may help")
    was: float = field(metadata=APART)  # 1.0: it was longer than C; the experimenter's, not communication


@final
@dataclass(frozen=True)
class Spent:
    """Columns of a run whose replies are clipped."""

    clipped: float = column("1", "share of the round's replies that were clipped; nan where nobody took part")
    epsilon: float | None = column("1", "privacy spent since the start, at --delta: see --clip", None)


@final
@dataclass(frozen=True)
class Privacy:
    """Clipped replies D_i <- D_i min(1, C/|D_i|), their sum noised once, and the account (epsilon, delta) of that.

    All clients weigh the same, and the sum's denominator is fixed: beta m. `D_i` is a change of the model (of
    SCAFFOLD's c_i, too), or the scalars of a method that sends some.

    Attributes:
        clip: C, the norm to which a client's reply is clipped: none, or a number. The other flags here need one.
        noise_multiplier: z: the sum's noise has standard deviation z C in each number.
        epsilon: the budget E, in place of z, which the account of the planned rounds then gives; none: no budget.
        delta: of the account; auto: 1/m^1.1.
        participation: fixed (beta m clients a round) or poisson (each client by itself with probability beta: some
            rounds have more, some none; the account is tighter).
        trust: server (it adds the noise, after the sum) or nobody (each client adds it to its scalars).
        mechanism: gaussian, or laplace: pure epsilon, by Laplace noise of scale z C on scalars clipped in l1, and on
            vectors by the K-norm mechanism (uniform direction, radius Gamma(n, z C)).
    """

    setting: Setting[Any]
    clip: Literal["none"] | float = above(0, NONE, "none or a norm")
    noise_multiplier: float = at_least(0, 0.0, "a noise multiplier")
    epsilon: Literal["none"] | float = above(0, NONE, "none or a number")
    delta: Literal["auto"] | float = above(0, "auto", "auto or a probability")
    participation: Literal["fixed", "poisson"] = "fixed"
    trust: Literal["server", "nobody"] = "server"
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    _known: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    @property
    def clips(self) -> bool:
        """Whether replies are clipped."""
        return self.clip != NONE

    @property
    def C(self) -> float:
        """The norm to which a reply is clipped."""
        return float(self.clip)

    @property
    def local(self) -> bool:
        """Whether each client adds noise."""
        return self.trust == "nobody"

    def begin(self, sampling: Sampling, leaks: Mapping[str, object], scalars: bool = False) -> None:
        """Takes part in a method with these participants, once it is made.

        Args:
            leaks: {the method's flags: a reason, if they leave a client unprotected}.
            scalars: whether its clients send scalars, to which they can add noise themselves.

        Raises:
            UserError: a flag needs --clip, contradicts another, or leaves a client unprotected.
        """
        self._known["sampling"] = sampling
        needy = {"noise_multiplier": 0.0, "epsilon": NONE, "participation": "fixed", "trust": "server"}
        for name, usual in needy.items() if not self.clips else ():
            demand(getattr(self, name) == usual, name, getattr(self, name), f"{usual} without --clip C, a norm")
        if not self.clips:
            return
        if self.local and not scalars:
            raise UserError("--trust nobody: this method's clients send vectors; it is for zo_hfl, decomfl and hiso")
        if self.mechanism == "laplace":
            demand(self.delta == "auto", "delta", self.delta, "left out: --mechanism laplace has no delta")
        elif self.noise_multiplier or self.epsilon != NONE:
            demand(self._delta < 1, "delta", self._delta, "a probability below 1 (auto: 1/m^1.1, of 2 clients or more)")
        devices = "who is off, late or too small depends on a client, which the account does not know"
        for flags, reason in {**leaks, "--devices": devices if self.setting.fleet else ""}.items():
            if reason:
                raise UserError(f"{flags}: {reason}; it cannot be combined with --clip")
        vars(sampling)["poisson"] = self.participation == "poisson"

    # --- a client

    def reply(self, client: Client, values: Array, r: int, scalars: bool = False) -> Clipped:
        """The client's values (k,) of round r, clipped; noised where nobody is trusted."""
        long = np.asarray(values, np.float64)
        norm = float(np.abs(long).sum() if scalars and self.mechanism == "laplace" else np.linalg.norm(long))
        most = self.C * (1 - 4 * float(np.finfo(self.setting.dtype).eps))  # rounding then makes none longer than C
        if norm > most:
            values = (long * (most / norm)).astype(values.dtype)
        if self.local:
            values = values + self._noise(client.i, r, len(values), scalars)
        return Clipped(change=values, was=float(norm > most))

    # --- the server

    def sum(
        self,
        clients: Clients,
        step: Step,
        message: Any,
        term: Callable[..., Any],
        to: list[int],
        n: int,
        unit: float = 1,
    ) -> Callable[[], Vector]:
        """`Clients.sum` of the n numbers `term` of each reply (`counted`), noised; of nobody's the noise alone.

        Args:
            message: has the round, `r`.
            unit: the factor by which a term is longer than the reply.
        """
        read = clients.sum(step, message, term, to=to) if to else lambda: np.zeros(n + 1)

        def noised() -> Vector:
            total = read()
            return self.released(total[:-1], total[-1] / self.C, len(to), message.r, unit=unit)

        return noised

    def released(
        self, total: Vector, clipped: float, asked: int, r: int, scalars: bool = False, unit: float = 1
    ) -> Vector:
        """The sum of the replies of round r as it may be published; remembers the share of them that were clipped."""
        self._known["clipped"] = round(clipped) / asked if asked else math.nan
        return (
            total
            if self.local
            else total + unit * self._noise(self.setting.m, r, total.size, scalars).reshape(total.shape)
        )

    def mean(self, clients: Clients, step: Step, message: Any, to: list[int], n: int) -> Vector:
        """(n,) the sum of the replies, noised, over beta m."""
        return self.sum(clients, step, message, self.clipped_change, to, n)() / self.denominator(len(to))

    def clipped_change(self, i: int, message: Any, reply: Clipped) -> Vector:
        """(n + 1,) a client's reply, and whether it was clipped."""
        return self.counted(reply.change, reply)

    def counted(self, values: Array, reply: Clipped) -> Vector:
        """(n + 1,) the values, and C where the reply was clipped: an entry as large as theirs, which the sum counts."""
        return np.append(np.asarray(values, np.float64), self.C * reply.was)

    def denominator(self, asked: int) -> float:
        """Of the sum over `asked` clients: their number, which by Poisson sampling would tell of them: beta m."""
        sampling: Sampling = self._known["sampling"]
        return sampling.expected if self.participation == "poisson" else asked

    def _noise(self, i: int, r: int, n: int, scalars: bool) -> Vector:
        """(n,) the noise of client i in round r; of m: the server's."""
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

    @cached_property
    def account(self) -> Account:
        """What a round costs a client; where nobody is trusted, one of its own."""
        m, sampling = self.setting.m, self._known["sampling"]
        if self.local:
            return Account(m, m, False, self._delta)
        return Account(m, sampling.expected, sampling.poisson, self._delta)

    def cost(self, rounds: int, z: float | None = None) -> float:
        """Epsilon of so many rounds; where nobody is trusted, of the client that takes part most often in them."""
        times = self._most(rounds) if self.local else rounds
        return self.account.epsilon(self.noise_multiplier if z is None else z, times)

    def _most(self, rounds: int) -> int:
        """How often the busiest client takes part in so many rounds."""
        counts, most = self._known.setdefault("taken", (np.zeros(self.setting.m, np.int64), [0]))
        for r in range(len(most) - 1, rounds):
            counts[self._known["sampling"](r)] += 1
            most.append(int(counts.max()))
        return int(most[rounds])

    def settled(self, rounds: int, before: int) -> dict[str, Any]:
        """z, and the number of rounds within the budget, of which it tells; at rank 0.

        Args:
            before: rounds for which the run that is continued was planned; 0 for a new one.

        Raises:
            UserError: both z and a budget are given to a new run; the account's package is missing.
        """
        z, E = self.noise_multiplier, self.epsilon
        if not self.clips or (not z and E == NONE):
            return {}
        if E != NONE and z and not before:
            raise UserError(
                f"--epsilon {E} and --noise-multiplier {z}: the one follows from the other; give one of them"
            )
        z = z or self.account.noise(float(E), self._most(rounds) if self.local else rounds)
        whole, known = self.cost(rounds, z), f"at delta {self._delta:.3g}"
        if before and rounds > before:
            warn(f"--rounds {rounds}: epsilon {whole:.4g} {known}, in place of {self.cost(before, z):.4g} for {before}")
        within = rounds
        if E != NONE and whole > float(E):
            within = max(before, bisect_right(range(rounds + 1), float(E), key=lambda r: self.cost(r, z)) - 1)
            warn(f"--epsilon {E}: the run ends after round {within}; the next one would exceed it")
        return {"noise_multiplier": z, "rounds": within}

    def spent(self, done: int, evaluated: bool) -> Spent | None:
        """The columns after `done` rounds; epsilon where the run is evaluated."""
        if not self.clips:
            return None
        epsilon = self.cost(done) if evaluated and self.noise_multiplier else None
        return Spent(self._known.get("clipped", math.nan), epsilon)

    def lines(self, rounds: int) -> dict[str, str]:
        """Lines of --dry-run: the account of the run, of half and of twice its rounds."""
        if not self.clips or not self.noise_multiplier:
            return {}
        who = "one client for another" if self.local or self.participation == "fixed" else "one client more or less"
        planned = sorted({max(1, rounds // 2), rounds, 2 * rounds})
        return {f"epsilon, delta ({who}) of {T} rounds": f"{self.cost(T):.4g}, {self._delta:.3g}" for T in planned}
