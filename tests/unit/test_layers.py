"""Who may import whom, read from the source: so that an algorithm never meets MPI, CUDA or HDF5."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "zofl_mpi"
FILES = sorted(PACKAGE.rglob("*.py"))
METHODS = ("zofl_mpi.zo_hfl", "zofl_mpi.fedrzo", "zofl_mpi.heron_sfl", "zofl_mpi.baselines")
TORCH_AT_TOP = ("costs", "fourier", "models", "network", "spectrum", "split", "split_resnet", "split_gpt2", "vectors")
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


def test_run_imports_no_method_and_no_problem(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if module(file).startswith("zofl_mpi.run"):
        forbidden = (*METHODS, "zofl_mpi.problems")
        assert not [name for name, _ in imports(tree) if within(name, forbidden)]


def test_problems_import_no_method_and_of_run_only_streams(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if module(file).startswith("zofl_mpi.problems"):
        names = [name for name, _ in imports(tree)]
        assert not [name for name in names if within(name, METHODS)]
        assert not [n for n in names if within(n, ("zofl_mpi.run",)) and not within(n, ("zofl_mpi.run.streams",))]


def test_no_method_imports_another_ones_family(source: tuple[Path, ast.Module]) -> None:
    """MPI, records, devices and the loop are for the command line; an algorithm sees clients and streams."""
    file, tree = source
    if within(module(file), METHODS):
        plumbing = tuple(f"zofl_mpi.run.{name}" for name in ("mpi", "records", "device", "world", "loop"))
        assert not [name for name, _ in imports(tree) if within(name, plumbing)]


@pytest.mark.parametrize(
    ("library", "places"),
    [("mpi4py", ("run/mpi.py", "doctor.py")), ("h5py", ("run/records.py",))],
)
def test_a_library_is_imported_in_its_one_place(
    source: tuple[Path, ast.Module], library: str, places: tuple[str, ...]
) -> None:
    file, tree = source
    if file.relative_to(PACKAGE).as_posix() not in places:
        assert not [name for name, _ in imports(tree) if within(name, (library,))]


def test_torch_cuda_is_said_in_run_device_only(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if file != PACKAGE / "run/device.py":
        said = dotted(tree) | {name for name, _ in imports(tree)}
        assert not [name for name in said if within(name, ("torch.cuda",))]


def test_torch_is_not_imported_at_top_level(source: tuple[Path, ast.Module]) -> None:
    file, tree = source
    if file.stem not in TORCH_AT_TOP:
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
    if file != PACKAGE / "run/streams.py":
        calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert not {c for c in calls if c.split(".")[-1] in ("Philox", "default_rng") or c.endswith("random.Generator")}
