"""The configurations of all committed grids, which no change of a default may move.

    python -m tests.analysis.test_defaults

writes tests/analysis/defaults.json anew, after a flag was renamed or removed.
"""

import json
import zlib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import ROOT
from zofl_mpi.run.command.run_flags import CHANGEABLE
from zofl_mpi.run.grid import file

KNOWN = ROOT / "tests/analysis/defaults.json"
GRIDS = sorted(path.name for path in (ROOT / "jobs").glob("*.toml"))


def checksums(name: str) -> dict[str, str]:
    """{flag: checksum of its values in all runs of a grid}; of runs that differ in the seed alone, one counts."""
    grid, values, seen = file.read(ROOT / "jobs" / name, trust=True), defaultdict[str, list[object]](list), set[str]()
    for run in grid.runs:
        own = repr({**run.flags, "seed": 0})
        if own not in seen:
            seen.add(own)
            for flag, value in file.resolved(grid.module, {**run.flags, "seed": 1}).items():
                if flag == "rounds" or flag not in CHANGEABLE:  # no iterate depends on these
                    values[flag].append(value)
    return {flag: f"{zlib.crc32(json.dumps(each).encode()):08x}" for flag, each in sorted(values.items())}


@pytest.mark.parametrize("name", GRIDS)
def test_no_default_moves_a_committed_grid(name: str) -> None:
    """A grid writes down each flag whose default has changed; new flags are no part of what is known.

    Mutation: ZO-HFL's gamma of 0.01 in a_table1.toml taken out."""
    known, now = json.loads(KNOWN.read_text())[name], checksums(name)
    assert {flag: now.get(flag) for flag in known} == known


def test_every_grid_is_known() -> None:
    assert sorted(json.loads(KNOWN.read_text())) == GRIDS


def main() -> None:
    """Writes the file."""
    lines = (f"{json.dumps(name)}: {json.dumps(checksums(name))}" for name in GRIDS)
    Path(KNOWN).write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
