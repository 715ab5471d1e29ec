"""Client-level differential privacy: sensitivity, noise, account and participation, by mathematics and by an attack."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from tests.numerics.first_order import STREAMS, Array, apart, clients_of, close, m, memories, n, one, point, run, toy
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.engine import mean
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.numerics import accounting
from zofl_mpi.numerics.accounting import Account, _renyi
from zofl_mpi.rounds.base import Sampling
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.rounds import finite_round

POISSON, LOCAL = {"participation": "poisson"}, {"trust": "nobody"}
CLIP = {"clip": 0.05, **POISSON}


def part(
    count: int = 4, beta: float = 1.0, dtype: Any = np.float64, streams: Streams = STREAMS, **flags: Any
) -> Privacy:
    """The part alone, of so many clients."""
    privacy: Privacy = from_flags(
        Privacy, Setting(None, streams, (None,) * count, dtype=dtype), **{"clip": 1.0, **flags}
    )
    privacy.bind(privacy, sampling_of(privacy, beta), scalars=True)
    return privacy


def sampling_of(privacy: Privacy, beta: float) -> Sampling:
    return Sampling(replace(privacy.setting, between=(privacy,)), beta)


def of(cls: Any, setting: Setting | None = None, **flags: Any) -> Any:
    """A method with the part; replies of the toy are longer than its norm."""
    uniform = {} if cls is ZOHFL else {"weights": "uniform"}
    return from_flags(cls, setting or toy(noise=1.0), **{"tau": (2.0,), "batch": 4, **uniform, **CLIP, **flags})


METHODS = pytest.mark.parametrize("cls", [FedAvg, FedProx, Scaffold, ZOHFL])


def privacy_of(method: Any) -> Privacy:
    """What of the method's setting clips."""
    return next(each for each in method.setting.between if isinstance(each, Privacy))


def total(privacy: Privacy, replies: Array, to: list[int], r: int = 0, scalars: bool = False) -> Array:
    """The published sum of the replies of these clients."""
    sums = mean.Sum(m=len(replies), term=lambda i, reply: privacy.clipped_change(i, None, reply))
    for i in to:
        sums.add(i, privacy.clipped(i, replies[i], r, scalars))
    found = mean.local_mean(sums) if to else np.zeros(replies.shape[1] + 1)
    return privacy.add_noise(found[:-1], found[-1] / privacy.C, len(to), r)


# --- sensitivity


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 40),
    scale=st.floats(-6, 6),
    clip=st.floats(1e-6, 1e6),
    dtype=st.sampled_from([np.float32, np.float64]),
    laplace=st.booleans(),
)
def test_a_client_moves_the_sum_by_at_most_its_norm(
    seed: int, count: int, scale: float, clip: float, dtype: Any, laplace: bool
) -> None:
    """Replies of all lengths, in l1 for scalars under Laplace noise; C bounds each reply strictly, in float32 too.

    Mutations: clip after the sum; rounding that makes a reply longer than C; l2 for l1; a mean in place of the sum.
    """
    privacy = part(count, dtype=dtype, clip=clip, mechanism="laplace" if laplace else "gaussian")
    generator = np.random.default_rng(seed)
    lengths = 10.0 ** generator.uniform(scale - 2, scale + 2, count) * clip
    replies = (lengths[:, None] * generator.standard_normal((count, 7))).astype(dtype)

    def norm(x: Array) -> float:
        return float(np.abs(x).sum() if laplace else np.linalg.norm(x))

    for i, reply in enumerate(replies):
        sent = privacy.clipped(i, reply, 0, scalars=True).change.astype(np.float64)
        assert norm(sent) <= clip
        if norm(reply.astype(np.float64)) < 0.999 * clip:
            np.testing.assert_array_equal(sent, reply)
    change = total(privacy, replies, [*range(count)], scalars=True)
    if count > 1:
        change = change - total(privacy, replies, [*range(count - 1)], scalars=True)
    assert norm(change) <= clip * (1 + count * 7 * 2**-44)  # the quanta of an exact sum: m 2^-53 of an octave's entry


