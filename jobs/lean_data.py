"""Data of jobs/d_lean.toml: 12,000 samples of a data set, whose clients with small devices hold three classes alone.

    python jobs/lean_data.py mnist fashion-mnist cifar10 --data-dir data

writes results/d_lean/data/NAME-L.npz for L = 0, 3, 6, 9 of 10 clients with small devices, for --partition natural.
Clients have equally many samples. Those of the last three classes are dealt out to the clients 0 to L - 1 alone, and
the others to all until they have their number. With L = 0 all hold the same mix.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import sources
from zofl_mpi.engine.streams import Streams
from zofl_mpi.paths import new_file

FOLDER = Path("results/d_lean/data")
CLIENTS, EACH, LACKED = 10, 1200, (7, 8, 9)
SMALL = (0, 3, 6, 9)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="lean_data", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", help="data sets: mnist, fashion-mnist, cifar10")
    parser.add_argument("--data-dir", type=Path, help="the folder with the data sets' files")
    flags = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in flags.names:
        raw = sources.find_sources(name, flags.data_dir, Streams(0)).read()
        rows = np.random.default_rng(0).permutation(len(raw.labels))
        rows = np.concatenate([rows[raw.labels[rows] == label][: CLIENTS * EACH // 10] for label in range(10)])
        x, y = raw.inputs[rows], raw.labels[rows]
        side = round((x.shape[1] / raw.channels) ** 0.5)
        for small in SMALL:
            path = FOLDER / f"{name}-{small}.npz"
            with new_file(path, "", force=True) as made:
                np.savez(made, x=x.reshape(-1, raw.channels, side, side), y=y, client=clients(y, small))
            print(path)


def clients(labels: NDArray[np.int64], small: int) -> NDArray[np.int64]:
    """(N,) whose each sample is, where the last classes are the first `small` clients' alone; 0: everybody's."""
    generator = np.random.default_rng(1)
    owners = np.full(len(labels), -1)
    lacked = np.flatnonzero(np.isin(labels, LACKED)) if small else np.empty(0, np.int64)
    for i, share in enumerate(np.array_split(generator.permutation(lacked), max(small, 1))):
        owners[share] = i
    left = EACH - np.bincount(owners[owners >= 0], minlength=CLIENTS)
    owners[owners < 0] = generator.permutation(np.repeat(np.arange(CLIENTS), left))
    return owners


if __name__ == "__main__":
    main()
