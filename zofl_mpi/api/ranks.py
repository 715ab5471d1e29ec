"""Ranks of a script under mpirun: they meet before a run, compare arguments, and may serve rank 0's runs."""

import dataclasses
import io
import itertools
import mmap
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from zofl_mpi.data import Federation
from zofl_mpi.engine.world import RANKS, SIGNS, SIZES, SingleProcess, World, launched
from zofl_mpi.errors import RunFailed, UserError
from zofl_mpi.run.mpi import world as mpi

T = TypeVar("T")
SHARED, SENT_BYTES = "/dev/shm", 1 << 24
"""Folder of files in memory, and maximum bytes per transfer."""
_LEADING: list[World] = []
"""The world of a `lead` in progress, at rank 0."""


def connect(use_mpi: bool | None, remedy: str = "say mpi=False (or mpi=True)") -> World:
    """Ranks of a run; with use_mpi=False this process alone. All ranks call it.

    UserError: a notebook's kernel inherits launcher variables, or the ranks do not see each other.
    """
    if use_mpi is False or not (use_mpi or launched(os.environ)):
        return SingleProcess()
    if use_mpi is None and "ipykernel" in sys.modules and not _LEADING:
        names = ", ".join(sorted(os.environ.keys() & {*SIZES, *RANKS, *SIGNS}))
        raise UserError(f"this notebook's kernel inherits {names} from a launcher: {remedy}")
    return mpi.connect_script()


@contextmanager
def aborting(world: World) -> Iterator[None]:
    """Context that ends all ranks if this one raises an exception unknown to the others."""
    try:
        yield
    except UserError:  # the others have it, too
        raise
    except BaseException as exc:
        if world.size > 1:
            world.abort(last_words(exc))
        raise


def last_words(exc: BaseException) -> str:
    """Final output of a rank that ends all others."""
    return "".join(traceback.format_exception(exc)) + f"zofl_mpi: {type(exc).__name__}: {exc}"


def shared(world: World, data: Any) -> Any:
    """The data on every rank: its own, or rank 0's if the others have none, once per node."""
    has = world.allgather(isinstance(data, Federation))
    if any(has) and not has[0]:
        raise UserError(f"rank {has.index(True)} has data in memory and rank 0 has not: give all ranks them, or rank 0")
    if not has[0] or all(has):
        return data
    return spread(world, data)


