"""What jobs/c_table2_full.toml takes, from samples a second: [C] Table II until 80 %."""

from pathlib import Path

from tests.gpu.report import Bench
from zofl_mpi.run.grid import file

GRID = Path(__file__).resolve().parents[2] / "jobs" / "c_table2_full.toml"
SHARES = {"SFLV2": 259.44 / 709.93, "CSE-FSL": 259.44 / 726.46}
"""[C] Table II: HERON's peak memory over theirs."""
ROUNDS = {"heron": 20, "heron-frozen": 20, "sflv1": 49, "sflv2": 16, "cse_fsl": 21, "fsl_sage": 20}
"""Of [C], until 80 %: its bytes over those of a round; the control has none there, and is given HERON's."""
LIKE = {"heron": "HERON", "heron-frozen": "HERON", "sflv1": "SFLV1", "sflv2": "SFLV2"}
"""Whose samples a second a run has; those that are not here have CSE-FSL's, FSL-SAGE without its alignments."""
TRAIN, TEST = 50_000, 10_000


def hours(rates: dict[str, float], forward: float) -> dict[str, float]:
    """Hours of parts of the grid, a run after the other in one process on one device.

    Args:
        rates: samples a second of clients and server together, by method.
        forward: samples a second of an evaluation.
    """
    grid = file.read(GRID)

    def of(method: str, rounds: int) -> float:
        return rounds * (TRAIN / rates[LIKE.get(method, "CSE-FSL")] + TEST / forward) / 3600

    whole = [(str(run.coordinates["method"]), int(run.flags["rounds"])) for run in grid.runs]
    seeds, both = len(grid.axes["seed"]), ("heron", "heron-frozen")
    return {
        "HERON and its frozen control, one seed, until 80 %": sum(of(name, ROUNDS[name]) for name in both),
        "all six methods, one seed, until 80 %": sum(of(name, rounds) for name, rounds in ROUNDS.items()),
        "all six methods, one seed, whole": sum(of(*run) for run in whole) / seeds,
        f"the grid, {len(whole)} runs": sum(of(*run) for run in whole),
    }


def predicted(bench: Bench, rates: dict[str, float], forward: float) -> None:
    """The hours, and whether Table II's 80 % are there within one."""
    for name, value in hours(rates, forward).items():
        title = f"jobs/c_table2_full.toml: {name}"
        if name.startswith("HERON"):
            bench.demand(title, value, "at most", 1, "h")
        else:
            bench.figure(title, value, "h")
