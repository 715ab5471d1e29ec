"""Who may import whom, read from the source: so that an algorithm never meets MPI, CUDA or HDF5."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import zofl_mpi

PACKAGE = Path(__file__).resolve().parents[2] / "zofl_mpi"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    ("errors", "arrays"),
    ("paths",),
    ("engine",),
    ("numerics", "data"),
    ("problems", "clients"),
    ("rounds", "run"),
    ("settings", "methods"),
    ("zo_hfl", "fedrzo", "heron_sfl", "doctor", "report"),
    ("api",),
    ("__main__", "check"),
)
"""The rooms of the package, the lowest first. A room imports rooms of lower floors only."""
NEVER = {"run": ("numerics", "data", "problems", "rounds"), "methods": ("run", "data")}
"""Rooms of lower floors that a room may not import either: the program knows no algorithm, a method no program."""
WITHIN = {
    "engine": (
        ("lazy", "fields", "fleet", "roles", "streams", "messages", "ledger", "device", "coroutines", "processes"),
        ("watch", "staging", "memory", "mean", "reduction", "sharing", "batching", "ownership"),
        ("clients", "world", "hidden", "context"),
        ("between",),
        ("setting",),
    ),
    "run": (
        (
            *("loop.signals", "loop.progress", "loop.screen", "loop.client_memory", "loop.evaluation"),
            *("loop.saving", "loop.divergence", "loop.tracking", "command.imported", "command.run_flags"),
        ),
        ("records", "mpi.binding", "loop.questions", "command.flags", "command.family", "command.unread"),
        ("loop.local", "mpi"),
        ("devices", "command.plan", "loop.rounds", "command.stored", "command.trial", "loop.totals"),
        ("command.again", "command.result"),
        ("command.build",),
        ("loop.session", "command.cli", "grid"),
    ),
}
"""The rooms and files of `engine` and `run`, likewise; those of one floor may import each other, but in no circle."""
LAZY = {f"zofl_mpi.{name}": ".".join(module.split(".")[:2]) for name, module in zofl_mpi.LAZY.items()}
"""Public names of the package that are imported when they are asked for, and the rooms that they come from."""
LONGEST = 400
TORCH_AT_TOP = (
    *(
        f"problems/{name}.py"
        for name in (
            "counting",
            "examples",
            "flat",
            "frozen",
            "layers",
            "models",
            "module",
            "network",
            "objective",
            "signs",
        )
    ),
    *(
        f"problems/{name}.py"
        for name in ("adapters", "device_cache", "lm", "lm_checks", "lm_models", "sensors", "split")
    ),
    *(
        "problems/split_lm.py",
        "problems/tangents.py",
        "problems/kernels/module_torch.py",
        "problems/kernels/functional.py",
    ),
)
"""Files that are about torch modules. Elsewhere it is imported where it is needed: that costs each rank a second."""


Source = tuple[Path, ast.Module]


def module(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


KNOWN = {module(file) for file in FILES}


@cache
def sources() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text()) for file in FILES}


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported name in full, also inside functions; relative imports do not occur (tested below)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node) for alias in node.names)


def only_types(tree: ast.Module) -> set[ast.AST]:
    """What stands under `if TYPE_CHECKING`: it is never run."""
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")]
    return {inner for guard in guards for inner in ast.walk(guard)}


def within_functions(tree: ast.Module) -> set[ast.AST]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {inner for function in functions for inner in ast.walk(function)}


@cache
def dotted(tree: ast.AST) -> set[str]:
    """Every a.b.c in the source, and every imported name."""
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return attributes | {name for name, _ in imports(tree)}


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def imported_files(source: Source) -> set[str]:
    """The modules of the package that a file imports."""
    found = set()
    for public, _ in imports(source[1]):
        name = LAZY.get(public, public)
        while name and name not in KNOWN:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", "zofl_mpi", module(source[0])}


def place(name: str, floors: tuple[tuple[str, ...], ...], depth: int) -> int:
    """The floor of a module's room, `depth` names into its path."""
    words = name.split(".")[depth : depth + 2]
    known = {room: k for k, rooms in enumerate(floors) for room in rooms}
    return known[".".join(words)] if ".".join(words) in known else known[words[0]]


def relative_imports(source: Source) -> list[str]:
    return [f"line {n.lineno}" for n in ast.walk(source[1]) if isinstance(n, ast.ImportFrom) and n.level]


def imports_upwards(source: Source) -> list[str]:
    own = module(source[0])
    if own == "zofl_mpi":
        return []
    found, room = [], own.split(".")[1]
    for name in sorted(imported_files(source)):
        other = name.split(".")[1]
        if other != room:
            allowed = place(name, FLOORS, 1) < place(own, FLOORS, 1) and other not in NEVER.get(room, ())
        else:
            floors = WITHIN.get(room)
            allowed = not floors or own.count(".") == 1 or place(name, floors, 2) <= place(own, floors, 2)
            allowed = allowed and not (room == "methods" and name != "zofl_mpi.methods")  # no method imports another
        if not allowed:
            found.append(name)
    return found


