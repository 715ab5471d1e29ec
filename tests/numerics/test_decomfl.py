"""DeComFL: scalars make every model; identities of estimates in one dimension and of two radii."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.conftest import Patch
from tests.numerics.split_methods import (
    ESTIMATING,
    SGD,
    SIZES,
    C,
    Parts,
    apart,
    batches,
    broadcast,
    close,
    flat,
    method,
    mlp,
    put,
    resnet,
    run,
    setting,
    training,
    vectors,
    whole_of,
)
from tests.numerics.test_split_texts import texts_setting
from zofl_mpi.engine.between import composed
from zofl_mpi.engine.clients import Client, ClientError
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.decomfl import DeComFL, HiSo
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems.signs import SignedLayers
from zofl_mpi.rounds.split.client import drawn
from zofl_mpi.rounds.split.estimating import check_arithmetic
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.rounds.split.unsplit import ModelBroadcast
from zofl_mpi.run.command import flags
from zofl_mpi.run.loop.client_memory import Acknowledged, recall
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.rounds import finite_round

PLAIN = Optimiser("sgd")
RULES = pytest.mark.parametrize("rule", [PLAIN, SGD, Optimiser("adamw", weight_decay=0.1)], ids=["sgd", "m", "adamw"])


def planned(own: Any, rule: Optimiser = PLAIN, **given: Any) -> Training:
    return training(own, rule, **{"h": 2, "lr_client": 0.05, **given})


def of(plan: Training, **given: Any) -> DeComFL:
    return method(DeComFL, plan, **given)  # type: ignore[no-any-return]


def source(make: Any, **given: Any) -> Any:
    return texts_setting() if make is None else setting(make, **given)


def joined(method: DeComFL, state: Any) -> Tensor:
    return torch.cat([state.theta[: method.setting.problem.n_client], state.theta_s])


def sent(method: DeComFL, state: Any, r: int = 0) -> ModelBroadcast:
    """The message that begins round r."""
    return broadcast(method, method.full_theta(state), state.optimiser, torch.cat([state.buffers, state.buffers_s]), r)


def recorded(method: DeComFL) -> list[np.ndarray]:
    """(h, n_p) the mean differences by which the server steps, round by round, as rounds will append them."""
    found, replay = list[np.ndarray](), method.replay

    def replayed(x: Tensor, moments: Any, r: int, differences: np.ndarray) -> None:
        found.append(differences)
        replay(x, moments, r, differences)

    vars(method)["replay"] = replayed
    return found


def directions(method: DeComFL, r: int, q: int = 0) -> list[Tensor]:
    like = joined(method, method.start())
    return list(drawn(method.key(r, q)(Purpose.DIRECTION), like, method.n_p, method.distribution))


def test_a_step_is_the_projection_of_the_gradient() -> None:
    """On the mean loss of all clients, to O(mu^2): their scalars' mean is the mean loss's derivative. Mutations:
    directions of each client's own; weights of the clients forgotten."""
    plan = planned(setting(mlp), h=1, batch=6, weights="size")
    central = of(plan, mu=1e-4, estimate="central", n_p=3, distribution="sphere")
    start = central.start()
    net = whole_of(mlp)
    total = torch.zeros(len(flat(net)), dtype=torch.float64)
    for i, size in enumerate(SIZES):
        net.zero_grad()
        inputs, labels = next(batches(plan, i, 0))
        cross_entropy(net(inputs), labels).backward()
        total += size / sum(SIZES) * torch.cat([p.grad.reshape(-1) for p in net.parameters() if p.grad is not None])
    moved = (joined(central, run(central, 1)) - joined(central, start)) / -0.05
    expected = sum(len(u) * (u @ total) * u for u in directions(central, 0)) / 3
    close(moved, torch.as_tensor(expected), 1e-6)
    assert float(moved.norm()) > 0.1


