"""What the rounds of all split methods have in common: mini-batches, uploads, averages, flags."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.conftest import Patch
from tests.numerics.split_methods import (
    LOCAL,
    RULES,
    SIDE,
    SPLIT,
    STEPS_OF,
    STREAMS,
    C,
    Parts,
    apart,
    close,
    deep,
    interleaved,
    local_of,
    method,
    mlp,
    named,
    resnet,
    run,
    same,
    setting,
    training,
    vectors,
)
from zofl_mpi.engine.ledger import costs_type
from zofl_mpi.engine.reduction import Reduction
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV1, SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.split import crop_flip
from zofl_mpi.rounds.split.messages import Model
from zofl_mpi.rounds.split.server import Server
from zofl_mpi.run.loop.client_memory import STEPS, Acknowledged
from zofl_mpi.run.loop.local import LocalClients


def test_each_pass_takes_every_sample_once_and_the_next_in_another_order() -> None:
    """Mutations: no new permutation; the last batch dropped, or filled up; the generator of another client or round."""
    one = setting(mlp)
    own = replace(one, data=(one.data[1],) * 3)
    for h in (0, 2, 7):
        plan = training(own, h=h)
        found = [b.tolist() for b in plan.batches(1, 4)]
        assert len(found) == plan.steps(1) == (h or 3)
        assert [len(b) for b in found] == [plan.samples(1, q) for q in range(len(found))]
        assert [len(b) for b in found] == [4, 4, 2, 4, 4, 2, 4][: len(found)]
        if h != 2:
            assert sorted(itertools.chain(*found[:3])) == list(range(10))
        if h == 7:
            assert found[3:6] != found[:3] and sorted(itertools.chain(*found[3:6])) == list(range(10))
        assert [b.tolist() for b in plan.batches(1, 4)] == found
        assert [b.tolist() for b in plan.batches(1, 5)] != found
        assert [b.tolist() for b in plan.batches(0, 4)] != found


def met(monkeypatch: Patch, of: Any, r: int = 0) -> list[tuple[int, int]]:
    """The server's steps of round r: (client, which of its batches) in order."""
    plan, own, step = of.training, of.setting, Server.step
    places = {
        tuple(own.data[i].rows[b].tolist()): (i, q) for i in range(own.m) for q, b in enumerate(plan.batches(i, r))
    }
    found = []

    def seen(self: Server, i: int, item: Any, returned: bool = False) -> None:
        found.append(places[tuple(item.labels.tolist())])
        step(self, i, item, returned)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "step", seen)
        state = run(of, 1, r)
    assert state.server_steps == len(found)
    return found


@pytest.mark.parametrize("cls", SPLIT)
def test_the_server_steps_once_an_upload_in_the_order_asked_for(monkeypatch: Patch, cls: Any) -> None:
    """FSL-SAGE in a round that aligns, too. Mutations: client after client in place of interleave, or the other way."""
    for r in (0, 1):
        assert met(monkeypatch, method(cls, training(named())), r) == interleaved(r)
        assert met(monkeypatch, method(cls, training(named(), order="client_major")), r) == sorted(interleaved(r))


@pytest.mark.parametrize("cls", LOCAL)
@pytest.mark.parametrize("k", [2, 3, 100])
def test_every_kth_step_goes_up_and_steps_are_the_sum_of_the_ceilings(monkeypatch: Patch, cls: Any, k: int) -> None:
    """k above h: one upload a round. Mutations: ceil for floor; the last one of a block for the first."""
    found = met(monkeypatch, method(cls, training(named(), k=k)))
    assert sorted(found) == [(i, q) for i, h in enumerate(STEPS_OF) for q in range(h) if q % k == 0]
    assert len(found) == sum(math.ceil(h / k) for h in STEPS_OF)


def test_methods_refuse_flags_that_mean_nothing_to_them() -> None:
    """Those that the command line is not asked for. Mutation: a batch of one sample refused where none is reached."""
    with pytest.raises(UserError, match="--batch 5: the last batch of client 0 has one sample"):
        method(HERON, training(setting(deep), batch=5))
    method(HERON, training(setting(deep), batch=5, h=1))
    method(HERON, training(setting(deep), batch=5, batchnorm="running"))
    method(FSLSAGE, training(setting(resnet), batch=5), buffer=1)
    for cls in (HERON, CSEFSL):
        with pytest.raises(UserError, match="--freeze auxiliary: no part of the client's model is left to train"):
            method(cls, training(setting(headless), freeze="auxiliary"))


