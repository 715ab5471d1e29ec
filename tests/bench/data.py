"""Seconds of what a start does with data, each the least of three: the cache's checks, fingerprints, and by_mix.

    python -m tests.bench.data

An entry of 200 MB is written and synced; prepared and opened again, where its files have notes (as in each later start)
and where they have none; its fingerprint is looked up, and computed from the bytes; 20,000 samples are shared out among
100 clients by mixes of 10 to 1,600 classes.
"""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from zofl_mpi.data import Raw, cache, partition
from zofl_mpi.engine.streams import Streams

TURNS = 3
CLASSES = (10, 100, 400, 1600)


def least(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """The least seconds of `work`, each time after `before`."""
    times = []
    for _ in range(TURNS):
        before()
        since = time.perf_counter()
        work()
        times.append(time.perf_counter() - since)
    return min(times)


def entry(folder: Path) -> None:
    """Measures an entry of the cache."""
    raw = Raw(np.ones((60_000, 3333), np.uint8), np.zeros(60_000, np.int64), 10)
    sources = cache.identify("bench", lambda: raw)
    made = least(lambda: cache.prepare(sources, folder), lambda: shutil.rmtree(folder / sources.key, True))
    print(f"write, sync and check 200 MB   {made:8.4f} s")
    notes = cache.default_cache_dir() / cache.CHECKED
    time.sleep(2 * cache.SETTLED / 1e9)  # a note is kept of a file that has not changed for a second
    for words, before in (("without notes", lambda: shutil.rmtree(notes, True)), ("with notes", lambda: None)):
        print(f"prepare again, {words:<15} {least(lambda: cache.prepare(sources, folder), before):8.4f} s")
    print(f"open                           {least(lambda: cache.open_entry(sources, folder)):8.4f} s")
    print(f"fingerprint, looked up         {least(lambda: cache.open_entry(sources, folder).known):8.4f} s")
    print(f"fingerprint, of all bytes      {least(lambda: raw.known):8.4f} s")


def mixes() -> None:
    """Measures the partition by_mix."""
    for classes in CLASSES:
        pool = np.bincount(Streams(classes)(1).integers(classes, size=20_000), minlength=classes)
        seconds = least(lambda pool=pool: partition._counts_by_mix(pool, Streams(3), 100, 0.3))
        print(f"by_mix, {classes:>5,} classes          {seconds:8.4f} s")


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        entry(Path(folder))
    mixes()


if __name__ == "__main__":
    main()