@RULES
@pytest.mark.parametrize(
    ("cls", "make", "dtype"),
    [
        *((DeComFL, make, dtype) for make, dtype in ((mlp, "float32"), (resnet, "float32"), (resnet, "float64"))),
        (DeComFL, None, "float64"),
        *((HiSo, mlp, dtype) for dtype in ("float32", "float64")),
    ],
)
def test_a_client_that_has_rested_would_make_the_servers_model_of_what_it_missed(
    cls: Any, make: Any, rule: Optimiser, dtype: str
) -> None:
    """To the bit, moments and HiSo's K too, whenever it comes back: some clients rest, some begin late. No client keeps
    a model: ranks hold the server's. Mutations: the step sizes of another round; moments of the local steps; a round's
    update of K left out or taken twice; a model in a client's memory; the model of the round before; bytes of the
    model that ranks get, or of one round's scalars."""
    own = source(make) if make is None else source(make, dtype=dtype)
    pace = Pace("linear", warmup=2, decay_steps=13)
    rested = method(cls, planned(own, rule, beta=0.4, pace=pace), n_p=2)
    twin, scalars = method(cls, rested.training, n_p=2), recorded(rested)
    clients = LocalClients(list(own.data), method=rested)
    state, missed, copies = rested.start(), set[int](), dict[int, Any]()
    first = joined(rested, state)
    for r in range(6):
        before = state
        state = run(rested, 1, r, clients, state)
        (i,) = rested.training.participants(r)
        last = rested.training.latest(r).get(i, 0)
        missed.add(r - last)
        row = clients.account()[0]
        booked = 8 * 2 * 2 * (r - last) + before.buffers.nbytes + before.buffers_s.nbytes + 8
        assert row.bytes_down.sum(axis=0)[i] == row.bytes_down.sum() == booked
        assert sum(sum(ways) for ways in rested.traffic.of(r, i).values()) == booked + row.bytes_up.sum()
        x, moments = copies.setdefault(i, (first.clone(), rested.first_moments(first)))
        for k in range(last, r):
            twin.replay(x, moments, k, scalars[k])
        for held, held_moments in ((x, moments), (rested._held["x"], rested._held["moments"])):
            assert torch.equal(held, joined(rested, before)), r
            for name, value in before.optimiser.items():
                assert torch.equal(torch.as_tensor(held_moments[name]), torch.as_tensor(value)), (r, name)
        assert [told.entries for _, told in clients.ask(recall, Acknowledged(), counted=False)] == [{}] * 3
    assert len(missed - {0}) > 1 and max(missed) > 1
    assert {each.shape for each in scalars} == {(2, 2)} and len(scalars) == 6 and np.isfinite(state.local_loss)
    assert apart(joined(rested, state), joined(rested, rested.start()))


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@pytest.mark.parametrize("make", [mlp, resnet], ids=["mlp", "resnet"])
def test_the_passes_of_a_step_are_those_that_are_told(monkeypatch: Patch, make: Any, estimate: Any) -> None:
    """No graph; BatchNorm's statistics move in one of them. Mutations: a gradient; statistics that stay."""
    own = setting(make)
    scalar = of(planned(own), n_p=3, estimate=estimate)
    seen: list[bool] = []
    smash = type(own.problem).smash

    def counted(self: Any, inputs: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return smash(self, inputs)

    monkeypatch.setattr(type(own.problem), "smash", counted)
    start = scalar.start()
    message = sent(scalar, start)
    told = scalar.train(Client(1, own.data[1]), message)
    passes = {"one-sided": 4, "central": 6 + (make is resnet)}[estimate]
    assert seen == [False] * (2 * passes)
    still = of(planned(own, batchnorm="running"), n_p=3, estimate=estimate)
    assert still.plan(1)["forward passes of a local step"] == {"one-sided": 4, "central": 6}[estimate]
    lines = scalar.plan(1)
    assert lines["forward passes of a local step"] == passes and lines["backward passes of a local step"] == 0
    assert told.differences.shape == (2, 3)
    if make is resnet:
        assert apart(told.buffers, message.buffers)


def test_costs_are_those_of_the_whole_network() -> None:
    """Mutations: the head's products; the client's alone; the memory of a pass through the head."""
    own = setting(mlp)
    costs = of(planned(own)).costs()
    products = 64 * 4 + 4 * 5 + 5 * 3
    assert costs["multiply-accumulates of a sample at the client"] == products
    assert costs["multiply-accumulates of a client's step"] == (1 + 16) * 4 * products
    assert float(costs["peak bytes of a client's step, beyond its model"]) >= 4 * 8 * (64 + 5 + 5)


def test_what_cannot_be_is_refused() -> None:
    own = setting(mlp)
    for given, words in (
        ({"freeze": "client"}, "--freeze client: must be none"),
        ({"state": "reset"}, "--state reset: must be keep"),
        ({"order": "client_major"}, "--order client_major: must be interleave"),
    ):
        with pytest.raises(UserError, match=words):
            flags.from_flags(DeComFL, own, **{"batch": 4, **given})
    wild = Optimiser("sgd", weight_decay=1e10)
    for h, words in ((1, "the model is not finite after the round"), (2, "client 0 .*a loss is not finite; a smaller")):
        with pytest.raises((UserError, ClientError), match=words):
            run(of(planned(own, wild, lr_client=1e300, h=h)), 1)
    with pytest.raises(UserError, match="--method decomfl: a client computes on another processor, the server on cpu"):
        check_arithmetic(own.problem.arithmetic, "another processor", "--method decomfl", "")


ADAMW = Optimiser("adamw", weight_decay=0.1)
KINDS = [
    {"estimate": "one-sided"},
    {"estimate": "central"},
    {"estimate": "jvp"},
    {"estimate": "one-sided", "directions": "per-sample"},
    {"estimate": "central", "directions": "per-sample"},
]


def scalar() -> Parts:
    """A client of one parameter, the mean pixel's weight, and three smashed numbers a sample."""
    spread = nn.Linear(1, 3).requires_grad_(False)
    client = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(1, 1, bias=False), spread)
    return client, nn.Linear(3, C), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, C))


