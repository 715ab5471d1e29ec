"""Messages between server and clients, and checkpoints: frozen dataclasses packed into bytes.

A message is a dataclass whose fields are NumPy arrays and scalars, torch tensors, numbers, strings, None, or
dictionaries of these. Packed it is one block of bytes: the length of the header (8 bytes), the header (JSON: class,
small fields, shapes), then the arrays, each on a 64-byte boundary. `unpack` gives views of the block, no copies.

Blocks from this job's own ranks are unpacked by their class's name (`unpack`): whoever can send one already runs code
as this user, and the ranks' questions travel as pickles. Blocks from a file are compared with an expected message
(`read`): nothing is imported, and no other class is built.
"""

import dataclasses
import importlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.lazy import is_tensor, torch
from zofl_mpi.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])
Bytes = NDArray[np.uint8]
BOUNDARY = 64
ARRAYS = (np.ndarray, np.generic)
PLAIN = (bool, int, float, str, type(None))  # types stored in the header
EXACT = frozenset(PLAIN)
APART = {"apart": True}  # metadata of a field whose bytes are not counted: labels, which the tables of [C] omit

EACH = {"each": True}  # metadata of a field without a mean: `mean` gives {client: value}


def cached(function: F) -> F:
    """Cache a function of classes and names, typed as it is: `lru_cache` accepts no type[Any]."""
    return cast(F, lru_cache(maxsize=4096)(function))


def size(message: Any) -> int:
    """Communicated bytes: those of tensors, 8 per number, a string's length; fields marked APART count 0."""
    apart = marked(type(message), "apart")
    return sum(_weight(value) for path, value in leaves(message) if path[0] not in apart)


def pack(message: Any) -> Bytes:
    """The message as bytes; TypeError for a non-dataclass or a field that cannot travel (named)."""
    return prepare(message).packed()


class Prepared(NamedTuple):
    """A message ready to be packed."""

    header: bytes
    arrays: list[Any]  # on the host, or tensors on a GPU
    size: int  # packed size in bytes

    def packed(self) -> Bytes:
        """The message as bytes; padding is 0."""
        block = np.empty(self.size, np.uint8)
        self.write(block)
        return block

    def write(self, block: Bytes, fetch: Callable[[Any, Bytes], Any] | None = None) -> None:
        """Pack into a block of `size` bytes; `fetch` may copy a GPU's tensor into host bytes later."""
        start = 8 + len(self.header)
        block[:start] = np.frombuffer(np.int64(len(self.header)).tobytes() + self.header, np.uint8)
        for array in self.arrays:
            start = _pad(block, start)
            place = block[start : start + array.nbytes]
            start += array.nbytes
            if fetch is not None and is_remote(array):
                fetch(array, place)
            else:
                host = as_array(array)
                assert host is not None
                place.view(host.dtype).reshape(host.shape)[...] = host
        _pad(block, start)


def prepare(message: Any) -> Prepared:
    """Plan `pack`: header, arrays and size. The arrays are read when the message is written."""
    cls = type(message)
    _refuse_local(cls)
    places: list[tuple[list[str], str, str, tuple[int, ...]]] = []
    arrays: list[Any] = []

    def placed(path: list[str], value: Any) -> Any:
        """The value as stored in the header: None for an array."""
        if type(value) in EXACT:
            return value
        array = value.detach() if is_remote(value) else as_array(value)  # a GPU's bytes stay there until written
        if array is None:
            return value
        dtype = array.dtype if isinstance(array, np.ndarray) else _host_dtype(array)
        places.append((path, _kind(value), dtype.str, tuple(array.shape)))
        arrays.append(array)
        return None

    values = _changed(message, placed)
    fields = {"module": cls.__module__, "name": cls.__qualname__, "values": values, "arrays": places}
    header = json.dumps(fields, separators=(",", ":")).encode()
    return Prepared(header, arrays, padded(8 + len(header)) + sum(padded(a.nbytes) for a in arrays))


def unpack(block: Bytes) -> Any:
    """Read the message in a block that `pack` made on a rank of this job; blocks of files: see `read`.

    Its arrays are views with the block's lifetime and writability. Tensors of a read-only block are copies: torch has
    no read-only tensors.
    """
    module, name, values = _opened(block)
    return _class(module, name)(**values)


def read(block: Bytes, like: Any) -> Any:
    """The message in a block of a file, as views; UserError if it is not `like` this one or is damaged.

    Its class and the types and shapes of its fields are those of `like`. An axis that is empty there may have any
    length, a dictionary further entries, and None stands for any value.
    """
    cls = type(like)
    try:
        _, name, values = _opened(block)
        if name != cls.__qualname__:
            raise UserError(f"it holds a {str(name)[:80]}, and this run keeps a {cls.__qualname__}")
        message = cls(**values)
        check_like(message, outline(like))
    except UserError:
        raise
    except Exception as exc:  # numpy, json and the class raise a dozen exception types for a changed header
        raise _damaged(exc) from exc
    return message


