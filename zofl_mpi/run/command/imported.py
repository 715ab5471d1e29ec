"""Import the user's class from module:Class."""

import importlib
import os
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from zofl_mpi.errors import UserError, mistake, place_of, warn

READ: dict[str, tuple[ModuleType, int]] = {}
"""{file of a module: the module, and the file's modification time when it was imported}"""


def imported(name: str, flag: str) -> type[Any]:
    """The class named by module:Class; for a problem also an object with `choice`, such as a `TorchProblem`."""
    module, _, cls = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)  # as `python -m` does
    try:
        found = getattr(importlib.import_module(module), cls)
        _tell_edited(sys.modules[module])
    except (Exception, SystemExit) as exc:  # a user's module may raise anything
        if place_of(exc):
            raise UserError(f"{flag} {name}: {mistake(exc)}") from exc
        raise UserError(f"{flag} {name}: {exc}; it must be MODULE:CLASS, importable from this folder") from exc
    finally:
        with suppress(ValueError):  # the module may have changed the path
            sys.path.remove(here)
    if not isinstance(found, type) and not (flag == "--problem" and hasattr(found, "choice")):
        raise UserError(f"{flag} {name}: {cls} is a {type(found).__name__}; it must be a class")
    return found  # type: ignore[no-any-return]


def _tell_edited(module: ModuleType) -> None:
    """Warn of a file that was edited after its import: its old code runs."""
    with suppress(OSError):
        path = str(module.__file__)
        changed = os.stat(path).st_mtime_ns
        read, before = READ.setdefault(path, (module, changed))
        if read is not module:  # imported again
            READ[path] = module, changed
        elif before != changed:
            warn(f"{path} was edited since this process read it; the run uses the old code: restart Python")