# --- noise


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("trust", ["server", "nobody"])
def test_noise_of_scalars_has_its_variance_and_kurtosis(mechanism: str, trust: str) -> None:
    """10^5 draws of sum and clients: five standard errors. N(0, z^2 C^2): variance z^2 C^2, kurtosis 3. Laplace of
    scale z C: 2 z^2 C^2 and 6. Standard errors of the sample's: sigma^2 sqrt((k - 1)/N) and, from the moments to the
    eighth, sqrt(24/N) and sqrt(1188/N) (delta method; Laplace: m_2, m_4, m_6, m_8 = 2, 24, 720, 40320).

    Mutations: the factor C missing; z/2; one draw for all entries; the same draw in each round; noise twice.
    """
    z, C, N, rounds = 1.7, 0.3, 100, 1000
    privacy = part(2, clip=C, noise_multiplier=z, mechanism=mechanism, trust=trust)
    drawn = (
        np.stack([total(privacy, np.zeros((1, N)), [0], r, scalars=True) for r in range(rounds)])
        if trust == ("nobody")
        else np.stack([privacy.add_noise(np.zeros(N), 0.0, 1, r, scalars=True) for r in range(rounds)])
    )
    x, count = drawn.ravel(), drawn.size
    k, of_scale, error = (
        (3.0, 1.0, math.sqrt(24 / count)) if mechanism == "gaussian" else (6.0, 2.0, math.sqrt(1188 / count))
    )
    variance = of_scale * (z * C) ** 2
    assert abs(x.mean()) < 5 * math.sqrt(variance / count)
    assert abs(x.var() / variance - 1) < 5 * math.sqrt((k - 1) / count)
    assert abs(np.mean(x**4) / x.var() ** 2 - k) < 5 * error
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 5 / math.sqrt(count)


def test_the_k_norm_mechanism_has_a_uniform_direction_and_a_gamma_radius() -> None:
    """Its density is exp(-|x| / (z C)) up to a factor. Kolmogorov-Smirnov at 1e-6, the direction's mean, and the radius
    apart from it. Mutations: Gamma(1); Laplace noise in each entry; a scale of C."""
    z, C, n, N = 0.8, 2.0, 6, 4000
    privacy = part(3, clip=C, noise_multiplier=z, mechanism="laplace")
    drawn = np.stack([privacy.add_noise(np.zeros(n), 0.0, 1, r) for r in range(N)])
    radius = np.linalg.norm(drawn, axis=1)
    assert stats.kstest(radius, stats.gamma(n, scale=z * C).cdf).pvalue > 1e-6
    directions = drawn / radius[:, None]
    assert np.abs(directions.mean(axis=0)).max() < 5 / math.sqrt(n * N)
    np.testing.assert_allclose(directions.T @ directions / N, np.eye(n) / n, atol=5 / math.sqrt(N) / n)


def test_noise_is_drawn_once_a_round_whoever_comes() -> None:
    """By seed and round alone: not by the participants, nor by how often a round is begun.

    Mutations: a stream by rank or participant; a generator that goes on; noise that depends on the sum."""
    privacy, zeros = part(noise_multiplier=1.0), np.zeros((4, 5))
    first = total(privacy, zeros, [0, 1, 2, 3], r=7)
    np.testing.assert_array_equal(first, total(privacy, zeros, [], r=7))
    np.testing.assert_array_equal(first, total(privacy, zeros, [2], r=7))
    assert apart(first, total(privacy, zeros, [2], r=8))
    local = part(noise_multiplier=1.0, trust="nobody")
    each = [total(local, zeros, [i], r=7) for i in range(4)]
    assert all(apart(a, b) for a, b in pairwise([first, *each]))
    close(total(local, zeros, [0, 1, 2, 3], r=7), sum(each))


# --- participation


