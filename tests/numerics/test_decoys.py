"""Every number that is booked is read: no method's message has a field that is only there to be counted."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.tools.revisions import table
from zofl_mpi.engine import messages
from zofl_mpi.engine.between import composed
from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.reduction import Reply
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.run.command import flags, plan
from zofl_mpi.run.command.build import build_setting
from zofl_mpi.run.command.family import family_of
from zofl_mpi.run.loop.local import LocalClients
from zofl_mpi.run.loop.rounds import finite_round

ROUNDS = 3
COMMANDS = {
    name: (f"zofl_mpi.{family}", words)
    for family, name, _, words in table()
    if not {"images.npz", "own/texts.jsonl", "features"} & set(words) and "--kernel" not in words
}


class Field(NamedTuple):
    """A field of the messages of a step, down or up."""

    step: str
    way: str
    path: tuple[str, ...]


TURNS = {Field(step, "down", ("t",)) for step in ("inner", "product", "hypergradient")}
"""Numbers of mini-batches of FedNest's lower level."""
ELSEWHERE = {"fedrzo.fednest": {Field("hypergradient", "down", ("t",))}, "fedrzo.fednest-saddle": TURNS}
"""Fields that this problem has no use for, and another has: its second derivatives depend on no mini-batch."""


def method_of(module: str, words: list[str]) -> Any:
    family = family_of(module)
    own = plan.parse_plan(family, [*words, "--device", "cpu", "--dtype", "float64", "--rounds", str(ROUNDS)])
    setting = build_setting(SingleProcess(), family, own, "cpu")
    return flags.instantiate(plan.method_of(family, own.values["method"]), own.values, setting=setting)


class Spoiled(LocalClients):  # type: ignore[misc]
    """Clients whose messages are noted, field by field, and that spoil one of these fields."""

    def __init__(self, method: Any, target: Field | None = None) -> None:
        super().__init__(list(method.setting.data), method=method)
        self.target, self.seen = target, set[Field]()

    def _ask(self, step: Any, each: Any, counted: bool, booked: Any = None, into: Any = None) -> Any:
        if into is not None:
            own = vars(into.adder).setdefault("take", partial(self._taken, into.adder.take, counted))
            own.keywords["name"] = step.__name__
        new = {id(message): self._passed(step.__name__, "down", message, counted) for message in each.values()}
        return super()._ask(step, {i: new[id(message)] for i, message in each.items()}, counted, booked, into)

    def _replies(self, step: Any, name: str, inbox: dict[int, Any], counted: bool, into: Any) -> Iterator[Any]:
        for i, item in super()._replies(step, name, inbox, counted, into):
            yield i, self._passed(name, "up", item, counted)

    def _taken(self, take: Any, counted: bool, i: int, reply: Any, name: str, size: Any) -> Any:
        """Passes the reduced part of a reply, too."""
        if isinstance(reply, Reply):
            reply = Reply(reply.sent, self._passed(name, "up", reply.reduced, counted))
        return take(i, reply, size)

    def _passed(self, step: str, way: str, message: Any, counted: bool) -> Any:
        apart, spoiled = messages.marked(type(message), "apart"), {}
        for path, value in messages.leaves(message) if counted else ():
            array = np.asarray(value)
            if path[0] in apart or isinstance(value, str | bool | type(None)) or not array.size:
                continue
            field = Field(step, way, tuple(path))
            self.seen.add(field)
            if field == self.target:
                spoiled[field.path] = array + 1 if array.dtype.kind in "iu" else np.full_like(array, np.nan)
        return messages.replace_arrays(message, spoiled) if spoiled else message


def states(method: Any, clients: Spoiled) -> Iterator[dict[str, Any]]:
    """The fields of the state, round by round."""
    with without_warnings():
        state = method.start()
        for r in range(ROUNDS):
            state = finite_round(method, state, r, composed(clients, method))
            yield messages.named(messages.leaves(state))


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(one[k], value, equal_nan=not isinstance(value, str)) for k, value in other.items())


def unread(method: Any, field: Field, expected: list[dict[str, Any]]) -> bool:
    """Whether no round ends otherwise where this field is spoiled, and none fails."""
    try:
        return all(map(equal, states(method, Spoiled(method, field)), expected))  # up to the first that does
    except Exception:
        return False


@pytest.mark.parametrize("name", COMMANDS)
def test_a_number_that_is_booked_changes_the_result(name: str) -> None:
    """Each field of each message, in turn NaN, or 1 more: the run ends, or a round's state is another. Mutations:
    scalars beside the model that the steps start from; a loss, a count or a vector that the other side never reads."""
    method = method_of(*COMMANDS[name])
    plain = Spoiled(method)
    expected = list(states(method, plain))
    found = {field for field in plain.seen if unread(method, field, expected)}
    assert not found - ELSEWHERE.get(name, set())
