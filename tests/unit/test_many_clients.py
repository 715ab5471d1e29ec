"""A round costs what its participants cost, not what all clients do; losses of a finite model that are no numbers."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from zofl_mpi import Client, UserError
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.rounds.base import ClientWeights, scaled_to_one
from zofl_mpi.rounds.report import all_scores
from zofl_mpi.run.loop.client_memory import Acknowledged
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.questions import forget_scratch

SIZES = (3, 7, 1, 12, 6)


class Counted:
    """Samples that count how often they are counted."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, 0

    def __len__(self) -> int:
        self.asked += 1
        return self.size


def setting(**given: Any) -> Setting:
    return Setting(problem=None, streams=Streams(1), data=tuple(map(Counted, SIZES)), **given)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_weights_are_size_over_total_to_the_bit(weights: str) -> None:
    """Mutations: a product with 1 / total; sizes for equal weights; a client that there is not."""
    sizes = SIZES if weights == "size" else (1,) * len(SIZES)
    found = ClientWeights(setting(), weights)
    assert dict(found) == {i: size / sum(sizes) for i, size in enumerate(sizes)}
    assert scaled_to_one(found, range(len(SIZES))) is found
    total = math.fsum(found[i] for i in (1, 3))
    assert scaled_to_one(found, (1, 3)) == {i: found[i] / total for i in (1, 3)}
    for i in (-1, len(SIZES)):
        with pytest.raises(KeyError):
            found[i]


def test_all_clients_are_counted_once_a_run_and_participants_in_their_rounds() -> None:
    """Mutations: the total of each round; the weights of all clients."""
    of = setting()
    for _ in range(10):
        found = ClientWeights(of, "size")
        assert found[1] + found[3] == 7 / 29 + 12 / 29
    assert [data.asked for data in of.data] == [1, 11, 1, 11, 1]


class Untouched(dict[str, Any]):
    """A scratch that nobody may empty."""

    def clear(self) -> None:
        raise AssertionError("the scratch of a client that was not asked")


def test_scratch_is_emptied_where_clients_were_asked_and_looked_at_nowhere_else() -> None:
    """Mutations: all clients; none; those of earlier rounds again."""
    clients, asked = {i: Client(i, None) for i in range(3)}, {0, 2}
    clients[0].scratch["graph"] = clients[2].scratch["graph"] = object()
    clients[1].scratch = Untouched()
    forget_scratch(clients, asked)
    assert not clients[0].scratch and not clients[2].scratch and not asked


def test_the_clients_of_every_question_of_a_round_lose_their_scratch() -> None:
    """Mutation: those of the last question alone."""
    kept = list[int]()

    def leave(client: Client, message: Acknowledged) -> Acknowledged:
        kept.append(len(client.scratch))
        client.scratch["graph"] = object()
        return message

    clients = LocalClients([None] * 4)
    for _ in range(2):
        for to in ([0], [2, 3]):
            list(clients.ask(leave, Acknowledged(), to=to))
        clients.account()
    assert kept == [0] * 6


@pytest.mark.parametrize("held_out", ["test", "validation"])
def test_a_loss_that_a_problem_computes_as_nan_is_refused_and_one_that_it_lacks_is_not(held_out: str) -> None:
    """Mutations: test samples alone; a problem without a score; an infinite loss."""
    samples = {"test": [1], "validation": [2]}

    def scores(found: dict[str, float]) -> dict[str, float]:
        score = lambda x, data: found if data == samples[held_out] else {"loss": 1.0}  # noqa: E731
        return all_scores(SimpleNamespace(problem=SimpleNamespace(score=score, metric_names=()), **samples), None)  # type: ignore[arg-type]

    with pytest.raises(UserError, match=f"the loss of the model on the {held_out} samples is nan: the run has div"):
        scores({"loss": math.nan})
    assert math.isnan(scores({})[f"{held_out}_loss"]) and scores({"loss": math.inf})[f"{held_out}_loss"] == math.inf