def test_poisson_participation_is_a_coin_for_each_client() -> None:
    """2,000 rounds of 50 clients: |S_r| is binomial (mean and variance to five standard errors), each client alike, two
    clients independent. Mutations: a fixed number; the probability of one client; at least one."""
    q, count, rounds = 0.06, 50, 2000
    sampling = sampling_of(part(count, **POISSON), q)
    came = np.zeros((rounds, count))
    for r in range(rounds):
        came[r, sampling(r)] = 1
    sizes, expected = came.sum(axis=1), count * q
    assert abs(sizes.mean() - expected) < 5 * math.sqrt(expected * (1 - q) / rounds)
    assert abs(sizes.var() / (expected * (1 - q)) - 1) < 5 * math.sqrt(2.5 / rounds)
    assert stats.chisquare(came.sum(axis=0)).pvalue > 1e-6
    assert (sizes == 0).any()


@METHODS
def test_poisson_with_certainty_is_everybody(cls: Any) -> None:
    """To the bit: the fixed denominator q m is |S_r|. Mutations: a denominator of m + 1; weights by size."""
    same = [run(of(cls, participation=kind, noise_multiplier=0.7), 3).x for kind in ("poisson", "fixed")]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize("cls", [FedAvg, FedProx, ZOHFL])
def test_the_denominator_is_that_of_the_expected_number(cls: Any) -> None:
    """Without clipping or noise, the model after a round is x + (1 / (q m)) sum of S_r's changes, by hand.

    Mutations: the denominator |S_r|; m; the weights of those that came."""
    flags = {"clip": 1e9, "beta": 0.5} | ({"divide": "participants", "gamma": 0.0} if cls is ZOHFL else {})
    private = of(cls, **flags)
    sampling = private.sampling if cls is ZOHFL else private.local.sampling
    r = next(r for r in range(50) if len(sampling(r)) == 3)  # not the two that are expected
    x = point(private.setting)
    if cls is ZOHFL:
        estimates = clients_of(private).sum(
            private.solve, GlobalModel(x, r), private.estimate, to=sampling(r), stretch=n / (2 * private.eta)
        )
        found = estimates() / sampling.denominator(3)
        answers = [private.solve(Client(i, private.setting.data[i]), GlobalModel(x, r)) for i in sampling(r)]
        f = [answer.plus - answer.minus for answer in answers]
        by_hand = (
            sum(n / (2 * private.eta) * d * private.direction(i, r) for d, i in zip(f, sampling(r), strict=True)) / 2
        )
    else:
        found = one(private, r, x) - x
        alone = of(cls, clip="none", participation="fixed")
        ys = [alone.train(Client(i, alone.setting.data[i]), GlobalModel(x, r)).y for i in sampling(r)]
        by_hand = sum(y - x for y in ys) / 2
    close(found, by_hand, 1e-9)


@METHODS
def test_a_round_without_clients_is_noise_and_the_servers_own_step(cls: Any) -> None:
    """Mutations: an error; noise only where clients came; the server's step left out."""
    private = of(cls, beta=0.1, noise_multiplier=1.0, gamma=0.1)
    sampling = private.sampling if cls is ZOHFL else private.local.sampling
    r = next(r for r in range(50) if not sampling(r))
    x = point(private.setting)
    server = private.server if cls is ZOHFL else private.local.server
    g = private.gradient_f1(x, r) if cls is ZOHFL else server.gradient(x, r)
    size = 2 * n if cls is Scaffold else n
    noise = privacy_of(private).add_noise(np.zeros(size), 0.0, 0, r)[:n]
    step = -0.1 / math.sqrt(r + 1) * noise * n / (2 * private.eta) / m if cls is ZOHFL else noise / (0.1 * m)
    close(one(private, r, x), x + step - 0.1 / math.sqrt(r + 1) * g)


# --- the method without the part, and what the part does to it


