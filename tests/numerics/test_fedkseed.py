"""FedKSeed: a loop by hand, the model from K sums, and where it is DeComFL."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    STREAMS,
    apart,
    batches,
    close,
    flat,
    method,
    mlp,
    put,
    resnet,
    run,
    setting,
    training,
    whole_of,
)
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.fedkseed import FedKSeed, SeededModel
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.rounds.split.client import drawn

PLAIN = Optimiser("sgd")


def whole(method: FedKSeed, state: Any) -> Tensor:
    return torch.cat([state.theta[: method.setting.problem.n_client], state.theta_s])


@pytest.mark.parametrize("estimate", ["one-sided", "central"])
@pytest.mark.parametrize("weights", ["uniform", "magnitude"])
def test_rounds_are_a_loop_by_hand(weights: Any, estimate: Any) -> None:
    """Two clients of unequal sizes, K = 3, four steps a round, three rounds, sizes that fall. Mutations: x_0 for the
    last model, or the other way round; steps added to a client's model of the round before; a seed's sum without the
    step sizes; differences for their magnitudes; a mean over rounds for one over steps; magnitudes not scaled; weights
    of the round to come; seeds that clients share, or that a round repeats; directions of the round; equal clients."""
    pace = Pace("linear", warmup=2, decay_steps=40)
    plan = training(setting(mlp, clients=(0, 2)), PLAIN, h=4, lr_client=0.05, weights="size", pace=pace)
    of = method(FedKSeed, plan, seeds=3, mu=1e-3, estimate=estimate, seed_weights=weights)
    found, net = run(of, 3), whole_of(mlp)
    first = flat(net)
    us = [next(drawn(STREAMS(Purpose.DIRECTION, t=k), first, 1, "gaussian")) for k in range(3)]
    c, magnitude, count, seen = np.zeros(3), np.zeros(3), np.zeros(3), []

    def loss(at: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        put(net, at, torch.zeros(0))
        with torch.no_grad():
            return cross_entropy(net(inputs), labels)

    shares = {i: len(data) for i, data in enumerate(plan.setting.data)}
    for r in range(3):
        x = first - sum(c[k] * us[k] for k in range(3))
        a = np.divide(magnitude, count, out=np.zeros(3), where=count > 0)
        e = np.exp((a - a.min()) / (a.max() - a.min())) if r else np.ones(3)
        p = e / e.sum() if weights == "magnitude" else None
        for i in shares:
            y, seeds, w = (
                x.clone(),
                STREAMS(Purpose.SEEDS, r=r, i=i).choice(3, 4, p=p),
                shares[i] / sum(shares.values()),
            )
            seen.append(tuple(seeds))
            for q, (inputs, labels) in enumerate(batches(plan, i, r)):
                u, t = us[seeds[q]], 4 * r + q
                back, span = (1e-3, 2e-3) if estimate == "central" else (0.0, 1e-3)
                difference = loss(y + 1e-3 * u, inputs, labels) - loss(y - back * u, inputs, labels)
                lr = 0.05 * (t / 2 if t < 2 else (40 - t) / 38)
                y = y - lr * difference / span * u
                c[seeds[q]] += w * lr * float(difference) / span
                magnitude[seeds[q]] += w * abs(float(difference))
                count[seeds[q]] += w
    span = of.rule.span  # type: ignore[attr-defined]
    close(whole(of, found), first - sum(c[k] * us[k] for k in range(3)), 1e-9)
    expected = [c * span, magnitude, count][: len(found.sums)]
    np.testing.assert_allclose(found.sums, expected, rtol=1e-7)
    assert (
        len(set(seen)) == 6 and apart(whole(of, found), first) and len(found.sums) == (3 if weights != "uniform" else 1)
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_client_makes_the_servers_model_of_k_numbers(dtype: str) -> None:
    """To the bit, in any round, from x_0 alone. Mutations: sums in another precision than they travel in; a model that
    steps on from the round before; seeds of which the sum is 0 that move it."""
    of = method(
        FedKSeed, training(setting(resnet, dtype=dtype), PLAIN, h=3, lr_client=0.05, beta=0.5), seeds=6, mu=0.01
    )
    state = of.start()
    for r in range(4):
        state = run(of, 1, r, None, state)
        known = of.known(state.sums)
        assert known.dtype == np.dtype(dtype) and known.shape == (1, 6)
        assert torch.equal(of.model(known[0]), whole(of, state))


def test_with_one_seed_a_round_is_decomfls() -> None:
    """One local step along u_0, which is DeComFL's direction in round 0. Mutations: a factor; another direction."""
    plan = training(setting(mlp), PLAIN, h=1, lr_client=0.05, weights="size")
    kseed, decomfl = method(FedKSeed, plan, seeds=1, mu=1e-3), method(DeComFL, plan, mu=1e-3, n_p=1)
    found, expected = run(kseed, 1), run(decomfl, 1)
    close(whole(kseed, found), whole(kseed, expected), 1e-10)
    assert apart(found.theta, kseed.start().theta) and found.local_loss == expected.local_loss


def test_each_of_many_seeds_is_drawn_as_often_as_its_weight() -> None:
    """Over many clients: uniform, and as softmax of magnitudes scaled to 0...1. Mutations: magnitudes that are not
    scaled; weights that ignore them; a temperature."""
    of = method(FedKSeed, training(setting(mlp), PLAIN, h=3), seeds=4, seed_weights="magnitude")
    a = np.array([[0.0] * 4, [2.0, 4.0, 6.0, 2.0]], np.float32)
    none = torch.zeros(0)
    draws = np.concatenate([of.drawn(SeededModel(none, {}, none, 0, 1.0, "", a[1:]), i) for i in range(4000)])
    share, e = np.bincount(draws, minlength=4) / len(draws), np.exp([0, 0.5, 1, 0])
    np.testing.assert_allclose(share, e / e.sum(), atol=5 * 0.5 / len(draws) ** 0.5)
    even = np.concatenate([of.drawn(SeededModel(none, {}, none, 0, 1.0, "", a[2:]), i) for i in range(4000)])
    np.testing.assert_allclose(np.bincount(even) / len(even), [0.25] * 4, atol=5 * 0.5 / len(draws) ** 0.5)


def test_what_travels_and_how_many_directions_there_are() -> None:
    """Mutations: the sum of magnitudes for their mean; the number of steps divided by those of a round."""
    of = method(FedKSeed, training(setting(mlp), PLAIN, h=3), seeds=2, seed_weights="magnitude")
    np.testing.assert_array_equal(of.known(np.array([[1.0, 2], [6, 8], [3, 4]])), [[1, 2], [2, 2]])
    for seeds, drawn_in_two_rounds in ((4, 4), (18, 18), (50, 18)):
        of = method(FedKSeed, training(setting(mlp), PLAIN, h=3), seeds=seeds)
        assert of.directions(2).drawn == drawn_in_two_rounds
