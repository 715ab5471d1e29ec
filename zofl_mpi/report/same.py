"""Compare results bit by bit, without their timings.

    zofl-same RESULT.h5 OTHER.h5 [MORE.h5 ...]       # differences from the first; exit status 1 if there are any

If bits differ, it lists possible causes: other flags, data, kernels, processors or libraries. Two results without any
finished round are not called equal (exit status 1). python -m zofl_mpi.report.same is the same.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.errors import UserError, plain, printing, refused
from zofl_mpi.run.command.flags import changes
from zofl_mpi.run.loop.screen import columns, reflow, show
from zofl_mpi.run.records import Run, load

CLOCKS = {"seconds"}
"""Columns of /rounds with timings."""
ELSEWHERE = " (in other rounds)"
"""Suffix of a column that is equal where both have values: a stopped run has an extra evaluation."""


def differences(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> list[str]:
    """Names of the differences between two results: steps, /final/*, /rounds/* without timings, /clients/*.

    UserError: a file is no result, or cannot be read.
    """
    return compared(load(one), load(other))


def compared(a: Run, b: Run) -> list[str]:
    """The names of `differences`."""
    pairs = [("final", a.final, b.final), ("rounds", a.rounds, b.rounds), ("clients", a.clients, b.clients)]
    found = [] if a.steps == b.steps else [f"steps: {a.steps} and {b.steps}"]
    for group, left, right in pairs:
        for name in sorted(left.keys() | right.keys()):
            if name in CLOCKS:
                continue
            if name not in left or name not in right or bits(left[name]) != bits(right[name]):
                elsewhere = group == "rounds" and name in left and name in right and agree(left[name], right[name])
                found.append(f"{group}/{name}{ELSEWHERE if elsewhere else ''}")
    return found


def circumstances(a: Run, b: Run) -> Iterator[str]:
    """Yield differences of two runs that may change bits: flags, data, kernel, processor, libraries, code."""
    names = [name for name in {**a.config, **b.config} if a.config.get(name) != b.config.get(name)]
    if names:
        yield f"other runs: {changes(names, a.config, b.config)}"
    for words, key in (("data", "data"), ("kernel", "kernel"), ("commit", "git_commit"), ("MPI", "mpi")):
        left, right = (str(run.attrs.get(key, "not told")) for run in (a, b))
        if left != right:
            yield f"{words} {left} and {right}"
    for words, key in (("processor and BLAS", "blas"), ("device", "device")):
        left, right = (", ".join(sorted(set(json.loads(run.attrs.get(key) or "[]")))) or "not told" for run in (a, b))
        if left != right:
            yield f"{words} {left} and {right}"
    versions = [dict(json.loads(run.attrs.get("versions") or "{}")) for run in (a, b)]
    for name in sorted({**versions[0], **versions[1]}):
        left, right = (str(own.get(name, "not told")) for own in versions)
        if left != right:
            yield f"{name} {left} and {right}"


def verdict(a: Run, b: Run) -> tuple[str, bool]:
    """One line on the bits of two results, and whether they are the same."""
    if not a.length and not b.length:
        return "nothing to compare: neither result has a finished round", False
    names = compared(a, b)
    rest = [name for name in names if not name.endswith(ELSEWHERE)]
    if not rest:
        return "the same bits" + (", evaluated in other rounds" if names else ""), True
    why = "; ".join(circumstances(a, b)) or "flags, data, kernel, processor and libraries are the same"
    return f"differs in {', '.join(rest)} ({why})", False


def agree(left: NDArray[np.float64], right: NDArray[np.float64]) -> bool:
    """True if two columns have the same bits wherever both have a value."""
    if left.shape != right.shape:
        return False
    both = ~(np.isnan(left) | np.isnan(right))
    return bits(left[both]) == bits(right[both])


def bits(value: object) -> tuple[str, tuple[int, ...], bytes]:
    """Type, shape and bytes of a value: equal for equal bits only; two NaNs of one payload are equal."""
    array = np.asarray(value)
    return array.dtype.str, array.shape, array.tobytes()


@printing
def main(words: Sequence[str] | None = None) -> None:
    """Print a line for each result beside the first; exit status 1 if bits differ, 2 if a file cannot be read."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="zofl-same", description=reflow(__doc__ or "", columns()), formatter_class=form
    )
    parser.add_argument("result", help="an HDF5 result")
    parser.add_argument("others", nargs="+", metavar="other", help="results to compare with it")
    flags = parser.parse_args(words)
    try:
        first, others = load(flags.result), [load(other) for other in flags.others]
    except UserError as error:
        raise SystemExit(refused(error)) from error
    verdicts = [verdict(first, other) for other in others]
    for path, (words, _) in zip(flags.others, verdicts, strict=True):
        show(f"{path}: {plain(words)}")
    raise SystemExit(int(not all(same for _, same in verdicts)))


if __name__ == "__main__":
    main()