@METHODS
def test_without_clip_and_noise_it_is_the_method_itself(cls: Any) -> None:
    """C = none, to the bit; C far above all replies, to rounding, for a fixed number of participants.

    Mutations: clipping by C of what is shorter; a reply relative to another point; a denominator of its own."""
    plain, wide = (of(cls, clip=C, participation="fixed", beta=0.5) for C in ("none", 1e9))
    without = from_flags(
        cls, plain.setting, tau=(2.0,), batch=4, beta=0.5, **({} if cls is ZOHFL else {"weights": "uniform"})
    )
    np.testing.assert_array_equal(run(plain, 4).x, run(without, 4).x)
    close(run(wide, 4).x, run(without, 4).x, 1e-9)


@METHODS
def test_the_published_model_is_bounded_by_the_clipping_norm(cls: Any) -> None:
    """Whatever a client's data, without noise: one round moves x by C at most (ZO-HFL: times its step and n/(2 eta)).

    Mutations: clip after the sum; SCAFFOLD's two changes clipped apart; a clip of the difference's square."""
    private = of(cls, beta=1.0, clip=1e-6, **({"gamma": 1.0, "divide": "participants"} if cls is ZOHFL else {}))
    x = point(private.setting)
    moved = np.linalg.norm(one(private, 0, x) - x)
    if cls is ZOHFL:
        own = float(np.linalg.norm(private.gradient_f1(x, 0)))
        assert moved <= own + 1e-6 * n / (2 * private.eta)
    else:
        assert 0 < moved <= 1e-6 + 1e-15
    assert privacy_of(private).columns(1, evaluated=True).clipped == 1.0


def test_scaffolds_control_variate_stays_the_mean_of_the_clients() -> None:
    """c = (1/m) sum c_i, as without the part, where nothing is noised. Mutations: c by |S_r|; c_i unclipped."""
    private = of(Scaffold, beta=0.5, clip=0.02)
    clients, state = clients_of(private), private.start()
    for r in range(6):
        state = finite_round(private, state, r, clients)
    each = [memories(clients).get(i, {}).get("c_i", np.zeros(n)) for i in range(m)]
    close(state.c, np.mean(each, axis=0))
    assert np.linalg.norm(state.c) > 1e-3


# --- the account


def test_the_account_agrees_with_published_values() -> None:
    """TensorFlow Privacy's tutorial (its README, RDP by the classic conversion): q = 256/60,000, delta 1e-5.

    z = 1.12, 60 epochs: 2.92. Its earlier default, z = 1.1: 3.01. The loss distribution is tighter than both.
    Mutations: z/2 for Poisson; rounds off by an epoch; the fixed account."""
    for z, epochs, published in ((1.12, 60, 2.92), (1.1, 60, 3.01), (1.3, 15, 1.19), (0.7, 45, 7.10)):
        rounds = math.ceil(epochs * 60_000 / 256)
        orders, once = _renyi(z, 60_000, 256, True)
        classic = float(np.min(rounds * once + math.log(1e5) / (orders - 1)))
        assert abs(classic - published) < 0.06  # whole orders alone
        tight = Account(60_000, 256, True, 1e-5).epsilon(z, rounds)
        assert 0.7 * published < tight < 0.85 * published


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The delta of one Gaussian mechanism whose shift is mu standard deviations (Balle, Wang, ICML 2018, Theorem 8)."""
    cdf = stats.norm.cdf
    return float(cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("flags", "mu"), [({}, 2.0), ({"participation": "poisson"}, 1.0), ({"trust": "nobody"}, 2.0)])
@pytest.mark.parametrize("rounds", [1, 9])
def test_the_account_is_the_closed_form_where_all_take_part(flags: dict[str, str], mu: float, rounds: int) -> None:
    """T rounds are one Gaussian mechanism of sqrt(T) times the shift: C / (z C) for one client more or less, twice that
    for one in another's place. An upper bound, by the grid of the loss distribution looser by less than 1 %.

    Mutations: z/2 for Poisson or z for a fixed number; T for sqrt(T); Renyi where a distribution is at hand, also where
    epsilon is above 50, here up to 290."""
    for z, delta in ((0.3, 1e-5), (1.0, 1e-3), (4.0, 1e-5), (30.0, 1e-2)):
        found, shift = part(50, delta=delta, noise_multiplier=z, **flags).cost(rounds), mu / z * math.sqrt(rounds)
        exact = optimize.brentq(lambda e, d=delta, s=shift: gaussian_delta(e, s) - d, 0, 700)
        assert exact - 1e-9 <= found <= 1.01 * exact + 1e-3


def test_pure_epsilon_is_the_worst_ratio_of_densities() -> None:
    """Of Laplace noise and a client that takes part with probability q: the largest log-ratio over all outcomes, times
    the rounds. Mutations: q outside the logarithm; 1/z for one client in another's place; no factor of rounds."""
    z, q, x = 1.3, 0.2, np.linspace(-20, 20, 40_001)

    def density(at: float) -> Array:
        return np.asarray(np.exp(-np.abs(x - at) / z))

    pure = {"mechanism": "laplace", "noise_multiplier": z, "beta": q}
    more, other = part(10, participation="poisson", **pure).cost(3), part(10, **pure).cost(3)
    close(more, 3 * np.max(np.log(q * density(1.0) + (1 - q) * density(0.0)) - np.log(density(0.0))), 1e-9)
    close(other, 3 * math.log1p(q * math.expm1(np.max(np.log(density(1.0) / density(-1.0))))), 1e-9)
    busiest = max(np.bincount(np.concatenate([Sampling(part(10).setting, q)(r) for r in range(9)])))
    close(part(10, trust="nobody", **pure).cost(9), busiest * 2 / z)


