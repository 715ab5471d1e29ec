"""Clients that adapt a network, each to its own sensor: formulas, own parts by hand, parameters that train."""

import itertools
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import (
    ESTIMATING,
    LABELS,
    PIXELS,
    RULES,
    SIDE,
    SPLIT,
    STEPS_OF,
    C,
    Make,
    Parts,
    apart,
    batches,
    close,
    flat,
    local_of,
    method,
    mlp,
    resnet,
    run,
    same,
    seeded,
    setting,
    torchs,
    training,
)
from zofl_mpi.engine.clients import Client
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError
from zofl_mpi.methods.cse_fsl import CSEFSL
from zofl_mpi.methods.decomfl import DeComFL
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.methods.heron import HERON
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems.sensors import SENSORS
from zofl_mpi.problems.split import SplitNetwork
from zofl_mpi.rounds.split.messages import SplitReport
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.settings.adaptation import Adaptation

SEEN = ("invert", "gain", "blur")
OWN_PARTS = [cls for cls in SPLIT if cls is not FSLSAGE]  # which aligns the heads that it sends, and refuses them
OWN: dict[str, Any] = {"client_parts": "own", "lr_server": 0.0}


def fleet(make: Make = mlp, trainable: Any = "all", sensors: tuple[str, ...] = SEEN) -> Setting:
    """The clients of SIZES, each with its sensor; of the client's part so much trains."""
    parts = seeded(make)
    Adaptation(trainable=trainable).choose(parts[0])
    return replace(setting(make), problem=SplitNetwork(*parts, (1, SIDE, SIDE), C, sensors=sensors, dtype="float64"))


# --- sensors


