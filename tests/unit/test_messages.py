"""Messages: what is packed comes back with every bit, a block is shared or it is not, and its bytes are counted."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from zofl_mpi.engine import messages
from zofl_mpi.errors import UserError


@dataclass(frozen=True)
class Letter:
    a: Any = None
    b: Any = None
    more: dict[str, Any] = field(default_factory=dict)


DTYPES = ["?", "i1", "u1", "<i2", ">i4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8", "<c16"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(np.dtype(dtype), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.sampled_from([np.float64(0.1), np.float32(0.1), np.int32(-3), np.bool_(True)])
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | SCALARS
FIELDS = ARRAYS | PLAIN
LETTERS = st.builds(Letter, FIELDS, FIELDS, st.dictionaries(TEXTS, FIELDS, max_size=4))
NESTED = st.recursive(FIELDS, lambda inner: st.dictionaries(TEXTS, inner, max_size=3), max_leaves=4)
"""As an optimiser's state is."""


def sent(message: Any) -> Any:
    return messages.unpack(messages.pack(message))


def same(one: Any, two: Any) -> bool:
    """Equal in type and in every bit; the payload of a number that is nan does not matter."""
    if isinstance(one, np.ndarray):
        bits = [(a.dtype, a.shape, a.tobytes()) for a in (one, two) if isinstance(a, np.ndarray)]
        return len(bits) == 2 and bits[0] == bits[1]
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, float) and isinstance(two, float):
        return (math.isnan(one) and math.isnan(two)) or (one == two and math.copysign(1, one) == math.copysign(1, two))
    return type(one) is type(two) and one == two


@settings(max_examples=150, deadline=None)
@given(LETTERS, st.dictionaries(TEXTS, NESTED, max_size=3))
def test_what_is_packed_is_unpacked(letter: Letter, nested: dict[str, Any]) -> None:
    found = sent(replace(letter, more=letter.more | nested))
    assert type(found) is Letter
    assert same(found.a, letter.a) and same(found.b, letter.b) and same(found.more, letter.more | nested)


@settings(max_examples=100, deadline=None)
@given(LETTERS)
def test_the_size_is_the_tensors_bytes_plus_8_for_each_number(letter: Letter) -> None:
    def weight(value: Any) -> int:
        if isinstance(value, np.ndarray):
            return value.size * value.itemsize
        if isinstance(value, str):
            return len(value.encode())
        return 0 if value is None else 8

    assert messages.size(letter) == sum(map(weight, [letter.a, letter.b, *letter.more.values()]))
    assert messages.size(sent(letter)) == messages.size(letter)


@settings(max_examples=100, deadline=None)
@given(LETTERS, st.booleans())
def test_every_array_lies_on_a_boundary_of_64_bytes(letter: Letter, writable: bool) -> None:
    """A view that can be written where the block can be."""
    block = messages.pack(letter)
    block.setflags(write=writable)
    found = messages.unpack(block)
    start = block.__array_interface__["data"][0]
    for array in (v for v in (found.a, found.b, *found.more.values()) if isinstance(v, np.ndarray) and v.size):
        assert (array.__array_interface__["data"][0] - start) % 64 == 0
        assert np.shares_memory(array, block) and array.flags.writeable == writable


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.arange(6.0).reshape(2, 3),
    "float64": lambda: torch.arange(6.0, dtype=torch.float64),
    "int64": lambda: torch.tensor([2**62, -1]),
    "bool": lambda: torch.tensor([True, False]),
    "bfloat16": lambda: torch.tensor([1.5, -2.0, math.inf, 3e38, 1e-40]).to(torch.bfloat16),
    "bfloat16, 0-d": lambda: torch.tensor(1.5, dtype=torch.bfloat16),
    "0-d": lambda: torch.tensor(2.5),
    "empty": lambda: torch.zeros(0, 3),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).T,
    "transposed bfloat16": lambda: torch.arange(6.0).reshape(2, 3).to(torch.bfloat16).T,
    "every other": lambda: torch.arange(8.0)[::2],
    "expanded": lambda: torch.tensor([3.0]).expand(4),
    "with a gradient": lambda: torch.arange(3.0, requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("writable", [True, False])
def test_a_torch_tensor_arrives_with_its_dtype_shape_and_values(name: str, writable: bool) -> None:
    tensor = TENSORS[name]()
    block = messages.pack(Letter(tensor, more={"again": tensor}))
    block.setflags(write=writable)
    found = messages.unpack(block)
    for arrived in (found.a, found.more["again"]):
        assert isinstance(arrived, torch.Tensor)
        assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(arrived, tensor.detach())
        assert not arrived.requires_grad
    assert messages.size(Letter(tensor)) == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3).T, np.arange(8)[::-2], np.broadcast_to(2.0, (2, 2))])
