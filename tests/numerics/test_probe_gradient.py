"""--probe-gradient: the clients' steps beside their gradients, without a trace in the run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.numerics.split_methods import (
    close,
    forward,
    gradient,
    local_of,
    method,
    resnet,
    run,
    same,
    setting,
    small,
    training,
)
from tests.numerics.test_per_sample import groups
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.rounds.split.messages import Network, Smashed
from zofl_mpi.rounds.split.server import Server, slope_at_cut
from zofl_mpi.run.local import LocalClients

BOTH = pytest.mark.parametrize("cls", [HERON, HOSFL])
EXACT: dict[Any, dict[str, Any]] = {HERON: {"head_gradient": "exact"}, HOSFL: {}}
PROBE: dict[str, Any] = {"probe_gradient": True}


def report(of: Any, r: int = 0) -> Any:
    return of.evaluate(of.start(), r, LocalClients(list(of.setting.data), method=of))


@BOTH
def test_the_gradient_itself_has_cosine_1_and_a_part_of_it_its_share(cls: Any) -> None:
    """Mutations: the head in the cosine; another mini-batch for one of the two; the norm of all for that of a part."""
    plan = training(setting(groups))
    whole = report(method(cls, plan, exact_layers=6, **PROBE, **EXACT[cls]))
    assert abs(whole.estimate_cosine - 1) < 1e-12
    found = [report(method(cls, plan, exact_layers=k, rest="frozen", **PROBE, **EXACT[cls])) for k in (1, 3, 5)]
    shares = [told.estimate_cosine for told in found]
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 1
    assert (whole.head_over_client is None) == (cls is HOSFL)


def test_the_heads_share_is_that_of_the_local_gradient() -> None:
    """Mutations: client over head; a sum over clients; squares."""
    of = method(HERON, training(setting(small)), **PROBE)
    n, ratios = of.setting.problem.n_client, []
    for i in range(3):
        local = local_of(of, i)
        _, x, labels = next(iter(local))
        g = gradient(local, x, labels)
        ratios.append(float(g[n:].norm() / g[:n].norm()))
    assert report(of).head_over_client == pytest.approx(sum(ratios) / 3, rel=1e-12)


@pytest.mark.parametrize("directions", ["global", "per-sample"])
@BOTH
def test_cosines_are_as_large_as_the_rule_of_thumb_says(cls: Any, directions: str) -> None:
    """Of one direction in d dimensions, over 60 rounds: their mean square is 1/d, in which theta_a has no part; of
    4 directions sqrt(4 / (4 + d + 1)) within a fifth. Signs of the samples are those of the step.

    Mutations: the rule without P; a cosine of absolute values; estimates of another step's directions.
    """
    plan = training(setting(small), freeze="auxiliary")
    d = plan.problem.n_client
    for n_p in (1, 4):
        of = method(cls, plan, n_p=n_p, mu=1e-5, distribution="gaussian", directions=directions, **PROBE)
        cosines = [report(of, r).estimate_cosine for r in range(60)]
        assert all(-1 < c < 1 for c in cosines)
        if directions == "global":
            rule = math.sqrt(n_p / (n_p + d + 1))
            told = of.plan(1)["cosine of an estimate with the gradient, about"]
            assert told == f"{rule:.3g}"
            assert sum(cosines) / 60 == pytest.approx(rule, rel=0.25)
        else:
            assert sum(cosines) / 60 > 0.1 and "cosine of an estimate with the gradient, about" not in of.plan(1)


@BOTH
@pytest.mark.parametrize("more", [{}, {"uplink": "seeds"}, {"exact_layers": 2}])
def test_a_probe_leaves_no_trace(cls: Any, more: dict[str, Any]) -> None:
    """In state, clients' memories and bytes. Mutations: a counted message; moments or statistics that move."""
    plan, found = training(setting(resnet)), []
    exact = EXACT[cls] if "exact_layers" in more else {}
    for probe in (False, True):
        of = method(cls, plan, probe_gradient=probe, **more, **exact)
        clients, state = LocalClients(list(of.setting.data), method=of), of.start()
        rows = []
        for r in range(3):
            state = run(of, 1, r, clients, state)
            rows.append(clients.account()[0])
            told = of.evaluate(state, r, clients)
            assert (told.estimate_cosine is not None) == probe
        found.append((state, rows))
    (plain, row), (probed, other) = found
    assert same(plain, probed)
    for a, b in zip(row, other, strict=True):
        assert (a.bytes_down.sum(), a.bytes_up.sum()) == (b.bytes_down.sum(), b.bytes_up.sum())
        assert a.bytes_up.sum() > 0


def test_the_slope_is_what_the_server_returns() -> None:
    """Mutation: the slope after a step, or of the auxiliary head."""
    of = method(HOSFL, training(setting(resnet)))
    state, local = of.start(), local_of(method(HERON, of.training), 1)
    x, labels = next((x, labels) for _, x, labels in local)
    smashed, _ = forward(local, x, labels)
    network = Network(state.theta, state.buffers, state.theta_s, state.buffers_s, 0)
    found = slope_at_cut(of.training, network)(x, labels)
    close(found, Server.of(of.training, state, 0).exchange(Smashed(smashed, labels)))
    assert float(found.norm()) > 1e-3


@BOTH
def test_a_probe_of_the_gradient_itself_is_refused(cls: Any) -> None:
    with pytest.raises(UserError, match=r"^--probe-gradient: --estimate exact has the gradient itself"):
        method(cls, training(setting(small)), estimate="exact", **PROBE)