def outline(message: Any) -> dict[str, Any]:
    """Types and shapes of a message's entries, without their values; for `check_like`."""

    def drawn(value: Any) -> Any:
        return {key: drawn(entry) for key, entry in value.items()} if isinstance(value, dict) else _described(value)

    return {name: drawn(getattr(message, name)) for name in _names(type(message))}


def check_like(message: Any, like: dict[str, Any]) -> None:
    """Refuse a message that differs from an `outline`, by the rules of `read`; UserError names the entry."""
    for name, wanted in like.items():
        _check_entry([name], getattr(message, name), wanted)


def _check_entry(path: list[str], value: Any, like: Any) -> None:
    if isinstance(like, dict) and isinstance(value, dict):
        for key, entry in like.items():
            _check_entry([*path, key], value.get(key), entry)
        return
    (kind, *shape), (wanted, *axes) = _described(value), ("dict",) if isinstance(like, dict) else like
    fits = kind == wanted and len(shape) == len(axes) and all(n in (0, k) for n, k in zip(axes, shape, strict=True))
    if not (fits or wanted == "NoneType"):
        words = [f"{kind} {tuple(shape) or ''}".strip(), f"{wanted} {tuple(axes) or ''}".strip()]
        raise UserError(f"its {'/'.join(path)} is {words[0]}, and this run has {words[1]} there")


def _described(value: Any) -> tuple[Any, ...]:
    """Type and shape of an entry; any float, and any 64-bit integer, is a number."""
    if isinstance(value, int | float | np.floating | np.int64) and not isinstance(value, bool):
        return ("number",)
    if isinstance(value, ARRAYS) or is_tensor(value):
        return (f"{type(value).__name__} of {value.dtype}", *value.shape)
    return (type(value).__name__,)


def fields_of(block: Bytes) -> dict[str, Any]:
    """{field: value}, as in `named`, of the message in a block of a file; its class is not needed.

    UserError: the block is damaged.
    """
    try:
        values = _opened(block)[2]
        return named(leaf for name, value in values.items() for leaf in _nested_leaves([name], value))
    except Exception as exc:  # as in `read`
        raise _damaged(exc) from exc


def _damaged(exc: Exception) -> UserError:
    return UserError(f"it is damaged ({type(exc).__name__}: {str(exc).partition(chr(10))[0]})")


def _opened(block: Bytes) -> tuple[str, str, dict[str, Any]]:
    """Module, class name and fields of the message in a block."""
    start = 8 + int(block[:8].view(np.int64)[0])
    header = json.loads(block[8:start].tobytes())
    values = header["values"]
    for path, kind, dtype, shape in header["arrays"]:
        start = padded(start)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if nbytes < 0:
            raise ValueError(f"an array of shape {shape}")
        array = block[start : start + nbytes].view(dtype).reshape(shape)
        entries = values
        for outer in path[:-1]:
            entries = entries[outer]
        entries[path[-1]] = array[()] if kind == "scalar" else _tensor(array, kind) if kind else array
        start += nbytes
    return header["module"], header["name"], values


def copy(message: Any, writable: bool = True) -> Any:
    """An independent copy, as the receiver would get it; GPU tensors stay on the GPU.

    Its NumPy arrays are `writable` or not (tensors always are). It is not packed: header and blocks would cost a small
    network a tenth of its step.
    """
    _refuse_local(type(message))
    return type(message)(**_changed(message, lambda _, value: duplicate(value, writable)))


def replace_arrays(message: Any, arrays: dict[tuple[str, ...], NDArray[Any]]) -> Any:
    """A copy of the message with the values at the given paths replaced; torch tensors stay torch tensors."""

    def replaced(path: list[str], value: Any) -> Any:
        new = arrays.get(tuple(path))
        if new is None:
            return value
        if is_tensor(value):
            return _tensor(new, _kind(value))
        return new if isinstance(value, np.ndarray) else new.item()

    return type(message)(**_changed(message, replaced))


def _changed(message: Any, change: Callable[[list[str], Any], Any]) -> dict[str, Any]:
    """The fields of the message after `change`(path, leaf) of every leaf."""

    def changed(path: list[str], value: Any) -> Any:
        if isinstance(value, dict):
            return {key: changed([*path, key], entry) for key, entry in value.items()}
        return change(path, value)

    list(leaves(message))  # refuses anything but a message
    return {name: changed([name], getattr(message, name)) for name in _names(type(message))}