def test_an_array_in_any_memory_order_arrives_right(array: np.ndarray[Any, Any]) -> None:
    found = sent(Letter(array)).a
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype and found.flags.c_contiguous


@settings(max_examples=100, deadline=None)
@given(LETTERS, st.booleans())
def test_a_copy_is_what_a_block_gives(letter: Letter, writable: bool) -> None:
    """Without a block: no memory is shared, and arrays are as writable as was asked for."""
    found, right = messages.copy(letter, writable), sent(letter)
    assert same(found.more, right.more)
    both = ((found.a, right.a, letter.a), (found.b, right.b, letter.b))
    for own, arrived, mine in (*both, *((found.more[k], right.more[k], letter.more[k]) for k in letter.more)):
        assert same(own, arrived)
        if isinstance(own, np.ndarray):
            assert own.flags.writeable == writable and own.flags.c_contiguous and not np.shares_memory(own, mine)


@pytest.mark.parametrize("name", [*TENSORS, "channels last"])
def test_a_copied_tensor_lies_in_memory_as_one_from_a_block(name: str) -> None:
    """Products of channels that lie last have other bits, so a process alone and ranks must see one order."""
    image = torch.arange(48.0).reshape(2, 2, 3, 4).to(memory_format=torch.channels_last)
    tensor = image if name == "channels last" else TENSORS[name]()
    found, right = messages.copy(Letter(tensor)).a, sent(Letter(tensor)).a
    assert (found.dtype, found.shape, found.stride()) == (right.dtype, right.shape, right.stride())
    assert torch.equal(found, right) and not found.requires_grad
    assert found.data_ptr() != tensor.data_ptr() or not found.numel()


def local() -> Any:
    @dataclass(frozen=True)
    class Hidden:
        k: int = 0

    return Hidden()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (3.0, "a message is an instance of a dataclass, not float"),
        (np.zeros(3), "a message is an instance of a dataclass, not ndarray"),
        (None, "a message is an instance of a dataclass, not NoneType"),
        (Letter, "a message is an instance of a dataclass, not type"),
        (Letter([1, 2]), r"Letter\.a is a list; a message holds arrays, tensors, numbers and strings"),
        (Letter(b=1j), r"Letter\.b is a complex"),
        (Letter(more={"k": (1,)}), r"Letter\.more\.k is a tuple"),
        (Letter(more={"k": {3: 1}}), r"more\.k has the key 3; keys are strings"),
        (Letter(np.array([None, 1])), r"Letter\.a is an array of Python objects; a message holds numbers only"),
        (local(), r"message class local\.<locals>\.Hidden is local to a function; declare it at the top of its module"),
    ],
)
@pytest.mark.parametrize("how", [messages.pack, messages.copy])
def test_what_is_no_message_is_refused_by_name(message: Any, words: str, how: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=words):
        how(message)


def test_replaced_arrays_keep_the_kind_of_their_field() -> None:
    letter = Letter(np.zeros(2), torch.zeros(2), {"k": 1.0, "name": "n"})
    changed = {("a",): np.ones(2), ("b",): np.full(2, 2.0, np.float32), ("more", "k"): np.array(3.0)}
    found = messages.replace_arrays(letter, changed)
    assert np.array_equal(found.a, np.ones(2))
    assert isinstance(found.b, torch.Tensor) and found.b.tolist() == [2.0, 2.0]
    assert same(found.more["k"], 3.0) and found.more["name"] == "n"
    assert letter.more["k"] == 1.0


