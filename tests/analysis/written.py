"""Made-up results of grids, and what the scripts make of them: texts, tables and drawn lines, kept in `written/`.

The results are numbers from a generator that each run's name seeds: no training, the same on every processor. What the
scripts write of them must come out again. Where it may not,

    python -m tests.analysis.written [NAME ...]

writes it anew; the commit then says which numbers moved, and why.
"""

import csv
import importlib
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.analysis.made import PAPER, grid_files
from tests.conftest import ROOT
from zofl_mpi.rounds.split.costs import RECOMPUTED, STEP_BYTES, STEP_COUNTED, STEP_MACS
from zofl_mpi.run import grid, records
from zofl_mpi.run.grid import file

KEPT = ROOT / "tests/analysis/written"
COSTS = (STEP_MACS, STEP_BYTES, STEP_COUNTED, STEP_COUNTED + RECOMPUTED, STEP_BYTES + RECOMPUTED)
SAMPLE_MACS = "multiply-accumulates of a sample at the client"
Case = tuple[str, list[Path], list[str], Mapping[str, list[str]]]
"""A script, its grids, its further words, and {axis: the entries of a grid that are read}, all of others."""


def small(script: str, name: str, *words: str) -> Case:
    """A case with a grid of `tests/analysis/grids`."""
    return script, grid_files(name), list(words), {}


def jobs(script: str, *names: str, **only: list[str]) -> Case:
    """A case with a part of grids in `jobs`."""
    return script, [ROOT / "jobs" / f"{name}.toml" for name in names], [], only


CASES: dict[str, Case] = {
    "a_budget": small("a_budget", "a_table"),
    "a_fig1": small("a_fig1", "a_table"),
    "a_fig2": small("a_fig2", "a_taus"),
    "a_personal": ("a_personal", grid_files("a_personal")[:2], [], {}),
    "a_readings": small("a_readings", "a_readings"),
    "a_shares": jobs("a_shares", "a_shares", cell=["share-0.001+n-170", "share-0.01+n-170+lacks-3"]),
    "a_table1": small("a_table1", "a_table"),
    "a_tuned": small("a_tuned", "a_steps"),
    "b_fednest": small("b_fednest", "b_fednest"),
    "b_fig1": small("b_fig1", "b_figure"),
    "b_fig1_sum": small("b_fig1", "b_scales", "--rows", "H", "--lines", "reading", "--column", "test_loss", "--log"),
    "b_fig2": small("b_fig2", "b_levels"),
    "b_methods": small("b_methods", "b_methods"),
    "c_budget": small("c_budget", "c_methods"),
    "c_bytes": jobs("c_bytes", "c_hiso", "c_bytes", method=["fedavg", "fedavg-topk", "hiso", "heron"]),
    "c_fig2": small("c_fig2", "c_methods"),
    "c_fig3": small("c_fig3", "c_clients"),
    "c_fig4": small("c_fig4", "c_estimates"),
    "c_fig5": small("c_fig5", "c_lm"),
    "c_fig6": small("c_fig6", "c_lm_depth"),
    "c_lm_tuned": small("c_lm_tuned", "c_lm_steps"),
    "c_pays": small("c_pays", "c_pays"),
    "c_pays_search": jobs("c_pays_search", "c_pays_search"),
    "c_table2": small("c_table2", "c_methods"),
    "l_tuning": jobs("l_tuning", "l_tune"),
    "p_privacy": jobs("p_privacy", "p_privacy", "p_privacy_shares", cell=["fashion-170", "shares"]),
    "r_robust": jobs("r_robust", "r_robust"),
}


# --- results


