"""The classes that a checkpoint of a method may hold."""

import dataclasses
import json
import sys
from typing import Any, get_type_hints

import numpy as np
import pytest

from zofl_mpi import fedrzo, heron_sfl, zo_hfl
from zofl_mpi.engine import messages, registry
from zofl_mpi.errors import UserError
from zofl_mpi.run import client_memory

METHODS = [cls for family in (zo_hfl, fedrzo, heron_sfl) for cls in family.METHODS.values()]


class Outer:
    @dataclasses.dataclass(frozen=True)
    class State:
        x: int


@dataclasses.dataclass(frozen=True)
class Own:
    setting: Any = None

    def start(self) -> Outer.State:
        return Outer.State(1)


def changed(message: Any, **entries: Any) -> messages.Bytes:
    """The message as bytes, with other entries in its header."""
    block = messages.pack(message)
    length = int(block[:8].view(np.int64)[0])
    header = json.loads(block[8 : 8 + length].tobytes()) | entries
    body = json.dumps(header).encode()
    padding = bytes(-(8 + len(body)) % messages.BOUNDARY)
    arrays = block[messages.padded(8 + length) :].tobytes()
    return np.frombuffer(np.int64(len(body)).tobytes() + body + padding + arrays, np.uint8)


def unset(cls: type[Any]) -> Any:
    """An instance whose parts are there and whose other fields are None."""
    made = object.__new__(cls)
    for name, kind in get_type_hints(cls).items():
        if name in {f.name for f in dataclasses.fields(cls)}:
            object.__setattr__(made, name, unset(kind) if dataclasses.is_dataclass(kind) else None)
    return made


def test_the_state_of_every_method_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations: a method's own module is left out, or what it imports."""
    monkeypatch.setattr(registry, "_returned", lambda cls: ())
    for method in METHODS:
        state = get_type_hints(method.round)["return"]
        assert registry.classes_of(unset(method))[state.__module__, state.__qualname__] is state


def test_a_class_in_a_class_is_known_and_a_step_of_the_engine_is_not() -> None:
    known, Memory = registry.classes_of(Own()), client_memory.Memory
    assert known[__name__, "Outer.State"] is Outer.State
    assert ("subprocess", "Popen") not in known and (Memory.__module__, "Memory") not in known
    assert registry.with_old_names([Memory])["zofl_mpi.run.desk", "Memory"] is Memory


@pytest.mark.parametrize(
    "header",
    [
        {"module": "subprocess", "name": "Popen", "values": {"args": ["touch", "/nowhere"]}, "arrays": []},
        {"module": "os", "name": "system", "values": {"command": "true"}, "arrays": []},
        {"module": "this", "name": "s", "values": {}, "arrays": []},
        {"module": "zofl_mpi.engine.clients", "name": "Client", "values": {"i": 0, "data": None}, "arrays": []},
    ],
    ids=["Popen", "system", "import", "engine"],
)
def test_a_file_builds_no_other_class_and_imports_nothing(header: dict[str, Any]) -> None:
    """Mutations: the class is imported by its name; whatever has been imported is allowed."""
    sys.modules.pop("this", None)
    with pytest.raises(UserError, match=r"it holds a .*, which this method does not keep"):
        messages.read(changed(Outer.State(1), **header), registry.classes_of(Own()))
    assert "this" not in sys.modules
    with pytest.raises(TypeError, match="no dataclass"):
        messages.unpack(changed(Outer.State(1), module="subprocess", name="Popen", values={"args": "true"}))


@pytest.mark.parametrize(
    "header",
    [
        {"values": {"y": 1}},
        {"values": []},
        {"arrays": [[["x"], "", "O", [1]]]},
        {"arrays": [[["x"], "", "<f8", [1 << 60]]]},
        {"arrays": [[["x"], "", "<f8", [-1]]]},
        {"arrays": [[["x", "y"], "", "<f8", [0]]]},
        {"arrays": [[[], "", "<f8", [0]]]},
        {"arrays": 3},
    ],
    ids=["field", "list", "objects", "8 EiB", "negative", "path", "no path", "no list"],
)
def test_a_changed_header_is_one_sentence(header: dict[str, Any]) -> None:
    blocks = [changed(Outer.State(1), **header)]
    blocks += [np.frombuffer(b, np.uint8) for b in (b"", b"\xff" * 64, b"\0" * 64, np.int64(40).tobytes() + b"[" * 40)]
    for block in blocks:
        with pytest.raises(UserError, match="it is damaged"):
            messages.read(block, registry.classes_of(Own()))