@pytest.mark.parametrize("flags", KINDS, ids=str)
@pytest.mark.parametrize("cls", ESTIMATING)
def test_in_one_dimension_an_estimate_is_the_derivative(cls: Any, flags: dict[str, Any]) -> None:
    """The sphere of one dimension is {-1, 1}, so (L(x + mu u) - L(x)) / mu u is L'(x), for each sample, too, as mu -> 0
    (HO-SFL's product with lambda is linear: for all mu). Three rounds beside backpropagation. Mutations: a mean for a
    sum over samples or smashed numbers, at the cut or behind the head; mu, 2 or n_p missing; losses summed over
    directions; lambda of another batch; a sign of a difference that its direction has not."""
    plan = training(setting(scalar), SGD, **({"freeze": "auxiliary"} if cls is HERON else {}))
    mu = 1e-6 if cls is HERON else 0.5
    found = run(method(cls, plan, n_p=3, mu=mu, **flags), 3)
    exact = run(method(cls, plan, estimate="exact"), 3)
    start = method(cls, plan).start()
    for name, tensor in vectors(found).items():
        close(tensor, vectors(exact)[name], 1e-5 if cls is HERON else 1e-10)
    n = plan.setting.problem.n_client
    assert n == 1 and abs(float(exact.theta[0] - start.theta[0])) > 1e-3


@pytest.mark.parametrize("central", ["one-sided", "central"])
@pytest.mark.parametrize(
    ("cls", "flags"),
    [(HERON, {}), (HERON, {"directions": "per-sample"}), (HOSFL, {"directions": "per-sample"}), (DeComFL, {})],
    ids=["heron", "heron-each", "ho_sfl-each", "decomfl"],
)
def test_the_sphere_with_mu_is_the_larger_sphere_with_mu_over_its_radius(
    cls: Any, flags: dict[str, Any], central: str
) -> None:
    """d / mu (L(x + mu w) - L(x)) w, |w| = 1, is 1 / nu (L(x + nu u) - L(x)) u with u = sqrt(d) w, nu = mu / sqrt(d).
    Mutations: the factor d forgotten, in an estimate or where steps are taken from differences; mu of the other
    unit."""
    own = setting(mlp)
    plan = training(own, SGD, **({"h": 2} if cls is DeComFL else {}))
    n = own.problem.n_client
    d = {HERON: own.problem.client_side.n, HOSFL: n, DeComFL: n + own.problem.server_side.n}[cls]
    found = [
        run(method(cls, plan, n_p=2, mu=mu, distribution=distribution, estimate=central, **flags), 2)
        for distribution, mu in (("sphere", 0.1), ("sqrt_d_sphere", 0.1 / d**0.5))
    ]
    for name, tensor in vectors(found[0]).items():
        close(tensor, vectors(found[1])[name], 1e-8)
    assert apart(found[0].theta, method(cls, plan).start().theta)


@pytest.mark.parametrize("cls", ESTIMATING)
def test_each_direction_of_each_step_has_signs_of_its_own(monkeypatch: Patch, cls: Any) -> None:
    """Steps of three clients in two rounds, three directions each: all signs differ, within a batch and between them.
    Else the estimates of two steps, or of two samples, share what should make their errors independent. Mutations:
    signs of step 0 for all; of the first direction; of the first round; of the first client; of the first sample."""
    plan = training(setting(mlp), SGD)
    of = method(cls, plan, n_p=3, directions="per-sample")
    first = run(of, 1)  # what a method draws but once is drawn now
    patterns: list[bytes] = []
    draw = SignedLayers.draw

    def recorded(self: SignedLayers, generator: Any, count: int, like: Tensor) -> Any:
        signs = draw(self, generator, count, like)
        ones, each = torch.ones_like(like), torch.eye(count).to(like)
        patterns.extend(self.weighted(ones, signs, one).numpy().tobytes() for one in each)
        return signs

    monkeypatch.setattr(SignedLayers, "draw", recorded)
    run(of, 2, start=1, state=first)
    assert len(patterns) == 2 * 3 * sum(len(data) for data in plan.setting.data)
    assert len(set(patterns)) == len(patterns)