@pytest.mark.parametrize("flags", [{}, {"participation": "poisson"}, {"trust": "nobody"}, {"mechanism": "laplace"}])
def test_the_noise_of_a_budget_is_the_least(flags: dict[str, str]) -> None:
    """Within a thousandth, never beyond the budget. Mutations: the interval's other end; rounds of another run."""
    privacy = part(30, 0.3, epsilon=2.0, **flags)
    z = privacy.derived_flags(12, 0)["noise_multiplier"]
    assert privacy.cost(12, z) <= 2.0 < privacy.cost(12, 0.998 * z)


@pytest.mark.parametrize("flags", [{"participation": "poisson"}, {}, {"trust": "nobody"}, {"mechanism": "laplace"}])
def test_each_budget_is_spent_nearly(flags: dict[str, str]) -> None:
    """From 0.03 to 900, over 100 rounds: at least 99 % of it and no more; less noise for a larger one.

    Mutations: Renyi's bound from 50 on, by which a budget of 45 has the noise of 30, where a distribution is computed;
    a coarser grid there."""
    budgets = (0.03, 45.0, 900.0) if flags == {"participation": "poisson"} else (0.03, 900.0)
    found = []
    for budget in budgets:
        privacy = part(1000, 0.1, epsilon=budget, **flags)
        found.append(privacy.derived_flags(100, 0)["noise_multiplier"])
        assert 0.99 * budget < privacy.cost(100, found[-1]) <= budget
    assert all(more > less for more, less in pairwise(found))


def test_more_noise_never_costs_more() -> None:
    """Through all widths of the distributions' cells, and no epsilon of 0 by rounding: 10^5 rounds of which one of 10^9
    clients takes part in cost something. Mutations: a width by Renyi's bound; divergences below 0 as the package has
    them; a Renyi bound in place of the distribution's."""
    for rounds, q in ((1, 0.01), (100, 0.1), (100, 1e-6), (10_000, 1.0)):
        account = Account(10**6, q * 10**6, True, 1e-5)
        costs = [account.epsilon(z, rounds) for z in np.geomspace(accounting.LEAST_NOISE, 1e3, 12)]
        assert all(less >= more for less, more in pairwise(costs)) and costs[-1] < 1
    assert Account(10**9, 1, True, 1e-5).epsilon(1.0, 100_000) > 0


