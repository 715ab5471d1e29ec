"""Who may import whom, read from the source: so that an algorithm never meets MPI, CUDA or HDF5."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "zofl_mpi"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOORS = (
    ("errors",),
    ("engine",),
    ("numerics", "data"),
    ("problems",),
    ("rounds", "run"),
    ("settings", "methods"),
    ("zo_hfl", "fedrzo", "heron_sfl", "doctor"),
)
"""The rooms of the package, the lowest first. A room imports rooms of lower floors only."""
NEVER = {
    "run": ("numerics", "data", "problems", "rounds"),
    "methods": ("run", "data"),
}
"""Rooms of lower floors that a room may not import either: the program knows no algorithm, a method no program."""
WITHIN = {
    "engine": (
        ("fields", "streams", "messages", "ledger", "device", "coroutines"),
        ("watch", "staging", "memory", "mean", "batching"),
        ("clients", "world"),
        ("setting",),
    ),
    "run": (
        ("signals", "progress", "client_memory"),
        ("records", "binding", "questions", "flags"),
        ("local", "mpi"),
        ("launch", "plan", "loop"),
        ("session", "cli", "grid", "restore", "timing", "exchange"),
    ),
}
"""The rooms and files of `engine` and `run`, likewise; those of one floor may import each other, but in no circle."""
LONGEST = 400
TORCH_AT_TOP = (
    "problems/counting.py",
    "problems/flat.py",
    "problems/gpt2.py",
    "problems/head.py",
    "problems/kernels/fourier.py",
    "problems/kernels/blocks.py",
    "problems/kernels/module_torch.py",
    "problems/kernels/relu_torch.py",
    "problems/kernels/softmax_eval.py",
    "problems/kernels/softmax_torch.py",
    "problems/models.py",
    "problems/module.py",
    "problems/network.py",
    "problems/device_cache.py",
    "problems/signs.py",
    "problems/split.py",
    "problems/split_gpt2.py",
    "problems/tail.py",
    "problems/tangents.py",
    "rounds/split/measured.py",
)
"""Files that are about torch modules. Elsewhere it is imported where it is needed: that costs each rank a second."""


def module(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


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


def dotted(tree: ast.AST) -> set[str]:
    """Every a.b.c in the source."""
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.fixture(params=FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def source(request: pytest.FixtureRequest) -> tuple[Path, ast.Module]:
    return request.param, ast.parse(request.param.read_text())


def test_imports_are_absolute(source: tuple[Path, ast.Module]) -> None:
    assert not [node.lineno for node in ast.walk(source[1]) if isinstance(node, ast.ImportFrom) and node.level]


def imported_files(source: tuple[Path, ast.Module]) -> set[str]:
    """The modules of the package that a file imports."""
    known = {module(file) for file in FILES}
    found = set()
    for name, _ in imports(source[1]):
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", "zofl_mpi", module(source[0])}


def place(name: str, floors: tuple[tuple[str, ...], ...], depth: int) -> int:
    """The floor of a module's room, `depth` names into its path."""
    room = name.split(".")[depth]
    return next(k for k, rooms in enumerate(floors) if room in rooms)


def refused(source: tuple[Path, ast.Module]) -> list[str]:
    """What a file may not import, by the floors."""
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


def test_every_room_imports_lower_floors_only(source: tuple[Path, ast.Module]) -> None:
    assert refused(source) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("run/loop.py", "from zofl_mpi.problems import Smooth"),
        ("engine/clients.py", "from zofl_mpi.run.mpi.wire import Wire"),
        ("problems/softmax.py", "import zofl_mpi.run.local"),
        ("methods/fedavg.py", "from zofl_mpi.methods import scaffold"),
        ("methods/heron.py", "from zofl_mpi.run.records import load"),
        ("numerics/zo.py", "def f():\n    from zofl_mpi.problems.flat import Flat"),
        ("rounds/start.py", "from zofl_mpi.methods.fedavg import FedAvg"),
        ("methods/fedavg.py", "from zofl_mpi.zo_hfl import METHODS"),
    ],
)
def test_an_import_that_runs_up_is_found(file: str, line: str) -> None:
    assert len(refused((PACKAGE / file, ast.parse(line)))) == 1


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
    assert circle({module(file): imported_files((file, ast.parse(file.read_text()))) for file in FILES}) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_no_file_is_too_long_to_read() -> None:
    files = [*FILES, *(PACKAGE.parent / "analysis").rglob("*.py")]
    assert [file.name for file in files if len(file.read_text().splitlines()) > LONGEST] == []


@pytest.mark.parametrize(
    ("library", "places"),
    [("mpi4py", ("run/mpi/world.py",)), ("h5py", ("run/records",))],
)
def test_a_library_is_imported_in_its_one_place(
    source: tuple[Path, ast.Module], library: str, places: tuple[str, ...]
) -> None:
    file, tree = source
    if not file.relative_to(PACKAGE).as_posix().startswith(places):
        assert not [name for name, _ in imports(tree) if within(name, (library,))]


def test_torch_cuda_is_said_in_run_device_only(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if file != PACKAGE / "engine/device.py":
        said = dotted(tree) | {name for name, _ in imports(tree)}
        assert not [name for name in said if within(name, ("torch.cuda",))]


def test_torch_is_not_imported_at_top_level(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if file.relative_to(PACKAGE).as_posix() not in TORCH_AT_TOP:
        inside = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(node)
        }
        spared = inside | only_types(tree)
        assert not [name for name, node in imports(tree) if within(name, ("torch",)) and node not in spared]


def test_no_global_generator_is_used(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    said = dotted(tree) | {name for name, _ in imports(tree)}
    types = ("Generator", "Philox", "BitGenerator")  # the types may be named anywhere; only streams makes one
    draws = [n for n in said if n.startswith(("np.random.", "numpy.random.")) and n.split(".")[2] not in types]
    assert not draws
    assert not [n for n in said if within(n, ("torch.manual_seed", "torch.seed", "random"))]
    if file != PACKAGE / "engine/streams.py":
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not {c for c in calls if c.split(".")[-1] in ("Philox", "default_rng") or c.endswith("random.Generator")}
