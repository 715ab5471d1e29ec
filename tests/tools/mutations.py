"""How many small faults of the package the tests find: mutants of one place each, and the share of them that is killed.

    python -m tests.tools.mutations                       20 mutants of each module of FOLDERS, drawn by --seed
    python -m tests.tools.mutations --every engine/fleet.py   all of a module

A mutant lives in the memory of a fork, never in a file: tests that start processes do not see it. It meets the files of
unit and numerics tests that name its module (if none does, those whose vocabulary does, or that name a module which
imports it), and is killed by the first that fails or by `--limit` seconds; a share is thus a lower bound of what the
whole suite kills. Each survivor is printed with its line: a test that is missing, or another way to say the same.
"""

import argparse
import ast
import copy
import functools
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("numerics", "rounds", "methods", "clients", "engine/mean.py", "engine/fleet.py", "run/devices")
BOTH = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult Div, BitAnd BitOr"
ONE_WAY = "FloorDiv Mult, Mod Mult, Pow Mult"
OPERATORS = {getattr(ast, a): getattr(ast, b) for a, b in (pair.split() for pair in f"{BOTH}, {ONE_WAY}".split(", "))}
OPERATORS |= {getattr(ast, b): getattr(ast, a) for a, b in (pair.split() for pair in BOTH.split(", "))}
NAMES = [("min", "max"), ("ceil", "floor"), ("any", "all"), ("minimum", "maximum"), ("argmin", "argmax")]
CALLS = dict([*NAMES, *(pair[::-1] for pair in NAMES), ("zeros", "ones"), ("norm", "sum"), ("sum", "max")])


class Mutant(NamedTuple):
    """A module with one fault."""

    line: int
    what: str
    tree: ast.Module


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of code: no annotations, nothing that an error says, no strings."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.Assert):
                yield node
                yield from places(node)


def changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """What may be done to a node; each gets its twin in a copied tree."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield lambda twin: twin.ops.__setitem__(0, OPERATORS[type(twin.ops[0])]())
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        yield lambda twin: setattr(twin, "op", OPERATORS[type(twin.op)]())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda twin: setattr(twin, "value", twin.value + 1)
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda twin: setattr(twin, "value", not twin.value)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield lambda twin: setattr(twin, "test", ast.UnaryOp(ast.Not(), twin.test))
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CALLS:
            field = "attr" if isinstance(node.func, ast.Attribute) else "id"
            yield lambda twin: setattr(twin.func, field, CALLS[name])
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield lambda twin: setattr(twin, "dropped", True)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda twin: setattr(twin, "op", ast.UAdd())


class _Drop(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        if getattr(node, "dropped", False):
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


def faults(tree: ast.Module) -> list[tuple[int, int]]:
    """All that may be done to a module: the place and the number of the change there."""
    return [(k, n) for k, node in enumerate(places(tree)) for n, _ in enumerate(changes(node))]


def mutant(tree: ast.Module, k: int, n: int) -> Mutant:
    other = copy.deepcopy(tree)
    twin: Any = next(each for j, each in enumerate(places(other)) if j == k)
    before, line = ast.unparse(twin), getattr(twin, "lineno", 0)
    list(changes(twin))[n](twin)
    after = "nothing" if getattr(twin, "dropped", False) else ast.unparse(twin)
    short = [text.splitlines()[0][:90] for text in (before, after)]
    return Mutant(line, "  ->  ".join(short), ast.fix_missing_locations(_Drop().visit(other)))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The modules that a file names."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return frozenset(names)


def file_of(module: str) -> Path:
    return ROOT / Path(*module.split(".")).with_suffix(".py")


def tests_of(module: str) -> list[Path]:
    """The files of unit and numerics tests that name a module; else its vocabularies, or the modules that import it."""
    files = [path for folder in ("unit", "numerics") for path in (ROOT / "tests" / folder).glob("test_*.py")]
    if direct := [path for path in files if module in imported(path)]:
        return sorted(direct, key=lambda path: (path.stem != f"test_{module.split('.')[-1]}", path.stat().st_size))
    vocabularies = {name for path in files for name in imported(path) if file_of(name).is_relative_to(ROOT / "tests")}
    naming = {name for name in vocabularies if file_of(name).is_file() and module in imported(file_of(name))}
    if not naming:  # a part of modules that have tests
        package = [path for path in (ROOT / "zofl_mpi").rglob("*.py") if module in imported(path)]
        naming = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in package}
    return sorted((path for path in files if naming & imported(path)), key=lambda path: path.stat().st_size)


def meet(module: str, mutant: Mutant | None, files: list[Path], limit: float) -> str:
    """What became of a mutant: "killed", "survived", or "no end"; without one whether the tests pass: "survived"."""
    if not (child := os.fork()):
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os._exit(_tried(module, mutant, files))
    ends = time.monotonic() + limit
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < ends:
        time.sleep(0.05)
    if ended == (0, 0):
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "no end"
    return "survived" if ended[1] == 0 else "killed"


def _tried(module: str, mutant: Mutant | None, files: list[Path]) -> int:
    import pytest

    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        if mutant and name == module:
            return compile(mutant.tree, str(file_of(module)), "exec")
        return plain(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    try:
        words = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]
        return int(pytest.main([*words, *map(str, files)]))
    except BaseException:
        return 1


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=FOLDERS, help="folders and files of zofl_mpi/")
    parser.add_argument("--number", type=int, default=20, help="mutants of a module")
    parser.add_argument("--every", action="store_true", help="all mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--files", type=int, help="meet so many files of tests at most, the module's own first")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a mutant")
    flags = parser.parse_args(words)
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "analysis")]
    for library in ("numpy", "h5py", "torch", "scipy.stats", "pandas", "pytest"):
        importlib.import_module(library)  # once, before the forks; nothing of the package
    whole = [0, 0]
    for place in (ROOT / "zofl_mpi" / each for each in flags.places):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            files, tree = tests_of(module)[: flags.files], ast.parse(path.read_text())
            every = faults(tree)
            if not files or not every or meet(module, None, files, flags.limit) != "survived":
                why = "the tests fail as it is" if files and every else "none tried"
                print(f"{module}: {len(every)} mutants, {len(files)} files of tests; {why}", flush=True)
                continue
            chosen = every if flags.every else random.Random(flags.seed).sample(every, min(len(every), flags.number))
            ends = [(each, meet(module, each, files, flags.limit)) for each in (mutant(tree, *at) for at in chosen)]
            killed = sum(end != "survived" for _, end in ends)
            print(f"{module}: {killed} of {len(ends)} killed, of {len(every)}; {len(files)} files", flush=True)
            for each in sorted((each for each, end in ends if end == "survived"), key=lambda each: each.line):
                print(f"    {path.name}:{each.line}  {each.what}", flush=True)
            whole = [whole[0] + killed, whole[1] + len(ends)]
    print(f"{whole[0]} of {whole[1]} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