@pytest.mark.parametrize(
    ("flags", "rounds", "sentence"),
    [
        ({"noise_multiplier": 0.001}, 5, "--noise-multiplier 0.001: must be 0, or from 0.04 to 2"),
        ({"noise_multiplier": 1e300}, 5, "must be 0, or from 0.04 to 2"),
        ({"noise_multiplier": 1.0, "delta": 1e-300}, 5, "--delta 1e-300: must be a probability from 1e-12 to below 1"),
        ({"epsilon": 1e9}, 5, "--epsilon 1000000000.0: must be at most 1,000, beyond which nobody is protected"),
        ({"epsilon": 1e-300, "mechanism": "laplace"}, 5, "--epsilon 1e-300: no noise below 2\\^30 reaches it"),
        ({"noise_multiplier": 1.0}, 10**7, "--rounds 10000000: must be at most 100,000"),
        ({"noise_multiplier": 0.05}, 1000, "epsilon of 1000 rounds is beyond 1,000, up to which it is computed"),
        ({"noise_multiplier": 0.05, "mechanism": "laplace"}, 1000, "is beyond 1,000, up to which it is computed"),
        ({"noise_multiplier": 0.05, "participation": "fixed"}, 1000, "is beyond 1,000, up to which it is computed"),
    ],
)
def test_what_the_account_does_not_compute_is_refused(flags: dict[str, Any], rounds: int, sentence: str) -> None:
    """In a sentence, at the start. Mutations: a traceback of the package; minutes of work; an epsilon of infinity."""
    with pytest.raises(UserError, match=sentence):
        part(1000, 0.1, **{"participation": "poisson", **flags}).derived_flags(rounds, 0)


