"""Every number that is booked is read: no method's message has a field that is only there to be counted."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.tools.revisions import table
from zofl_mpi.engine import messages
from zofl_mpi.engine.fields import without_warnings
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.run import flags, plan
from zofl_mpi.run.cli import build_setting
from zofl_mpi.run.family import family_of
from zofl_mpi.run.local import LocalClients
from zofl_mpi.run.loop import finite_round

ROUNDS = 3
COMMANDS = {
    name: (f"zofl_mpi.{family}", words)
    for family, name, _, words in table()
    if not {"images.npz", "own/texts.jsonl"} & set(words) and "--kernel" not in words
}


class Field(NamedTuple):
    """A field of the messages of a step, down or up."""

    step: str
    way: str
    path: tuple[str, ...]


def method_of(module: str, words: list[str]) -> Any:
    family = family_of(module)
    own = plan.understand(family, [*words, "--device", "cpu", "--dtype", "float64", "--rounds", str(ROUNDS)])
    setting = build_setting(SingleProcess(), family, own, "cpu")
    return flags.made(plan.method_of(family, own.values["method"]), own.values, setting=setting)


class Spoiled(LocalClients):  # type: ignore[misc]
    """Clients whose messages are noted, field by field, and that spoil one of these fields."""

    def __init__(self, method: Any, target: Field | None = None) -> None:
        super().__init__(list(method.setting.data), method=method)
        self.target, self.seen = target, set[Field]()

    def _ask(self, step: Any, each: Any, counted: bool, booked: Any = None) -> Any:
        new = {id(message): self._passed(step.__name__, "down", message, counted) for message in each.values()}
        return super()._ask(step, {i: new[id(message)] for i, message in each.items()}, counted, booked)

    def _replies(self, step: Any, name: str, inbox: Mapping[int, Any], counted: bool) -> Iterator[Any]:
        for i, item in super()._replies(step, name, inbox, counted):
            yield i, self._passed(name, "up", item, counted)

    def _passed(self, step: str, way: str, message: Any, counted: bool) -> Any:
        apart, spoiled = messages._apart(type(message)), {}
        for path, value in messages.leaves(message) if counted else ():
            if path[0] in apart or isinstance(value, str | bool | type(None)) or not np.size(value):
                continue
            field = Field(step, way, tuple(path))
            self.seen.add(field)
            if field == self.target:
                array = np.asarray(value)
                spoiled[field.path] = array + 1 if array.dtype.kind in "iu" else np.full_like(array, np.nan)
        return messages.replace_arrays(message, spoiled) if spoiled else message


def last_state(method: Any, clients: Spoiled) -> dict[str, Any] | str:
    """The fields of the state after the rounds, or the error that ended them."""
    try:
        with without_warnings():
            state = method.start()
            for r in range(ROUNDS):
                state = finite_round(method, state, r, clients)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return messages.named(messages.leaves(state))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_number_that_is_booked_changes_the_result(name: str) -> None:
    """Each field of each message, in turn NaN, or 1 more: the run ends, or its last state is another. Mutations: scalars
    beside the model that the steps start from; a loss, a count or a vector that the other side never reads."""
    method = method_of(*COMMANDS[name])
    plain = Spoiled(method)
    expected = last_state(method, plain)
    assert isinstance(expected, dict), expected
    unread = []
    for field in sorted(plain.seen):
        found = last_state(method, Spoiled(method, field))
        same = isinstance(found, dict) and all(np.array_equal(found[k], v, equal_nan=True) for k, v in expected.items())
        if same:
            unread.append(field)
    assert not unread
