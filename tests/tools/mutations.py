"""How many small faults of the package the tests find: mutants of one place each, and the share of them that is killed.

    python -m tests.tools.mutations                           10 mutants of each module of FOLDERS
    python -m tests.tools.mutations --every engine/fleet.py   all of a module
    python -m tests.tools.mutations --record FILE             keep in FILE which test runs which lines, or read it there

The tests of tests/unit and tests/numerics are collected once and run once, with the lines that each runs. A mutant is a
fork of that process with other code in its functions, and meets the tests that run its line, quickest first, up to
`--seconds` seconds in all. It is killed by the first that fails, or takes ten times as long. What is not in functions
(fields, constants) is imported anew with its fault. Tests that start processes do not see a mutant: a share is a lower
bound of what the suite kills. Each survivor is printed: a test that is missing, or another way to say the same.

Which mutants are drawn depends on the text of their function alone: of two states of the package they are the same ones
wherever the code is. Remove FILE when the package has changed; tests that it lacks are added.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import importlib.machinery
import itertools
import json
import mmap
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from tests.tools.mutants import Mutant, faults, mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "zofl_mpi") + os.sep
FOLDERS = ("numerics", "rounds", "methods", "clients", "engine/mean.py", "engine/fleet.py", "run/devices")
FLAGS = "zofl_mpi/run/command/flags.py"  # which reads the fields of all classes
OF_FIELDS = ("tests/unit/test_defaults.py", "tests/unit/test_ranges.py")  # which read them while they are collected
TRACED_CALLS = 200  # of a function in a test: the later ones seldom run other lines
MEMORY = 6 << 30  # bytes of data of a fork: a fault may ask for all there is


def file_of(module: str) -> Path:
    path = ROOT / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def kind_of(mutant: Mutant) -> str:
    """Mutants of a kind are killed by the same tests: of a module's functions, and of all fields and constants."""
    return mutant.module if mutant.place.in_function else ""


def codes(code: CodeType) -> Iterator[tuple[Any, CodeType]]:
    """The code of all functions in a module's, each with its name, its line and its number there."""
    seen, waiting = Counter[Any](), [code]
    while waiting:
        for each in (each for each in waiting.pop(0).co_consts if isinstance(each, CodeType)):
            seen[key := (each.co_qualname, each.co_firstlineno)] += 1
            yield (*key, seen[key]), each
            waiting.append(each)