def test_an_import_of_torch_in_another_thread_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: torch is taken for imported as soon as it has a name."""
    begun = ModuleType("torch")
    begun.__spec__ = SimpleNamespace(_initializing=True)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "torch", begun)
    block = messages.pack(Letter(np.arange(3.0)))
    assert messages.unpack(block).a.tolist() == [0.0, 1.0, 2.0]


# --- blocks of files


@dataclass(frozen=True)
class State:
    x: np.ndarray
    loss: float = math.nan
    name: str = ""
    scalars: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))
    moments: dict[str, Any] = field(default_factory=dict)
    steps: Any = None


START = State(np.zeros(3, np.float32), moments={"m": torch.zeros(3)})


def changed(message: Any, **entries: Any) -> messages.Bytes:
    """The message as bytes, with other entries in its header."""
    block = messages.pack(message)
    length = int(block[:8].view(np.int64)[0])
    header = json.loads(block[8 : 8 + length].tobytes()) | entries
    body = json.dumps(header).encode()
    padding = bytes(-(8 + len(body)) % messages.BOUNDARY)
    arrays = block[messages.padded(8 + length) :].tobytes()
    return np.frombuffer(np.int64(len(body)).tobytes() + body + padding + arrays, np.uint8)


@pytest.mark.parametrize(
    ("module", "name"),
    [("subprocess", "Popen"), ("this", "s"), ("zofl_mpi.engine.clients", "Client"), (__name__, "Letter"), ("", [1])],
)
def test_a_file_builds_no_other_class_and_imports_nothing(module: str, name: Any) -> None:
    """Mutations: the class is imported by its name; whatever has been imported is allowed."""
    sys.modules.pop("this", None)
    with pytest.raises(UserError, match=r"it holds a .*, and this run keeps a State"):
        messages.read(changed(START, module=module, name=name), START)
    assert "this" not in sys.modules
    with pytest.raises(TypeError, match="no dataclass"):
        messages.unpack(changed(START, module="subprocess", name="Popen"))


def test_the_module_of_a_class_may_move() -> None:
    """Mutation: the file's module is asked for."""
    assert messages.read(changed(START, module="elsewhere"), START).x.shape == (3,)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        *[
            ("x", value, r"its x is .*, and this run has ndarray of float32 \(3,\) there")
            for value in (
                np.zeros(4, np.float32), np.zeros((3, 1), np.float32), np.zeros(0, np.float32), np.zeros(3),
                np.zeros(3, np.int32), np.zeros(3, bool), np.zeros(3, np.complex64), np.zeros(3, "S4"), np.float32(1),
                torch.zeros(3), 1, 1.5, True, "text", None, {}, {"a": 1},
            )
        ],
        *[("loss", value, "and this run has number there") for value in (True, "1", np.int32(1), None, {})],  # type: ignore[var-annotated]
        ("name", 1, "its name is number, and this run has str there"),
        ("scalars", np.zeros((5, 3)), r"this run has ndarray of float64 \(0, 2\) there"),
        ("scalars", np.zeros((5, 2), np.float32), r"this run has ndarray of float64 \(0, 2\) there"),
        ("scalars", np.zeros(2), r"this run has ndarray of float64 \(0, 2\) there"),
        ("moments", {}, "its moments/m is NoneType, and this run has Tensor"),
        ("moments", {"m": torch.zeros(4)}, r"its moments/m is Tensor of torch.float32 \(4,\)"),
    ],
)  # fmt: skip
def test_a_state_that_is_not_like_the_first_one_is_refused(field: str, value: Any, told: str) -> None:
    """Mutations: shapes alone; types alone; a scalar for an array; entries of dictionaries not compared."""
    with pytest.raises(UserError, match=told):
        messages.read(messages.pack(replace(START, **{field: value})), START)


def test_a_state_may_have_grown() -> None:
    """Along an axis that was empty, in a dictionary, or where nothing was. Mutation: equal shapes demanded."""
    moments = {"m": torch.ones(3), "v": torch.ones(3), "t": 4}
    grown = replace(START, loss=np.float32(1), scalars=np.ones((5, 2)), moments=moments, steps=7)
    back = messages.read(messages.pack(grown), START)
    assert back.scalars.shape == (5, 2) and back.moments.keys() == moments.keys() and back.steps == 7


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
    blocks = [changed(START, **header)]
    blocks += [np.frombuffer(b, np.uint8) for b in (b"", b"\xff" * 64, b"\0" * 64, np.int64(40).tobytes() + b"[" * 40)]
    for block in blocks:
        with pytest.raises(UserError, match="it is damaged"):
            messages.read(block, START)


def test_the_bytes_between_the_parts_of_a_message_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be whatever lay in memory. Mutation: the block or its end as `empty` gives it."""
    message = Letter(np.ones(3), torch.ones(5), {"c": np.ones(9, np.int8)})
    block = messages.pack(message)
    monkeypatch.setattr(messages.np, "empty", lambda size, dtype: np.full(size, 0xAA, dtype))
    assert messages.pack(message).tobytes() == block.tobytes() and 0xAA not in block