def duplicate(value: Any, writable: bool = True) -> Any:
    """A copy of a leaf. A GPU tensor keeps its strides and attributes; on the host it is in C order."""
    if isinstance(value, np.ndarray):
        array = np.array(value, order="C")
        array.setflags(write=writable)
        return array
    if not is_tensor(value):
        return value
    if not is_remote(value):
        return value.detach().clone(memory_format=torch.contiguous_format)
    copied = value.detach().clone()
    copied.__dict__.update(value.__dict__)
    return copied


def is_remote(value: Any) -> bool:
    """True for a tensor that is not on the host."""
    return is_tensor(value) and value.device.type != "cpu"


def leaves(message: Any) -> Iterator[tuple[list[str], Any]]:
    """(path, value) of each tensor, number, string or None in a message; TypeError for anything else, named.

    A path is the field's name, then a key for each level of dictionaries.
    """
    for name in _names(type(message)):
        entry = getattr(message, name)
        if type(entry) in EXACT:
            yield [name], entry
            continue
        for path, value in _nested_leaves([name], entry):
            if not (isinstance(value, PLAIN) or is_tensor(value)):
                name = f"{type(message).__name__}.{'.'.join(path)}"
                if not isinstance(value, ARRAYS):
                    allowed = "a message holds arrays, tensors, numbers and strings, in dictionaries too"
                    raise TypeError(f"{name} is a {type(value).__name__}; {allowed}")
                if value.dtype.hasobject:
                    raise TypeError(f"{name} is an array of Python objects; a message holds numbers only")
            yield path, value


def named(entries: Iterable[tuple[list[str], Any]]) -> dict[str, Any]:
    """{path: leaf} with tensors as arrays, without None; dictionary entries are FIELD/KEY."""
    found = {}
    for path, value in entries:
        array = as_array(value)
        if value is not None:
            found["/".join(path)] = value if array is None else array
    return found


@cached
def _names(cls: type[Any]) -> tuple[str, ...]:
    """Names of the fields of a message of this class; TypeError: it is no dataclass."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"a message is an instance of a dataclass, not {cls.__name__}")
    return tuple(field.name for field in dataclasses.fields(cls))


def _refuse_local(cls: type[Any]) -> None:
    if "<" in cls.__qualname__:
        raise TypeError(f"message class {cls.__qualname__} is local to a function; declare it at the top of its module")


@cached
def marked(cls: type[Any], mark: str) -> frozenset[str]:
    """Names of the fields marked "apart" or "each"."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return frozenset(f.name for f in fields if f.metadata.get(mark))


def _nested_leaves(path: list[str], value: Any) -> Iterator[tuple[list[str], Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, entry in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{'.'.join(path)} has the key {key!r}; keys are strings")
        yield from _nested_leaves([*path, key], entry)


def as_array(value: Any) -> NDArray[Any] | None:
    """An array, NumPy scalar or tensor as a host array (bfloat16 as its int16 bits); else None."""
    if isinstance(value, ARRAYS):
        return np.asarray(value)
    if not is_tensor(value):
        return None
    host = value.detach().cpu()
    return cast("NDArray[Any]", host.view(torch.int16).numpy() if host.dtype == torch.bfloat16 else host.numpy())


def _host_dtype(tensor: Any) -> np.dtype[Any]:
    """Host dtype of a tensor's array."""
    return cast("NDArray[Any]", as_array(tensor.new_empty(0, device="cpu"))).dtype


def _weight(value: Any) -> int:
    if isinstance(value, np.ndarray) or is_tensor(value):
        return int(value.nbytes)  # without a copy: a GPU would first have to finish its pending work
    return 0 if value is None else len(value.encode()) if isinstance(value, str) else 8


def _pad(block: Bytes, start: int) -> int:
    """Zero a block up to the next boundary and return its position: fresh memory may hold anything."""
    end = padded(start)
    block[start:end] = 0
    return end


def padded(nbytes: int) -> int:
    """The next multiple of BOUNDARY."""
    return -(-nbytes // BOUNDARY) * BOUNDARY


@cached
def _class(module: str, name: str) -> type[Any]:
    """The dataclass of that name; imports it, hence only for messages of this job's own ranks."""
    member: Any = importlib.import_module(module)
    for part in name.split("."):
        member = getattr(member, part)
    if not (isinstance(member, type) and dataclasses.is_dataclass(member)):
        raise TypeError(f"{module}.{name} is no dataclass, and so no message")
    return member


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return ""
    if isinstance(value, np.generic):
        return "scalar"
    return "bfloat16" if value.dtype == torch.bfloat16 else "torch"


def _tensor(array: NDArray[Any], kind: str) -> Any:
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if kind == "bfloat16" else tensor