def headless() -> Parts:
    """A client's part without parameters."""
    return nn.Flatten(), nn.Linear(SIDE * SIDE, C), nn.Linear(SIDE * SIDE, C)


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("cls", [HERON, CSEFSL])
def test_participants_are_averaged_by_their_weights_and_the_others_do_nothing(cls: Any, weights: str) -> None:
    """Mutations: the weight of all clients in the denominator; uniform for size; a client that is not asked moves."""
    own = setting(resnet)
    plan = training(own, beta=0.6, weights=weights)
    r = next(r for r in range(9) if plan.participants(r) == [0, 2])
    of = method(cls, plan)
    clients = LocalClients(list(own.data), method=of)
    found = run(of, 1, r, clients)
    assert clients.ledger.row(np.zeros(1, costs_type(0))).messages.sum(axis=0)[1] == 0
    share = {"size": 6 / 21, "uniform": 0.5}[weights]
    start, alone = of.start(), LocalClients(list(own.data), method=of)
    parts = {}
    for i in (0, 2):
        own_model = Reduction([i])
        list(alone.ask(of.train, Model(start.theta, start.buffers, r), to=[i], into=own_model))
        parts[i] = own_model.mean()
    for name in ("theta", "buffers"):
        close(getattr(found, name), share * getattr(parts[0], name) + (1 - share) * getattr(parts[2], name))
    memories = dict(clients.ask(STEPS["<recall>"], Acknowledged(), counted=False))
    assert [sorted(memories[i].entries) for i in range(3)] == [["moments"], [], ["moments"]]


FROZEN = [
    *itertools.product((HERON, CSEFSL), ("client", "auxiliary")),
    *itertools.product((SFLV1, SFLV2), ("none", "client")),
]


@pytest.mark.parametrize(("cls", "freeze"), FROZEN)
def test_what_is_frozen_keeps_its_bits(cls: Any, freeze: str) -> None:
    """In float32, by Adam with a decay; as SplitFed's head does always. Mutations: a moment of what is frozen; d of the
    whole in a direction."""
    of = method(cls, training(setting(dtype="float32"), Optimiser(weight_decay=0.1), freeze=freeze))
    n, start, found = of.setting.problem.n_client, of.start(), run(of, 2)
    parts, still = (
        {"client": slice(0, n), "auxiliary": slice(n, None)},
        {freeze, *["auxiliary"] * (cls in (SFLV1, SFLV2))},
    )
    for name, part in parts.items():
        assert torch.equal(found.theta[part], start.theta[part]) is (name in still)
    assert apart(found.theta_s, start.theta_s)
    moved = [len(start.theta[parts[name]]) for name in parts.keys() - still]
    assert cls in (SFLV1, SFLV2) or [len(start.theta[part]) for part in of.rule.parts] == moved


@pytest.mark.parametrize("cls", SPLIT)
@RULES
def test_the_mean_of_one_clients_moments_is_its_own(rule: Optimiser, cls: Any) -> None:
    """To rounding, which FSL-SAGE's alignment may enlarge. Mutation: moments lost, or of the part that stays."""
    kept, averaged = (
        run(method(cls, training(setting(clients=(1,)), rule, state=state)), 3) for state in ("keep", "average")
    )
    for name, value in vectors(kept).items():
        close(value, vectors(averaged)[name], 1e-9)
    assert apart(kept.theta, run(method(cls, training(setting(clients=(1,)), rule, state="reset")), 3).theta)
    own = method(cls, training(setting(clients=(1,)), rule))
    whole = cls in (HERON, CSEFSL)
    size = own.setting.problem.client_side.n if whole else own.setting.problem.n_client
    assert averaged.moments["first"].shape == (size,)


@pytest.mark.parametrize("cls", SPLIT)
def test_running_statistics_may_be_constants(cls: Any) -> None:
    """Not a bit of them moves, at clients and server. Mutations: one of the two sides; modules left in that mode."""
    own = setting()
    of = method(cls, training(own, batchnorm="running"))
    start, found = of.start(), run(of, 2)
    assert same(found, replace(start, theta=found.theta, theta_s=found.theta_s))
    assert apart(found.theta, start.theta) and apart(found.theta_s, start.theta_s)
    assert apart(found.theta_s, run(method(cls, training(own)), 2).theta_s)
    parts = own.problem.client, own.problem.auxiliary, own.problem.server
    assert all(m.training for part in parts for m in part.modules())


def test_images_are_cropped_from_their_padding_and_mirrored() -> None:
    """Every one is one of the 162 views. Mutations: upside down; one crop for all; a wrap-around in place of zeros."""
    x = torch.rand(40, 2, SIDE, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    found = crop_flip(x, STREAMS(Purpose.AUGMENT))
    assert found.shape == x.shape and found.is_contiguous(memory_format=torch.channels_last)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    places = set()
    for image, large in zip(found, padded, strict=True):
        views = {
            (up, left, flip): torch.equal(image, view.flip(2) if flip else view)
            for up in range(9)
            for left in range(9)
            for flip in (False, True)
            for view in [large[:, up : up + SIDE, left : left + 5]]
        }
        places |= {place for place, equal in views.items() if equal}
        assert any(views.values())
    assert {flip for *_, flip in places} == {False, True}
    assert {up for up, *_ in places} == set(range(9)) == {left for _, left, _ in places}


def test_augmentation_is_a_function_of_round_client_and_step() -> None:
    own = setting()
    own = replace(own, data=(own.data[0],) * 3)
    of, positions = method(HERON, training(own, augment="crop-flip")), np.arange(4)

    def inputs(i: int, r: int, q: int) -> Tensor:
        return local_of(of, i, r).inputs(positions, q)[0]

    first = inputs(0, 0, 0)
    assert torch.equal(inputs(0, 0, 0), first)
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not torch.equal(inputs(*other), first)
    plain = local_of(method(HERON, training(own))).inputs(positions, 0)[0]
    assert torch.equal(plain, own.problem.samples(own.data[0], positions)[0])
