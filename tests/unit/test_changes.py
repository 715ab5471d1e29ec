"""What a reply changes, as its fields declare it: read, applied, and found by a step's annotations."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from zofl_mpi import Client, UserError, change
from zofl_mpi.clients import changes


@dataclass(frozen=True)
class Message:
    x: Any
    r: int = 0
    span: float = 4.0


@dataclass(frozen=True)
class Mixed:
    """A model, a scalar in units of the message, and the difference of two values."""

    y: Any = change("y is not finite", of="x")
    slope: float = change("slope is not finite", unit="span", scalar=True)
    plus: float = change("plus is not finite", of="minus")
    minus: float = 0.0
    loss: float = 0.5


@dataclass(frozen=True)
class Values:
    plus: float = change("plus is not finite", of="minus")
    minus: float = 0.0


@dataclass(frozen=True)
class Elsewhere:
    y: Any = change("y is not finite", of="x")
    z: Any = change("z is not finite", unit="gone")


class Steps:
    def mixed(self, client: Client, message: Message) -> Mixed:
        raise NotImplementedError

    def elsewhere(self, client: Client, message: Message) -> Elsewhere:
        raise NotImplementedError


MESSAGE = Message(np.array([1.0, 2.0]))
REPLY = Mixed(np.array([1.5, 1.0]), 8.0, 3.0, 1.0)


def test_changes_are_read_and_applied() -> None:
    """Mutations: the unit times; no start; the reference added again; another order of the fields."""
    assert changes.changed(REPLY, MESSAGE).tolist() == [0.5, -1.0, 2.0, 2.0]
    found = changes.applied(REPLY, MESSAGE, np.array([0.25, 0.5, -1.0, 7.0]))
    assert found.y.tolist() == [1.25, 2.5] and (found.slope, found.plus, found.minus, found.loss) == (
        -4.0,
        7.0,
        0.0,
        0.5,
    )
    alone = changes.alone(REPLY)
    assert (alone.plus, alone.minus) == (2.0, 0.0) and alone.y is REPLY.y and changes.others(Mixed) == ("loss",)
    assert changes.changed(alone, MESSAGE).tolist() == changes.changed(REPLY, MESSAGE).tolist()
    starts = changes.bases(alone, MESSAGE)
    assert starts["y"].tolist() == [1.0, 2.0] and (starts["slope"], starts["plus"]) == (0.0, 0.0)


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.float32])
def test_a_reply_keeps_its_types(kind: Any) -> None:
    """Mutation: float64 from a float32 reply, which no state of float32 takes: a method then differs under --clip."""
    x = np.ones(2, kind) if kind in (np.float32, np.float64) else torch.ones(2, dtype=kind)
    found = changes.applied(Mixed(x, 0.0, 0.0), Message(x), np.array([0.25, 0.5, -1.0, 7.0]))
    assert type(found.y) is type(x) and found.y.dtype == x.dtype and found.y.tolist() == [1.25, 1.5]
    assert isinstance(found.slope, float) and isinstance(found.plus, float)


def test_replies_along_directions_are_differences_alone() -> None:
    """Mutation: one such field in place of all."""
    assert changes.along(Values) and not changes.along(Mixed)


def test_a_step_is_known_by_its_annotations_and_a_whole_message() -> None:
    """Mutations: one field that fits in place of all; a message without a round."""
    assert changes.steps(Steps) == {"mixed": Mixed} == {"mixed": changes.reply_of(Steps().mixed)}
    assert changes.reply_of(Steps().elsewhere) is None
    with pytest.raises(UserError, match=r"Mixed\.slope: clients.mean needs nobody="):
        changes.example(Mixed, MESSAGE)


@dataclass(frozen=True)
class Roundless:
    x: Any


class Bare:
    def step(self, client, message) -> Mixed:  # type: ignore[no-untyped-def]
        raise NotImplementedError


class Unresolved:
    def step(self, client: Client, message: "Gone") -> Mixed:  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError


class WithoutRound:
    def step(self, client: Client, message: Roundless) -> Mixed:
        raise NotImplementedError


class Silent:
    def step(self, client: Client, message: Message) -> Message:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Bare, "Bare.step needs a type annotation of its message, a dataclass"),
        (Unresolved, "the annotations of Unresolved.step cannot be read (name 'Gone' is not defined)"),
        (WithoutRound, "WithoutRound.step: neither message nor reply has a field r"),
        (Silent, "no step of Silent says what its reply changes (zofl_mpi.change)"),
    ],
)
def test_a_method_learns_what_its_step_lacks(method: Any, words: str) -> None:
    """Mutation: a step that says what its reply changes is told that it does not."""
    assert changes.obstacle(method) == words and changes.steps(method) == {}
    assert changes.reply_of(method().step) is None