def test_sensors_are_their_formulas() -> None:
    """Blur: by hand, in the corner and inside. Mutations: padding that counts; tint over rows; gain that is not cut."""
    x = torch.tensor([[0.0, 0.2], [0.5, 1.0]], dtype=torch.float64).repeat(1, 3, 1, 1)
    expected = {
        "clean": [[0.0, 0.2], [0.5, 1.0]],
        "invert": [[1.0, 0.8], [0.5, 0.0]],
        "gain": [[0.0, 0.6], [1.0, 1.0]],
        "contrast": [[0.375, 0.425], [0.5, 0.625]],
        "blur": [[0.425, 0.425], [0.425, 0.425]],
    }
    for name, image in expected.items():
        close(SENSORS[name](x), torch.tensor(image, dtype=torch.float64).repeat(1, 3, 1, 1))
    for channel, factor in enumerate((1, 0.5, 0.25)):
        close(SENSORS["tint"](x)[:, channel], factor * x[:, channel])
    wide = torch.from_numpy(PIXELS[:2].reshape(2, 1, SIDE, SIDE))
    blurred = SENSORS["blur"](wide)
    for row, column in itertools.product(range(SIDE), repeat=2):
        near = wide[:, :, max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
        close(blurred[:, :, row, column], near.mean(dim=(2, 3)))


def test_the_flag_the_formulas_and_the_columns_have_the_same_names() -> None:
    (names, _) = get_args(get_type_hints(Adaptation)["shift"])
    assert set(get_args(names)) == SENSORS.keys()
    assert {f"test_accuracy_{name}" for name in SENSORS} < {f.name for f in fields(SplitReport)}


def test_a_client_trains_on_what_its_sensor_sees() -> None:
    """Client i has sensor i modulo their number. Mutations: the sensor of its rank; the images as they are."""
    own = fleet(sensors=("invert", "gain"))
    plan = training(own)
    for i, name in enumerate(("invert", "gain", "invert")):
        for (x, _), positions in zip(batches(plan, i, 0), plan.batches(i, 0), strict=True):
            assert torch.equal(local_of(method(HERON, plan), i).inputs(positions, 0)[0], SENSORS[name](x))


# --- parts of the clients' own


def alone(plan: Training, i: int, rounds: int, local: bool) -> nn.Module:
    """Client i's network after plain training on its own samples, whose server part and head stay as they are."""
    client, head, server = (part.double() for part in seeded(mlp))
    rest, optimiser = head if local else server, torchs(client.parameters(), plan.optimiser, plan.lr_client)
    for r in range(rounds):
        for x, labels in batches(plan, i, r):
            optimiser.zero_grad()
            cross_entropy(rest(client(SENSORS[SEEN[i]](x))), labels).backward()
            optimiser.step()
    return nn.Sequential(client, server)


@pytest.mark.parametrize("cls", [cls for cls in OWN_PARTS if cls not in ESTIMATING])
@RULES
def test_own_parts_train_apart_and_each_is_tested_on_what_it_sees(cls: Any, rule: Optimiser) -> None:
    """The networks, accuracies and losses by hand; nothing travels down. Mutations: parts that are averaged, or begin
    anew each round; another client's part or sensor in an evaluation; moments that are lost."""
    own = fleet()
    plan = training(own, rule, freeze="auxiliary", **OWN)
    of = method(cls, plan)
    clients = LocalClients(list(own.data), method=of)
    first, state = of.start(), run(of, 3, clients=clients)
    assert same(first, state)
    nets: list[Any] = [alone(plan, i, 3, cls is CSEFSL) for i in range(3)]
    for i, net in enumerate(nets):
        close(clients._clients[i].memory["theta"][: own.problem.n_client], flat(net[0]))
    report = of.evaluate(state, 3, clients)
    hits, losses = [], 0.0
    for i, net in enumerate(nets):
        rows = own.test.rows[i::3]
        with torch.no_grad():
            logits = net(SENSORS[SEEN[i]](torch.from_numpy(PIXELS[rows]).view(-1, 1, SIDE, SIDE)))
        labels = torch.from_numpy(LABELS[rows])
        hits.append((logits.argmax(dim=1) == labels).double())
        losses += float(cross_entropy(logits, labels, reduction="sum"))
        assert getattr(report, f"test_accuracy_{SEEN[i]}") == pytest.approx(float(hits[-1].mean()))
    assert report.test_accuracy == pytest.approx(float(torch.cat(hits).mean()))
    assert report.test_loss == pytest.approx(losses / 29)
    assert report.test_accuracy_tint is None


@pytest.mark.parametrize("cls", OWN_PARTS)
def test_own_parts_never_travel_and_the_plan_says_so(cls: Any) -> None:
    """With statistics, too. Mutations: a model that goes down or up; a plan that counts it."""
    own = fleet(resnet)
    of = method(cls, training(own, **OWN))
    clients = LocalClients(list(own.data), method=of)
    run(of, 1, clients=clients)
    row = clients.account()[0]
    bytes_of = [of.traffic.of(0, i) for i in range(3)]
    for name, way in (("bytes_down", 0), ("bytes_up", 1)):
        planned = [sum(ways[way] for kind, ways in each.items() if kind != "labels") for each in bytes_of]
        assert getattr(row, name).sum(axis=0).tolist() == planned
    assert all(each["the clients' parts"] == each["BatchNorm's statistics"] == (0, 0) for each in bytes_of)


def test_a_client_that_rests_keeps_its_part_and_one_that_comes_late_begins_as_all_did() -> None:
    """Each client after its rounds is what those rounds alone make of it. Mutations: the last participant's part."""
    own = fleet()
    plan = training(own, beta=0.4, **OWN)
    of = method(CSEFSL, plan)
    clients = LocalClients(list(own.data), method=of)
    run(of, 6, clients=clients)
    taken = {i: [r for r in range(6) if plan.participants(r) == [i]] for i in range(3)}
    assert all(taken.values()) and min(map(len, taken.values())) < max(map(len, taken.values()))
    for i, rounds in taken.items():
        client = Client(i, own.data[i])
        for r in rounds:
            for _ in of.train(client, of.begin_round(of.start(), r, head=True)):
                pass
        assert torch.equal(clients._clients[i].memory["theta"], client.memory["theta"])


def test_directions_of_own_parts_are_each_parts_own() -> None:
    own = fleet()
    counts = [method(HERON, training(own, client_parts=parts)).directions(2) for parts in ("average", "own")]
    assert counts[0].drawn == counts[1].drawn == 2 * sum(STEPS_OF)
    assert counts[1].dimension == 3 * counts[0].dimension


def test_methods_that_cannot_have_own_parts_refuse_them() -> None:
    own = training(fleet(), client_parts="own")
    for cls, flags in ((FSLSAGE, {}), (DeComFL, {}), (HERON, {"uplink": "seeds"})):
        plan = replace(own, h=2) if cls is DeComFL else own
        with pytest.raises(UserError, match="client-parts own"):
            method(cls, plan, **flags)
    with pytest.raises(UserError, match="--client-parts own: --state average"):
        training(fleet(), client_parts="own", state="average")


# --- parameters that train


def normalised(norm: Any = nn.GroupNorm) -> Parts:
    """Two stages, 36 + 4 + 36 + 4 parameters at the client with channels of 4 and 1."""
    scale = (lambda c: nn.GroupNorm(1, c)) if norm is nn.GroupNorm else norm
    client = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1, bias=False), scale(4), nn.Tanh()),
        nn.Sequential(nn.Conv2d(4, 2, 3, 2, 1, bias=False), scale(2), nn.Tanh()),
    )
    return client, nn.Sequential(nn.Flatten(), nn.Linear(8, C)), nn.Sequential(nn.Flatten(), nn.Linear(8, C))


