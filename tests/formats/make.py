"""Writes the runs that later versions must open and continue.

    python -m tests.formats.make               # beside this file: NAME.h5 (done), NAME-half.h5 and its checkpoint

Run it once for a format, never for a change of the code: what it wrote is the promise. NAME-half.h5 has the first two
of the four rounds of NAME.h5. All have float64, and so few numbers that the files stay small.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from zofl_mpi.run.records import checkpoint_path

HERE = Path(__file__).parent
COMMON = "--data digits --dtype float64 --device cpu --eval-every 2 --checkpoint-every 2 --quiet"
RUNS = {
    "zo_hfl": "--m 3 --tau 3 --y0 last --gamma 0.5 --kernel numpy",
    "fedrzo": "--m 3 --H 2 --n-p 2 --gamma 0.01",
    "heron_sfl": "--problem split_mlp --m 2 --h 2 --batch 8 --hidden 4 4 --lr-server 0.01",
}
"""{family: flags}; each keeps something at its clients or in its optimisers."""


def command(family: str, rounds: int, out: Path) -> list[str]:
    """The words of a run."""
    words = f"{RUNS[family]} {COMMON} --rounds {rounds} --out".split()
    return [sys.executable, "-m", f"zofl_mpi.{family}", *words, str(out)]


def main() -> None:
    """Writes all files beside this one."""
    with tempfile.TemporaryDirectory() as folder:
        for family in RUNS:
            whole, half = Path(folder, f"{family}.h5"), Path(folder, f"{family}-half.h5")
            for rounds, out in ((4, whole), (2, half)):
                subprocess.run(command(family, rounds, Path(out.name)), cwd=folder, check=True)
            for path in (whole, half, checkpoint_path(half)):
                shutil.copy(path, HERE / path.name)
                print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