def live_functions() -> dict[CodeType, list[FunctionType]]:
    """The functions of the package that exist, by their code."""
    gc.unfreeze()
    found = defaultdict[CodeType, list[FunctionType]](list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(PACKAGE):
            found[each.__code__].append(each)
    gc.freeze()
    return found


def entries(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


class Tracer:
    """Which lines of the package run, and which of its functions; by the addresses of code, whose hashes take long."""

    def __init__(self) -> None:
        self.codes = dict[int, CodeType]()
        self.calls = Counter[int]()
        self.lines = set[tuple[int, int]]()

    def __enter__(self) -> "Tracer":
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or self.calls[id(code)] >= TRACED_CALLS:
            return None
        self.calls[id(code)] += 1
        self.codes[id(code)] = code
        return self._ran

    def _ran(self, frame: Any, event: str, arg: Any) -> Any:
        self.lines.add((id(frame.f_code), frame.f_lineno))
        return self._ran

    def by_file(self) -> dict[str, list[int]]:
        found = defaultdict[str, set[int]](set)
        for code, line in self.lines:
            found[self.codes[code].co_filename].add(line)
        return {str(Path(name).relative_to(ROOT)): sorted(lines) for name, lines in found.items()}


def forked(body: Callable[[], int], limit: float) -> int | None:
    """What a fork's function returns; -signal of what ended it, None for the limit (seconds)."""
    if not (child := os.fork()):
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        status = 1
        try:
            status = body()
        finally:
            os._exit(status)
    ends = time.monotonic() + limit
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < ends:
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if ended == (0, 0):
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(ended[1])


class Chosen(NamedTuple):
    """A test that a mutant meets, and the seconds that it takes."""

    name: str
    seconds: float

    @property
    def limit(self) -> float:
        return 5 + 10 * self.seconds


def limit_of(chosen: list[Chosen]) -> float:
    return 60 + sum(each.limit for each in chosen)


def run_items(session: Any, items: list[Any], chosen: list[Chosen], at: mmap.mmap) -> int:
    """Run collected tests up to the first that fails: 0 if none does, else 1 with its number in `at`."""
    for k, (item, each) in enumerate(zip(items, chosen, strict=True)):
        at[:4] = k.to_bytes(4, "little")
        signal.setitimer(signal.ITIMER_REAL, each.limit)
        following = items[k + 1] if k + 1 < len(items) else None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return 1
    return 0


class Anew:
    """A plugin of pytest: of the collected tests those that are chosen, in their order."""

    def __init__(self, chosen: list[Chosen], at: mmap.mmap) -> None:
        self.chosen, self.at = chosen, at

    def pytest_runtestloop(self, session: Any) -> bool:
        named = {item.nodeid: item for item in session.items}
        if session.testsfailed or run_items(session, [named[each.name] for each in self.chosen], self.chosen, self.at):
            os._exit(1)
        os._exit(0)


WORDS = ["-n", "0", "-p", "no:cacheprovider", "-p", "no:terminal", "-m", "not slow and not gpu"]


def imported_anew(mutant: Mutant | None, chosen: list[Chosen], at: mmap.mmap) -> int:
    """Import a mutant, and whatever the tests need, in this process."""
    import pytest

    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, name: str) -> Any:
        if mutant and name == mutant.module:
            return compile(mutant.tree, str(file_of(name)), "exec")
        return plain(self, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    with tempfile.TemporaryDirectory() as folder:
        files = dict.fromkeys(each.name.split("::")[0] for each in chosen)
        pytest.main([*WORDS, f"--basetemp={folder}/tests", *files], plugins=[Anew(chosen, at)])
    return 1  # nothing was collected


class Warm:
    """A plugin of pytest in a process that has all tests: meets each module's mutants."""

    def __init__(self, flags: argparse.Namespace, ask: Any, out: Any, at: mmap.mmap) -> None:
        self.flags, self.ask, self.out, self.at = flags, ask, out, at
        self.imports = Tracer()
        self.kills = Counter[tuple[str, str]]()
        self.sound = dict[str, bool]()
        self.anew = dict[str, int | None]()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.imports.__exit__()
        self.at_import = {(code.co_filename, code.co_firstlineno) for code in self.imports.codes.values()}
        self.session, self.items = session, {item.nodeid: item for item in session.items}
        self.functions = live_functions()
        with tempfile.TemporaryDirectory() as folder:
            record = self.flags.record or Path(folder) / "record.jsonl"
            self._record(record)
            self.seconds, self.by_line = self._read(record)
        whole = [0, 0]
        for path in self.flags.files:
            killed, tried = self._module(path)
            whole = [whole[0] + killed, whole[1] + tried]
        print(f"{whole[0]} of {whole[1]} killed", file=self.out, flush=True)
        return True

    def _record(self, record: Path) -> None:
        """Append what is not yet there: a line for each test."""
        known = {each["test"] for each in entries(record)}
        missing = [item for name, item in self.items.items() if name not in known]
        while missing:
            start = time.monotonic()
            forked(partial(self._traced, missing, record), 3600.0)
            known = {each["test"] for each in entries(record)}
            rest = [item for item in missing if item.nodeid not in known]
            seconds = time.monotonic() - start
            print(f"{len(missing) - len(rest)} tests recorded in {seconds:.0f} s", file=self.out, flush=True)
            if rest:  # the process has ended in this one
                with record.open("a") as file:
                    print(json.dumps({"test": rest[0].nodeid, "seconds": 0, "lines": {}}), file=file)
            missing = rest[1:]

    def _traced(self, items: list[Any], record: Path) -> int:
        for item, following in zip(items, [*items[1:], None], strict=True):
            failed, start = self.session.testsfailed, time.perf_counter()
            with Tracer() as tracer:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds = time.perf_counter() - start
            lines = tracer.by_file() if failed == self.session.testsfailed else {}
            with record.open("a") as file:
                print(json.dumps({"test": item.nodeid, "seconds": round(seconds, 4), "lines": lines}), file=file)
        return 0

    def _read(self, record: Path) -> tuple[dict[str, float], dict[str, dict[int, list[str]]]]:
        """{test: seconds} and {file: {line: tests}}."""
        seconds, by_line = dict[str, float](), defaultdict[str, dict[int, list[str]]](lambda: defaultdict(list))
        for each in entries(record):
            if each["test"] in self.items:
                seconds[each["test"]] = each["seconds"]
                for name, line in ((name, line) for name, lines in each["lines"].items() for line in lines):
                    by_line[name][line].append(each["test"])
        return seconds, by_line

    def _chosen(self, mutant: Mutant) -> list[Chosen]:
        """The tests that run a mutant, or may read its fields: those that have killed others of its kind, then of each
        function with its parameters the quickest, the second, and so on.
        """
        by_line = self.by_line[str(file_of(mutant.module).relative_to(ROOT))]
        tests = set[str]()
        for lines in mutant.lines if mutant.place.in_function else [by_line]:
            tests = tests or set(itertools.chain.from_iterable(by_line.get(line, []) for line in lines))
        if not mutant.place.in_function:
            tests.update(*self.by_line[FLAGS].values(), (each for each in self.items if each.startswith(OF_FIELDS)))
        quickest = sorted((each for each in tests if self.sound.get(each, True)), key=self.seconds.__getitem__)
        rank, seen = dict[str, float](), Counter[str]()
        for each in quickest:
            seen[function := each.partition("[")[0]] += 1
            likely = self.kills[kind_of(mutant), each] + each.startswith(OF_FIELDS)
            rank[each] = seen[function] / (1 + likely)
        ordered = sorted(quickest, key=rank.__getitem__)
        ends = itertools.accumulate(self.seconds[each] for each in ordered)
        within = [each for each, end in zip(ordered, ends, strict=True) if end <= self.flags.seconds]
        return [Chosen(each, self.seconds[each]) for each in within or ordered[:1]]

    def _run(self, chosen: list[Chosen], changed: Sequence[tuple[FunctionType, CodeType]] = ()) -> int:
        for each, new in changed:
            each.__code__ = new
        return run_items(self.session, [self.items[each.name] for each in chosen], chosen, self.at)

    def _anew(self, mutant: Mutant | None, chosen: list[Chosen]) -> int | None:
        self.ask.send((mutant, chosen))
        return self.ask.recv()  # type: ignore[no-any-return]

    def _meet(self, mutant: Mutant, chosen: list[Chosen]) -> int | None:
        """0: survived."""
        plain = compile(ast.parse(file_of(mutant.module).read_text()), str(file_of(mutant.module)), "exec")
        other = dict(codes(compile(mutant.tree, plain.co_filename, "exec")))
        pairs = [(old, other.get(key)) for key, old in codes(plain)]
        changed = [(each, new) for old, new in pairs if new and new != old for each in self.functions.get(old, [])]
        changed = [(each, new) for each, new in changed if each.__code__.co_filename == plain.co_filename]
        fits = all(len(each.__code__.co_freevars) == len(new.co_freevars) for each, new in changed)
        if mutant.place.in_function and changed and fits:
            end = forked(partial(self._run, chosen, changed), limit_of(chosen))
            before = {(each.__code__.co_filename, each.__code__.co_firstlineno) for each, _ in changed}
            if end != 0 or not before & self.at_import:
                return end
        if mutant.module not in self.anew:
            self.anew[mutant.module] = self._anew(None, chosen[:3])
        if self.anew[mutant.module] != 0:
            print(f"{mutant.module}: imported anew, its tests fail as it is", file=self.out)
            return 0
        return self._anew(mutant, chosen)

    def _end(self, mutant: Mutant) -> str:
        while chosen := self._chosen(mutant):
            self.at[:4] = bytes(4)
            if (end := self._meet(mutant, chosen)) == 0:
                return f"survived {len(chosen)} tests"
            met = chosen[: int.from_bytes(self.at[:4], "little") + 1]
            test = met[-1]
            if test.name not in self.sound:  # a test that fails without a fault, too, kills nothing
                self.sound[test.name] = forked(partial(self._run, met), limit_of(met)) == 0
            if self.sound[test.name]:
                self.kills[kind_of(mutant), test.name] += 1
                return f"killed by {test.name}" + (" (no end)" if end in (None, -signal.SIGALRM) else "")
        return "survived, no test runs it"

    def _module(self, path: Path) -> tuple[int, int]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree, start = ast.parse(path.read_text()), time.monotonic()
        every = faults(tree, self.flags.seed)
        drawn = [mutant(module, tree, *at) for at in every[: None if self.flags.every else self.flags.number]]
        if not drawn:
            return 0, 0
        ends = [(each, self._end(each)) for each in drawn]
        killed = sum(end.startswith("killed") for _, end in ends)
        seconds = f"{time.monotonic() - start:.0f} s"
        print(f"{module}: {killed} of {len(ends)} killed, of {len(every)}; {seconds}", file=self.out)
        for each, end in sorted(ends, key=lambda pair: pair[0].place.node.lineno):
            if self.flags.verbose or end.startswith("survived"):
                where = f"{path.name}:{each.place.node.lineno}{' in ' * bool(each.place.owner)}{each.place.owner[1:]}"
                print(f"    {where}  {each.what}  [{end}]", file=self.out)
        self.out.flush()
        return killed, len(ends)


def warm(flags: argparse.Namespace, ask: Any, at: mmap.mmap) -> int:
    import pytest

    out = os.fdopen(os.dup(1), "w")
    plugin = Warm(flags, ask, out, at)
    with tempfile.TemporaryDirectory() as folder, plugin.imports:
        os.dup2(2, 1)  # pytest's own words
        words = [*WORDS, f"--basetemp={folder}/tests", "tests/unit", "tests/numerics"]
        return int(pytest.main(words, plugins=[plugin]))


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", default=FOLDERS, help="folders and files of zofl_mpi/")
    parser.add_argument("--number", type=int, default=10, help="mutants of a module")
    parser.add_argument("--every", action="store_true", help="all mutants")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the tests that a mutant meets")
    parser.add_argument("--record", type=Path, help="a file for which test runs which lines")
    parser.add_argument("--verbose", action="store_true", help="print those that are killed, and by what")
    flags = parser.parse_args(words)
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path[:0] = [str(ROOT), str(ROOT / "analysis")]
    for library in ("numpy", "h5py", "torch", "scipy.stats", "pandas", "pytest"):
        importlib.import_module(library)  # once, before the forks; nothing of the package
    found = (ROOT / "zofl_mpi" / each for each in flags.places)
    flags.files = [path for place in found for path in (sorted(place.rglob("*.py")) if place.is_dir() else [place])]
    at = mmap.mmap(-1, 4)
    ours, theirs = multiprocessing.Pipe()
    if not (child := os.fork()):
        ours.close()
        os._exit(warm(flags, theirs, at))
    theirs.close()
    with contextlib.suppress(EOFError):
        while True:
            mutant, chosen = ours.recv()
            ours.send(forked(partial(imported_anew, mutant, chosen, at), limit_of(chosen)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