@pytest.mark.parametrize("cls", SPLIT)
@pytest.mark.parametrize(("trainable", "names"), [("norm", ["0.1", "1.1"]), ("first", ["0.0", "0.1"])])
@pytest.mark.parametrize("norm", [nn.GroupNorm, nn.BatchNorm2d])
def test_what_does_not_train_stays_to_the_bit(cls: Any, trainable: str, names: list[str], norm: Any) -> None:
    """Mutations: a frozen parameter in theta, or one that a step moves; scales without their shifts."""

    def make() -> Parts:
        return normalised(norm)

    own = fleet(make, trainable)
    client, reference = own.problem.client, seeded(make)[0].double()
    chosen = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")} & {
        n for n, _ in client.named_parameters()
    }
    assert {name for name, p in client.named_parameters() if p.requires_grad} == chosen
    assert own.problem.n_client == sum(p.numel() for name, p in reference.named_parameters() if name in chosen)
    state = run(method(cls, training(own)), 2)
    for name, p in client.named_parameters():
        assert name in chosen or torch.equal(p, reference.get_parameter(name))
    assert apart(state.theta[: own.problem.n_client], own.problem.client_side.initial()[0][: own.problem.n_client])


@pytest.mark.parametrize("trainable", ["norm", "first"])
def test_the_gradient_is_that_of_the_whole_client_in_what_trains(trainable: str) -> None:
    """Mutation: the parameters in another order."""
    some, all_of = fleet(normalised, trainable), fleet(normalised)
    x, labels = next(batches(training(some), 0, 0))
    gradients = []
    for own in (some, all_of):
        theta, buffers = own.problem.client_side.initial()
        with own.problem.client_side.bound_to(theta, buffers):
            loss = own.problem.local_loss(own.problem.smash(x), labels)
            gradients.append(own.problem.client_side.gradient(loss)[: own.problem.n_client])
    trains = [p.requires_grad for p in some.problem.client.parameters()]
    sizes = [shape.numel() for _, shape in all_of.problem.client_side.places().values()][: len(trains)]
    close(gradients[0], torch.cat([g for g, own in zip(gradients[1].split(sizes), trains, strict=True) if own]))


def test_a_client_without_normalisations_cannot_train_them() -> None:
    with pytest.raises(UserError, match="--trainable norm: the client's part has no such parameters; take all"):
        fleet(mlp, "norm")
    assert fleet(mlp, "first").problem.n_client == fleet(mlp).problem.n_client  # its only layer, behind one without any