@pytest.mark.parametrize("rule", [SGD, ADAMW, Optimiser("adamw_transformers", weight_decay=0.1)], ids=str)
@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@pytest.mark.parametrize(("cls", "flags"), [(DeComFL, {}), (HiSo, {"nu": 0.6}), (HiSo, {"nu": 1.0})], ids=str)
def test_several_local_steps_are_a_loop_by_hand(
    cls: Any, flags: dict[str, float], rule: Optimiser, estimate: str
) -> None:
    """One client, three steps a round, three rounds, sizes that warm up and fall: with one client the server's steps
    along the mean differences are the client's own. Mutations: empty moments at local steps; moments of the local steps
    that stay; one direction for the steps of a round; the size of step r + q, or of q alone; directions of the client's
    part alone; a sign; n_p, 2 or mu missing; K for its root; the first local step's G; nu and 1 - nu exchanged; G for
    G^2; K renewed before the step; u for z in the step; a K that moves though nu is 1."""
    pace = Pace("linear", warmup=3, decay_steps=11)
    plan = training(setting(mlp, clients=(2,)), rule, h=3, pace=pace)
    of = method(cls, plan, n_p=2, mu=1e-3, estimate=estimate, **flags)
    found, net, nu = run(of, 3), whole_of(mlp), flags.get("nu", 1.0)
    x, memory = flat(net), dict[str, Any]()
    K = torch.ones_like(x)

    def loss(at: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        put(net, at, torch.zeros(0))
        with torch.no_grad():
            return cross_entropy(net(inputs), labels)

    def lr(t: int) -> float:
        return 0.05 * (t / 3 if t < 3 else max(0, 11 - t) / 8)

    seen = []
    for r in range(3):
        for q, (inputs, labels) in enumerate(batches(plan, 0, r)):
            us = directions(of, r, q)
            seen += [u.numpy().tobytes() for u in us]
            zs = [u / K.sqrt() for u in us]
            back, span = (1e-3, 4e-3) if estimate == "central" else (0.0, 2e-3)
            g = sum((loss(x + 1e-3 * z, inputs, labels) - loss(x - back * z, inputs, labels)) / span * z for z in zs)
            G = torch.as_tensor(g)
            rule.step(x, G, memory, lr(3 * r + q))
        K = nu * K + (1 - nu) * G * G
    n = plan.setting.problem.n_client
    close(joined(of, found), x, 1e-9)
    if flags:
        close(found.optimiser["second_moment"], K, 1e-7)
        assert found.least_second_moment == pytest.approx(float(K.min()))
    assert len(found.theta) == n
    assert len(seen) == len(set(seen)) == 3 * 3 * 2 and apart(x, flat(whole_of(mlp)))


def test_nothing_bounds_hisos_k_below() -> None:
    """Where G is 0, K is nu^R after R rounds, and the directions grow by nu^(-R/2); where G is small, K follows its
    square. Mutations: a floor under K, under what is added to it, under the root that divides; K kept where G is 0."""
    hiso = method(HiSo, planned(setting(mlp), h=1), n_p=1, nu=0.1)
    x = joined(hiso, hiso.start())
    moments = hiso.first_moments(x)
    first = x.clone()
    for r in range(8):
        hiso.replay(x, moments, r, np.zeros((1, 1)))
    assert torch.equal(x, first)
    close(moments["second_moment"], torch.full_like(x, 1e-8), 1e-12)
    (u,), (z,) = directions(hiso, 8), hiso.estimator(moments).directions(x, hiso.key(8, 0))
    close(z, 1e4 * u, 1e-12)
    G = hiso.estimator(moments).replay(x, [1e-12], hiso.key(8, 0))
    hiso.replay(x, moments, 8, np.full((1, 1), 1e-12))
    assert 0 < float((G * G).max()) < 1e-6
    close(moments["second_moment"], 1e-9 + 0.9 * G * G, 1e-12)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"aggregate": "median"}, lambda g, _: np.median(g, axis=0)),
        ({"aggregate": "trimmed:0.3"}, lambda g, _: np.sort(g, axis=0)[1]),
        ({"attackers": 0.3}, lambda g, liar: np.mean([-x if i == liar else x for i, x in enumerate(g)], axis=0)),
    ],
)
def test_scalars_are_aggregated_as_models_are(flags: dict[str, Any], expected: Any) -> None:
    """All share their directions, so the middle one of a direction's scalars means something. Mutations: the mean; a
    liar's word of another direction; every client lies."""
    plan = planned(setting(mlp), weights="uniform")
    plain, robust = of(plan, n_p=3), of(plan, n_p=3, **flags)
    state = plain.start()
    g = [plain.train(Client(i, data), sent(plain, state)).differences for i, data in enumerate(plan.setting.data)]
    scalars = recorded(robust)
    run(robust, 1)
    (found,) = scalars
    liar = next(iter(robust.setting.between[0].liars), None)
    np.testing.assert_allclose(found, expected(np.array(g), liar), rtol=1e-12)
    assert np.abs(found - np.mean(g, axis=0)).max() > 1e-6


