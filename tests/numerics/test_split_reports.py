"""Reports of the split methods: the whole network scored; --probe-gradient, steps beside gradients, without a trace."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    LABELS,
    LOCAL,
    PIXELS,
    SIDE,
    SPLIT,
    UNSPLIT,
    batches,
    gradient,
    groups,
    local_of,
    method,
    mlp,
    put,
    resnet,
    run,
    same,
    seeded,
    setting,
    small,
    training,
    vectors,
    whole_of,
)
from tests.numerics.test_exact_parts import BOTH, EXACT
from zofl_mpi.engine.clients import ClientError
from zofl_mpi.engine.fields import scalar_fields
from zofl_mpi.errors import UserError
from zofl_mpi.heron_sfl import METHODS
from zofl_mpi.methods.fedkseed import FedKSeed
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.ho_sfl import HOSFL
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.rounds.split import costs
from zofl_mpi.run.loop.local import LocalClients


@pytest.mark.parametrize("cls", SPLIT)
def test_a_report_is_of_the_whole_network_in_evaluation_mode(cls: Any) -> None:
    """29 test samples over 3 clients. Mutations: batch statistics; the head's logits; a mean of means."""
    of = method(cls, training(setting()))
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 2, clients=clients)
    told = of.evaluate(state, 1, clients)
    net, n = whole_of(resnet).eval(), of.setting.problem.n_client
    put(net, torch.cat([state.theta[:n], state.theta_s]), torch.cat([state.buffers, state.buffers_s]))
    rows = of.setting.test.rows
    with torch.no_grad():
        logits = net(torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE))
    labels = torch.from_numpy(LABELS[rows])
    assert told.test_loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-12)
    assert told.test_accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()), rel=1e-12)
    before = vectors(state)
    assert all(torch.equal(before[name], value) for name, value in vectors(state).items())


@pytest.mark.parametrize("beta", [1.0, 0.6])
@pytest.mark.parametrize("cls", LOCAL)
def test_the_local_loss_is_the_mean_over_clients_and_their_local_steps(cls: Any, beta: float) -> None:
    """In plain torch, of clients that do not step: 2, 3 and 4 batches. FSL-SAGE with and without an alignment.
    Mutations: a sum over clients or steps in place of either mean; a mean over all batches, or over clients that
    rest."""
    flags = {"align_epochs": 0} if cls is FSLSAGE else {}
    of = method(cls, training(setting(mlp), lr_client=0.0, beta=beta), **flags)
    client, head, _ = (part.double() for part in seeded(mlp))
    for r in (0, 1):
        losses = []
        for i in of.training.participants(r):
            with torch.no_grad():
                each = [float(cross_entropy(head(client(x)), labels)) for x, labels in batches(of.training, i, r)]
            losses.append(np.mean(each))
        assert len(losses) == (3 if beta == 1 else 2)
        assert run(of, 1, r).local_loss == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("cls", SPLIT)
def test_a_model_that_is_not_finite_ends_the_run_in_a_sentence(cls: Any) -> None:
    """The server's part, or a client's, whichever is found first."""
    with pytest.raises((UserError, ClientError), match="not finite"):
        run(method(cls, training(setting(mlp), Optimiser("sgd", weight_decay=1e10), lr_server=1e300)), 2)


@pytest.mark.parametrize("cls", METHODS.values())
@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_bytes_that_are_announced_of_a_client_are_those_that_travel(cls: Any, beta: float) -> None:
    """Client by client, labels by themselves. A start has counted nothing. Mutations: labels counted down or left out;
    uploads of a method without a cut; another weight's rows of sums; a column that begins at 1."""
    flags = {"align_epochs": 0} if cls is FSLSAGE else {}
    rounds = {"h": 2} if cls in UNSPLIT else {}
    for more in ({"seed_weights": "uniform"}, {"seed_weights": "magnitude"}) if cls is FedKSeed else (flags,):
        of = method(cls, training(setting(mlp), Optimiser("sgd"), beta=beta, **rounds), **more)
        state, clients = of.start(), LocalClients(list(of.setting.data), method=of)
        counters = dict(scalar_fields(state))
        counters.pop("least_second_moment", None)
        assert all(value == 0 or math.isnan(value) for value in counters.values())
        for r in range(2):
            state = of.round(state, r, clients)
            row, _ = clients.account()
            found = [row.bytes_down.sum(axis=0), row.bytes_up.sum(axis=0)]
            labels = 0
            for i in of.training.participants(r):
                kinds = of.traffic.of(r, i)
                labels += sum(kinds.pop(costs.LABELS))
                assert tuple(map(sum, zip(*kinds.values(), strict=True))) == (found[0][i], found[1][i])
            assert state.label_bytes == labels


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


@BOTH
def test_cosines_are_as_large_as_the_rule_of_thumb_says(cls: Any) -> None:
    """Of n_p directions in d dimensions, of which theta_a has no part, sqrt(n_p / (n_p + d + 1)) over 40 rounds.
    Mutations: the rule without P; a cosine of absolute values; estimates of another step's directions."""
    plan = training(setting(small), freeze="auxiliary")
    for n_p in (1, 4):
        of = method(cls, plan, n_p=n_p, mu=1e-5, distribution="gaussian", **PROBE)
        cosines = [report(of, r).estimate_cosine for r in range(40)]
        rule = math.sqrt(n_p / (n_p + plan.problem.n_client + 1))
        assert of.plan(1)["cosine of an estimate with the gradient, about"] == f"{rule:.3g}"
        assert all(-1 < c < 1 for c in cosines) and sum(cosines) / 40 == pytest.approx(rule, rel=0.25)
    of = method(cls, plan, n_p=4, mu=1e-5, distribution="gaussian", directions="per-sample", **PROBE)
    assert sum(report(of, r).estimate_cosine for r in range(40)) > 4
    assert "cosine of an estimate with the gradient, about" not in of.plan(1)


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


@BOTH
def test_a_probe_of_the_gradient_itself_is_refused(cls: Any) -> None:
    with pytest.raises(UserError, match=r"^--probe-gradient: --estimate exact has the gradient itself"):
        method(cls, training(setting(small)), estimate="exact", **PROBE)