def spread(world: World, value: Any) -> Any:
    """Rank 0's value on all ranks, with arrays in memory shared by the ranks of a node."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append) if world.rank == 0 else b""
    text, sizes = world.bcast((text, [each.raw().nbytes for each in buffers]))
    (place, _), whole = world.neighbours(None), cast("Any", b"")
    with tempfile.TemporaryFile(dir=SHARED if os.path.isdir(SHARED) else None) as own:
        _, (path, *_) = world.neighbours(f"/proc/{os.getpid()}/fd/{own.fileno()}")
        for k, size in enumerate(sizes):
            for low in range(0, size, SENT_BYTES):
                piece = world.bcast(buffers[k].raw()[low : low + SENT_BYTES].tobytes() if world.rank == 0 else None)
                if place == 0:
                    own.write(piece)
        own.flush()
        world.neighbours(None)
        if world.rank and sum(sizes):
            with open(path, "rb") as file:
                whole = mmap.mmap(file.fileno(), sum(sizes), access=mmap.ACCESS_READ)
        world.neighbours(None)  # the file exists until then
    if world.rank == 0:
        return value
    ends = [0, *itertools.accumulate(sizes)]
    return pickle.loads(text, buffers=[memoryview(whole)[low:high] for low, high in itertools.pairwise(ends)])


def compare(world: World, words: list[str]) -> None:
    """Refuse ranks with different arguments."""
    told = world.allgather(words)
    for rank, other in enumerate(told):
        if other != told[0]:
            pairs = zip([*told[0], "(nothing)"], [*other, "(nothing)"], strict=False)
            first, second = next(((a, b) for a, b in pairs if a != b), (" ".join(told[0]), " ".join(other)))
            raise UserError(f"ranks 0 and {rank} call simulate with different arguments: {first} and {second}")


def lead(function: Callable[..., T], *arguments: Any, **named: Any) -> T | None:
    """Call `function` at rank 0 only; the other ranks serve its simulations until it returns. All ranks call it.

    Arguments of simulations within `function` are sent to the other ranks by value: classes, functions and arrays,
    including those of a notebook (these need cloudpickle).

    Returns:
        At rank 0, or without MPI, the value of `function`; None elsewhere.

    Raises:
        RunFailed: on the other ranks, if `function` raises at rank 0, which gets the exception itself.
        UserError: an argument of a simulation cannot be sent (named).
    """
    if _LEADING:  # the other ranks serve already
        return function(*arguments, **named)
    alone = "there are no ranks to lead; call the function itself, whose runs say mpi=False"
    world = connect(None, alone)
    if world.size == 1:
        return function(*arguments, **named)
    try:
        if world.rank:
            _serve(world)
            return None
        _LEADING.append(world)
        try:
            value = function(*arguments, **named)
        except BaseException as exc:
            world.bcast(("failed", f"rank 0: {type(exc).__name__}: {exc}"))
            raise
        finally:
            _LEADING.clear()
        world.bcast(("end", None))
        return value
    finally:
        world.free()


def announce(call: Callable[..., object], *arguments: Any, **named: Any) -> None:
    """Within `lead` at rank 0: make the other ranks call this function, too."""
    if _LEADING:
        _LEADING[0].bcast(("call", sent((call, named, *arguments))))


def _serve(world: World) -> None:
    """Take part in rank 0's calls until it ends."""
    while True:
        word, content = world.bcast(None)
        if word == "end":
            return
        if word == "failed":
            raise RunFailed(content)
        with suppress(UserError):  # rank 0 has it, too, and decides what follows
            call, named, *arguments = received(content)
            call(*arguments, **named)


def by_value() -> Any:
    """cloudpickle, which sends classes of a script or notebook by value; None: not installed."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def sent(arguments: tuple[Any, ...]) -> bytes:
    """The arguments by value; UserError names one that cannot be sent."""
    with suppress(Exception):  # __reduce__ may raise anything
        return _pickled(arguments)
    for each in arguments:  # the one that cannot be sent
        try:
            _pickled(each)
        except Exception as exc:
            name = getattr(each, "__qualname__", type(each).__name__)
            advice = "define it in a module, or install cloudpickle: pip install 'zofl_mpi[script]'"
            raise UserError(f"{name} cannot be sent to the other ranks ({exc}): {advice}") from exc
    return _pickled(arguments)


def _pickled(value: Any) -> bytes:
    """A value with its classes, if cloudpickle is installed; classes of a module need none."""
    cloudpickle, content = by_value(), io.BytesIO()
    if cloudpickle is None:
        return pickle.dumps(value)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        def reducer_override(self, each: Any) -> Any:
            # a copy of this mark in a dataclass's fields would be a default
            return "MISSING" if each is dataclasses.MISSING else super().reducer_override(each)

    Pickler(content).dump(value)
    return content.getvalue()


def received(content: bytes) -> Any:
    """The arguments in the output of `sent`. Registers classes of the sender's script: messages name their classes."""
    arguments = pickle.loads(content)
    main = vars(sys.modules["__main__"])
    for cls in (each for each in arguments if isinstance(each, type) and each.__module__ == "__main__"):
        main.setdefault(cls.__name__, cls)
        for member in (value for base in cls.__mro__ for value in vars(base).values()):
            for name, value in getattr(member, "__globals__", {}).items():
                if isinstance(value, type) and value.__module__ == "__main__":
                    main.setdefault(name, value)
    return arguments