@pytest.mark.parametrize("cls", [DeComFL, HiSo])
@pytest.mark.parametrize("estimate", ["one-sided", "central"])
def test_a_robust_mean_clips_the_same_scalars_as_privacy(cls: Any, estimate: Any) -> None:
    """--aggregate clip:C and --clip C without noise, where all take part: derivatives along the directions, whatever
    the radius. Mutations: raw differences of losses in one of the two; the radius for the distance of two points."""
    plan, flags = planned(setting(mlp), weights="uniform"), {"mu": 3e-3, "n_p": 3, "estimate": estimate}

    def change(**more: Any) -> Any:
        of = method(cls, plan, **flags, **more)
        return (of.full_theta(run(of, 1)) - of.full_theta(of.start())).numpy()

    plain, robust, private = change(), change(aggregate="clip:0.05"), change(clip=0.05)
    np.testing.assert_allclose(robust, private, rtol=1e-5, atol=1e-5 * np.abs(private).max())
    assert np.abs(robust).max() < 0.9 * np.abs(plain).max()


@pytest.mark.parametrize("cls", [DeComFL, HiSo])
@pytest.mark.parametrize("trust", ["server", "nobody"])
def test_scalars_are_clipped_together_noised_and_averaged_over_the_expected_number(cls: Any, trust: str) -> None:
    """h n_p derivatives of a client have the norm C at most; the round's are their sum and the noise over q m, the same
    on the server's and the clients' side of the account. Poisson participation, of whom none may come; no loss leaves a
    client. Mutations: each scalar clipped by itself; differences clipped without their radius; the denominator |S_r|;
    noise on both sides, or not times the radius; the loss of local steps."""
    flags = {"mu": 1e-3, "n_p": 3, "estimate": "central"}
    plain = method(cls, planned(setting(mlp), weights="uniform"), **flags)
    C, z, mu2, m = 0.05, 0.7, 2e-3, 3
    given = {"clip": C, "noise_multiplier": z, "participation": "poisson", "trust": trust}
    private = method(cls, planned(setting(mlp), beta=0.4, weights="uniform"), **flags, **given)
    sampling = private.training.participants
    scalars = recorded(private)
    clients = composed(LocalClients(list(private.setting.data), method=private), private)
    state, sizes = private.start(), set()
    for r in range(7):
        before, S = state, sampling(r)
        state = finite_round(private, state, r, clients)
        sizes.add(len(S))
        noise, by_hand = private.setting.between[1], np.zeros(6)
        clipped = 0
        for i in S:
            own = plain.train(Client(i, plain.setting.data[i]), sent(plain, before, r)).differences.ravel()
            factor = min(1.0, C / float(np.linalg.norm(own) / mu2))
            clipped += int(factor < 1)
            by_hand += factor * own / mu2 + (noise._noise(i, r, 6, True) if trust == "nobody" else 0.0)
        by_hand += noise._noise(m, r, 6, True) if trust == "server" else 0.0
        np.testing.assert_allclose(scalars[-1].ravel(), by_hand * mu2 / (0.4 * m), rtol=1e-6, atol=1e-12)
        assert np.isnan(state.local_loss)
        shares = private.setting.between[1].columns(r + 1, evaluated=False)
        assert (shares.clipped == clipped / len(S)) if S else np.isnan(shares.clipped)
    assert sizes >= {0, 1, 2}


def test_without_clip_or_noise_a_private_round_is_the_round() -> None:
    """C far above all scalars, to rounding. Mutation: a span that is not that of the estimate."""
    for estimate in ("one-sided", "central"):
        flags = {"mu": 1e-3, "n_p": 2, "estimate": estimate}
        plain, wide = (
            method(DeComFL, planned(setting(mlp), weights="uniform"), **flags, **given) for given in ({}, {"clip": 1e9})
        )
        found, expected = recorded(wide), recorded(plain)
        run(wide, 3), run(plain, 3)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)