def made_up(study: grid.Grid, run: grid.GridRun, chosen: bool) -> records.Run:
    """A result of a run: rising accuracies, falling losses, evaluated in some of its rounds; `chosen`: a best step."""
    config = file.resolved(study.module, run.flags)
    draw = np.random.default_rng(zlib.crc32(f"{study.folder.name} {run.name}".encode()))
    R, m = min(int(config["rounds"]), 20), min(int(config.get("m", 5)), 10)
    evaluated = np.arange(R) % max(1, R // 4) == 0
    evaluated[-1] = True

    def column(low: float, high: float) -> Any:
        return np.where(evaluated, np.linspace(low, high, R) + draw.random(R) / 5, np.nan)

    parts = ("test", "personal", "validation", "validation_personal")
    rounds = {f"{part}_accuracy": column(0.3, 0.7) for part in parts}
    losses = "test_loss validation_loss train_loss objective f1 objective_exact objective_nonsmooth test_smooth_loss"
    rounds |= {name: column(2.0, 0.5) for name in (*losses.split(), "test_worst_class_loss")}
    rounds |= {f"{part}_perplexity": column(5.0, 3.0) for part in ("test", "validation")}
    rounds |= {"estimate_cosine": column(0.0, 0.01), "local_loss": 2 - draw.random(R), "seconds": draw.random(R)}
    rounds |= {name: draw.random(R) for name in ("epsilon", "clipped", "signal")}
    counted = ("local_steps", "label_bytes", "server_steps", "lower_steps", "gradients")
    rounds |= {name: draw.integers(1, 50, R).astype(float) for name in counted}
    rounds["steps"] = np.cumsum(draw.integers(1, 9, R)).astype(float)
    if chosen:
        rounds |= {name: rounds[name] + (1 if "acc" in name else -0.3) for name in rounds if name.startswith("val")}
    if not config.get("validation"):
        rounds = {name: values for name, values in rounds.items() if "validation_a" not in name}
    clients = {what: draw.integers(1, 10**6, (R, 2, m)) for what in ("bytes_down", "bytes_up", "messages")}
    kept = dict(zip(COSTS, draw.integers(10**6, 10**8, len(COSTS)).tolist(), strict=True)) | {SAMPLE_MACS: 54321}
    attrs = {"costs": json.dumps(kept), "directions_per_parameter": float(draw.random())}
    final = {"x": draw.random(int(config["n"]) if "n" in config else 17)}
    counts = draw.integers(0, 90, (m, 10))
    return records.Run(run.out, attrs, config, rounds, clients, {}, ("solve", "server"), counts, final, {}, {})


@contextmanager
def made_up_results(only: Mapping[str, list[str]] | None = None, missing: Collection[str] = ()) -> Iterator[None]:
    """Context manager: all runs of a grid with these entries are finished, and no others are read; some are missing.

    Of steps those with several seeds are the best, as in a grid that was run in two parts.
    """

    seeds: dict[int, Counter[str]] = {}

    def without_seed(run: grid.GridRun) -> str:
        return str({**run.coordinates, "seed": ""})

    def finished(study: grid.Grid, run: grid.GridRun) -> records.Run | str:
        if run.name in missing:
            return f"{run.name}: there is no result"
        key = id(study.runs)
        if key not in seeds:
            seeds[key] = Counter(map(without_seed, study.runs))
        return made_up(study, run, seeds[key][without_seed(run)] > 1)

    def read(*given: Any, **named: Any) -> grid.Grid:
        study = file.read(*given, **named)
        kept = (run for run in study.runs if all(run.coordinates[axis] in each for axis, each in (only or {}).items()))
        return replace(study, runs=tuple(kept))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "read", read)
        patch.setattr(grid, "finished", finished)
        yield


# --- what a script writes


def written(name: str, folder: Path) -> str:
    """Text, tables and drawn lines of a case."""
    script, grids, words, only = CASES[name]
    out, told, drawn = folder / "out", StringIO(), list[str]()

    def savefig(figure: Figure, path: Path, **options: Any) -> None:
        if path.suffix == ".png":
            figure.draw_without_rendering()
            drawn.append("\n".join(["# figure", *lines_of(figure)]))
        path.touch()

    with made_up_results(only), redirect_stdout(told), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", savefig)
        patch.setattr(importlib.import_module("shared.paper"), "TABLE_1", PAPER)
        importlib.import_module(script).main(["--grid", *map(str, grids), *words, "--out", str(out)])
    lines = [line for line in told.getvalue().splitlines() if not line.startswith(str(folder))]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    tables = [f"# {path.name}\n{rounded(path)}" for path in sorted(folder.glob("*.csv"))]
    tables += [path.read_text(encoding="utf-8") for path in folder.glob("*.tex")]
    return "\n\n".join([text, *tables, *sorted(drawn)]) + "\n"


def rounded(path: Path) -> str:
    """A CSV, its numbers with nine digits."""
    with path.open(newline="", encoding="utf-8") as table:
        return "\n".join(",".join(map(number, row)) for row in csv.reader(table))


def number(cell: str) -> str:
    """A cell with nine digits, if it is a number."""
    return f"{float(cell):.9g}" if re.fullmatch(r"-?\d+\.\d*(e[-+]\d+)?", cell) else cell


def lines_of(figure: Figure) -> Iterator[str]:
    """What a figure shows, panel by panel: words, scales, and the points of lines, bands, bars and marks."""
    yield "  {:g} x {:g} inches".format(*figure.get_size_inches())
    for panel in figure.axes:
        words = (panel.get_title(loc="left"), panel.get_title(), panel.get_xlabel(), panel.get_ylabel())
        yield " | ".join(filter(None, words)).replace("\n", " / ") or "-"
        for axis in (panel.xaxis, panel.yaxis):
            yield "  {} {:.4g} to {:.4g}".format(axis.get_scale(), *axis.get_view_interval())
        for line in panel.get_lines():
            yield f"  {line.get_label()} {line.get_color()}: {points(line.get_xydata())}"
        for found in panel.collections:
            ways = [path.vertices for path in found.get_paths()] + [found.get_offsets()]
            yield f"  {type(found).__name__}: {points(np.concatenate(ways))}"
        yield from (f"  {text.get_text()!r}" for text in panel.texts)
    for legend in figure.legends:
        yield " | ".join(text.get_text() for text in legend.get_texts())


def points(at: Any) -> str:
    """Points to five digits."""
    return " ".join(f"{x:.5g},{y:.5g}" for x, y in np.asarray(at, np.float64))


def main(names: list[str]) -> None:
    sys.path.insert(0, str(ROOT / "analysis"))
    KEPT.mkdir(exist_ok=True)
    for name in names or CASES:
        with TemporaryDirectory() as folder:
            (KEPT / f"{name}.txt").write_text(written(name, Path(folder)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