def libraries_elsewhere(source: Source) -> list[str]:
    own = source[0].relative_to(PACKAGE).as_posix()
    places = {"mpi4py": "run/mpi/world.py", "h5py": "run/records"}
    elsewhere = tuple(library for library, place in places.items() if not own.startswith(place))
    spared = only_types(source[1])
    return [name for name, node in imports(source[1]) if within(name, elsewhere) and node not in spared]


def cuda_elsewhere(source: Source) -> list[str]:
    if source[0] == PACKAGE / "engine/device.py":
        return []
    return [name for name in dotted(source[1]) if within(name, ("torch.cuda",))]


def torch_at_top(source: Source) -> list[str]:
    file, tree = source
    if file.relative_to(PACKAGE).as_posix() in TORCH_AT_TOP:
        return []
    spared = within_functions(tree) | only_types(tree)
    return [name for name, node in imports(tree) if within(name, ("torch",)) and node not in spared]


def global_generators(source: Source) -> list[str]:
    file, tree = source
    said = dotted(tree)
    # The types may be named anywhere; only streams makes one.
    types = ("Generator", "Philox", "BitGenerator", "bit_generator")
    found = [n for n in said if n.startswith(("np.random.", "numpy.random.")) and n.split(".")[2] not in types]
    found += [n for n in said if within(n, ("torch.manual_seed", "torch.seed", "random"))]
    if file == PACKAGE / "engine/hidden.py":  # looks whether somebody else has used them
        found = [n for n in found if n.split(".")[-1] not in ("get_state", "getstate", "Random", "random")]
    if file != PACKAGE / "engine/streams.py":
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        found += [c for c in calls if c.split(".")[-1] in ("Philox", "default_rng") or c.endswith("random.Generator")]
    return found


RULES: tuple[Callable[[Source], list[str]], ...] = (
    relative_imports,
    imports_upwards,
    libraries_elsewhere,
    cuda_elsewhere,
    torch_at_top,
    global_generators,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_file_breaks_a_rule(rule: Callable[[Source], list[str]]) -> None:
    broken = {str(file.relative_to(PACKAGE)): rule((file, tree)) for file, tree in sources().items()}
    assert {file: names for file, names in broken.items() if names} == {}


@pytest.mark.parametrize(
    ("rule", "file", "line"),
    [
        (relative_imports, "run/loop/rounds.py", "from . import plan"),
        (imports_upwards, "engine/clients.py", "from zofl_mpi.run.mpi.collectives import Collectives"),
        (imports_upwards, "problems/softmax.py", "import zofl_mpi.run.loop.local"),
        (imports_upwards, "methods/fedavg.py", "from zofl_mpi.methods import scaffold"),
        (imports_upwards, "numerics/zo.py", "def f():\n    from zofl_mpi.problems.flat import Flat"),
        (imports_upwards, "methods/fedavg.py", "from zofl_mpi.zo_hfl import METHODS"),
        (imports_upwards, "methods/fedavg.py", "from zofl_mpi import records"),
        (libraries_elsewhere, "run/mpi/collectives.py", "def f():\n    from mpi4py import MPI"),
        (libraries_elsewhere, "run/loop/rounds.py", "import h5py"),
        (cuda_elsewhere, "engine/memory.py", "torch.cuda.synchronize()"),
        (torch_at_top, "run/loop/rounds.py", "from torch import nn"),
        (global_generators, "numerics/zo.py", "np.random.normal()"),
        (global_generators, "numerics/zo.py", "import random"),
        (global_generators, "numerics/zo.py", "torch.manual_seed(1)"),
        (global_generators, "numerics/zo.py", "default_rng(1)"),
    ],
)
def test_what_breaks_a_rule_is_found(rule: Callable[[Source], list[str]], file: str, line: str) -> None:
    assert len(rule((PACKAGE / file, ast.parse(line)))) >= 1


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, in a circle; empty where there is none."""
    left = dict(graph)
    while True:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        if not free:
            return sorted(left)
        for name in free:
            del left[name]


def test_there_is_no_circle() -> None:
    assert circle({module(file): imported_files((file, tree)) for file, tree in sources().items()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "spared"),
    [
        ("zofl_mpi.run.loop.questions, zofl_mpi.problems.softmax", {"zofl_mpi.engine.coroutines"}),
        (
            "zofl_mpi.data.images, zofl_mpi.data.partition",
            {"sklearn", "pooch", "torch", "mpi4py", "h5py", "tarfile", "requests"},
        ),
        ("zofl_mpi.run.records; zofl_mpi.run.records.provenance()", {"torch", "mpi4py"}),
        ("zofl_mpi.__main__; [*zofl_mpi.__main__.lines()]", {"torch"}),
    ],
)
def test_what_is_not_needed_is_not_imported(code: str, spared: set[str]) -> None:
    """It costs each rank milliseconds, torch a second. Mutation: an import at the top."""
    code = f"import sys, {code}; print({spared} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"


def test_no_file_is_too_long_to_read() -> None:
    files = [*FILES, *(PACKAGE.parent / "analysis").rglob("*.py")]
    assert [file.name for file in files if len(file.read_text().splitlines()) > LONGEST] == []