def test_a_run_that_is_made_longer_ends_before_its_budget_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Mutations: the budget of the longer run; a round too many, or too few; silence about the price."""
    privacy = part(30, 0.3, epsilon=2.0, noise_multiplier=6.0)
    assert privacy.cost(9) <= 2.0
    within = privacy.derived_flags(5000, 9)
    told = capsys.readouterr().err
    assert privacy.cost(within["rounds"]) <= 2.0 < privacy.cost(within["rounds"] + 1)
    assert within["rounds"] > 9 and within["noise_multiplier"] == 6.0
    assert f"the run ends after round {within['rounds']}" in told and f"in place of {privacy.cost(9):.4g} for 9" in told
    with pytest.raises(UserError, match="give one"):
        privacy.derived_flags(9, 0)


# --- the attack


class Given:
    """Participants that are chosen by hand; the account is that of all."""

    each, expected = False, m

    def __init__(self, to: list[int]) -> None:
        self.to = to

    def __call__(self, r: int) -> list[int]:
        return self.to


def lower_bound(present: Array, absent: Array, delta: float) -> float:
    """Epsilon that the best threshold proves: log((TPR - delta)/FPR), each at its end of a Clopper-Pearson interval.

    Of 97.5 % each and at 20 thresholds, chosen on other runs: the first half chooses, the second proves."""
    best, found = -math.inf, -math.inf
    for t in np.quantile(present, np.linspace(0.02, 0.98, 20)):
        bounds = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            (hits, runs), (wrong, others) = (((each[half] > t).sum(), len(each[half])) for each in (present, absent))
            least = stats.beta.ppf(0.025, hits, runs - hits + 1) if hits else 0.0
            most = stats.beta.ppf(0.975, wrong + 1, others - wrong) if wrong < others else 1.0
            bounds.append(math.log(max(least - delta, 1e-9) / most))
        if bounds[0] > best:
            best, found = bounds
    return found


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize(
    ("flags", "q", "z"), [(POISSON, 1.0, 1.0), (POISSON, 0.5, 0.5), ({}, 1.0, 2.0), (LOCAL, 1.0, 2.0)]
)
def test_an_attack_on_one_step_proves_more_than_half_of_the_account(
    flags: dict[str, str], q: float, z: float, mechanism: str
) -> None:
    """Two clients; the reply of one is known, -C. The other's is C or absent; in another's place, C or -C. 4,000
    published sums of each (of local noise, its own scalar): the proven epsilon is below the account and above its half.

    Mutations: noise without the factor C (here 3); twice the noise; z for z/2; clip after the sum; an account without
    q, or with q^2."""
    C, delta = 3.0, 0.05
    given = {"delta": delta} if mechanism == "gaussian" else {}
    privacy = part(2, q, clip=C, noise_multiplier=z, mechanism=mechanism, **given, **flags)
    sampling, outcomes = sampling_of(privacy, q), list[list[float]]()
    for sign, last in enumerate((1e6, -1e6)):
        outcomes.append([])
        for r in range(sign * 4000, sign * 4000 + 4000):
            to = [1] if flags is LOCAL else sampling(r)
            to = [i for i in to if i == 0] if flags is POISSON and last < 0 else to
            published = total(privacy, np.array([[-9.0], [last]]), to, r, scalars=True)[0]
            outcomes[-1].append(published + C * (0 in to))
    account = privacy.cost(1)
    found = lower_bound(*map(np.array, outcomes), delta if given else 0.0)
    assert account / 2 < found < account


def test_membership_is_plain_in_models_without_privacy_and_hidden_with_it() -> None:
    """200 runs of four rounds of FedAvg on the toy, half of them with a client whose data lie far away (its minimum is
    moved by 100). The attacker sees the published model and guesses from the entry that this client moves.

    Without noise nearly all guesses are right, clipped or not. With it no more than (e^eps + delta)/(1 + e^eps), to
    four standard errors, and the bound on epsilon that they prove stays below the account.
    Mutations: clip after the sum; noise that does not depend on C; no noise in some rounds."""

    plain = toy(noise=1.0)
    planted = replace(plain.data[-1], a=plain.data[-1].a + 100 * np.eye(n)[0])

    def attacked(clip: Any, z: float) -> tuple[float, float, Array, Array]:
        scores = dict[bool, list[float]]({True: [], False: []})
        for seed in range(200):
            own = replace(plain, streams=Streams(seed), data=(*plain.data[:-1], planted))
            kind = {} if clip != "none" else {"participation": "fixed"}
            private = of(FedAvg, own, clip=clip, noise_multiplier=z, **kind)
            clients, x, member = clients_of(private), np.zeros(n), seed % 2 == 0
            to = [*range(m)] if member else [*range(m - 1)]
            for r in range(4):
                if clip == "none":
                    x = clients.mean(private.train, GlobalModel(x, r), to=to).y
                else:
                    privacy_of(private)._known["sampling"] = Given(to)
                    x = clients.mean(private.train, GlobalModel(x, r), to=to).y
            scores[member].append(float(x[0]))
        present, absent = (np.array(scores[member]) for member in (True, False))
        right = max(((present > t).mean() + (absent <= t).mean()) / 2 for t in np.concatenate([present, absent]))
        return float(right), privacy_of(private).cost(4) if z else math.inf, present, absent

    assert attacked("none", 0.0)[0] > 0.98 and attacked(0.5, 0.0)[0] > 0.98
    right, epsilon, present, absent = attacked(0.5, 8.0)
    delta, allowed = m**-1.1, 4 * math.sqrt(0.25 / 200)
    assert epsilon < 1 and right < (math.exp(epsilon) + delta) / (1 + math.exp(epsilon)) + allowed
    assert right < 0.7 and lower_bound(present, absent, delta) < epsilon


@pytest.mark.parametrize("asked", [1, 9])
def test_the_most_noise_has_an_account_too(asked: int) -> None:
    """Mutation: dp-accounting takes the logarithm of 0, a traceback."""
    pytest.importorskip("dp_accounting")
    account = Account(10, asked, False, 1e-5)
    assert 0 <= account.epsilon(2.0**30, 100) <= account.epsilon(2.0**20, 100)


def test_a_mean_that_weighs_clients_unequally_is_refused() -> None:
    """Weights of two values tell who has more samples. Mutation: refused from three values on."""
    private = of(FedAvg)
    weights = dict.fromkeys(range(m), 0.25) | {0: 0.5}
    with pytest.raises(UserError, match=r"clients\.mean must weigh participants equally"):
        clients_of(private).mean(private.train, GlobalModel(point(private.setting), 0), weights=weights)
