"""Figures that are drawn again from the kept tables, and which figures are kept."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.analysis.quotes import KEPT
from tests.conftest import ROOT


def laid_out(figure: Figure, name: Path, **options: Any) -> None:
    """In the place of savefig: the figure is laid out, for one of its two formats, and the file is empty."""
    if name.suffix == ".png":
        figure.draw_without_rendering()
    name.touch()


PAGES = [*KEPT.glob("*.md"), ROOT / "README.md"]


def test_figures_are_drawn_from_the_kept_tables(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else is written. Mutations: a table's column that a figure no longer finds; a table written, too."""
    (tmp_path / "scaling").mkdir()
    before = {path: path.stat().st_mtime_ns for path in KEPT.rglob("*.*")}
    monkeypatch.setattr(Figure, "savefig", laid_out)
    script("redraw").main(["--out", str(tmp_path)])
    drawn = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
    assert drawn == {f"{name}.png" for name in script("redraw").DRAWN}
    assert drawn <= {path.relative_to(KEPT).as_posix() for path in KEPT.rglob("*.png")}
    assert before == {path: path.stat().st_mtime_ns for path in KEPT.rglob("*.*")}


def test_the_map_has_each_cell_of_its_table_once(script: Any) -> None:
    """Mutations: another federation's cells; the row without small devices, the same in each panel."""
    cells = script("redraw").table("d_lean_map")
    shown = [c for c in cells if c["data"] == "mnist" and c["small"]]
    figure = script("redraw").lean_map("mnist")
    words = sorted(text.get_text() for panel in figure.axes for text in panel.texts)
    short = [c["best"].partition(",")[0].replace("last stage exact", "exact") for c in shown]
    assert words == sorted(f"{name}\n{c['deviations']:.1f}" for name, c in zip(short, shown, strict=True))


def dots(panel: Any) -> dict[float, float]:
    """{row: value} of the dots of a panel of `totals.draw`."""
    return {round(y): x for line in panel.lines if line.get_marker() == "o" for x, y in line.get_xydata()}


def test_methods_stand_less_heron(script: Any) -> None:
    """The means are those of the accuracies. Mutations: HERON less the method; the other setting's rows."""
    rows = [row for row in script("redraw").table("c_fig2") if row["method"] != "heron-still"]
    panels = script("redraw").DRAWN["c_fig2_less"]().axes
    for panel, setting in ((panels[1], "iid"), (panels[3], "alpha0.3")):
        ends = [row["accuracy_mean_percent"] for row in rows if row["setting"] == setting]
        assert [dots(panel)[k] for k in range(len(ends))] == pytest.approx([end - ends[0] for end in ends], abs=1e-9)


def test_lean_clients_stand_with_their_own_minutes(script: Any) -> None:
    """Mutations: sensors' minutes; another uplink's; those to the high target; of the other case."""
    redraw = script("redraw")
    ways = [r["way"] for r in redraw.table("d_lean") if (r["data"], r["classes"], r["small"]) == ("mnist", "apart", 6)]
    key = {"data": "mnist", "classes": "apart", "small": 6, "federation": "phones", "uplink": 1e6}
    times = {r["way"]: r for r in redraw.table("d_lean_virtual") if key.items() <= r.items()}
    want = {k: times[way]["minutes_to_low_mean"] for k, way in enumerate(ways)}
    assert dots(redraw.lean("mnist").axes[6]) == {k: value for k, value in want.items() if value == value}


def test_points_that_would_lie_on_each_other_are_set_apart(script: Any) -> None:
    """Each keeps its height, and moves sideways no further than there are others. Mutations: half the distance; the
    first moved, too."""
    figures = script("shared.figures")
    panel = figures.plt.figure(dpi=72).gca()
    panel.set(xscale="log", xlim=(0.01, 100), ylim=(0, 1))
    moved = figures.apart(panel, [1, 1, 1, 1, 10], [0.5, 0.5, 0.5, 0.9, 0.5], size=6)
    across = panel.transData.transform(np.column_stack([moved, np.zeros(5)]))[:, 0]
    assert moved[[0, 3, 4]] == pytest.approx([1, 1, 10])
    assert np.abs(across[[1, 2]] - across[0]).min() >= 6 - 1e-6 and np.abs(across[[1, 2]] - across[0]).max() < 9


def test_bars_of_pays_are_intervals_of_the_lead(script: Any) -> None:
    """t sd/sqrt(n) over the gap. Mutations: the deviation itself; n of another row; the gap's sign."""
    pays = script("pays")
    row = {"directions_per_parameter": 1.0, "share_percent": 50.0, "method": "FedRZO", "setting": "a", "ahead_sd": 3.0}
    panel = pays.figures.plt.figure().gca()
    panel.set(xlim=(0, 2), ylim=(0, 100))
    pays.points(panel, [row | {"seeds": 3, "first_order": 0.0, "control": 40.0}])
    ((_, low), (_, high)) = panel.collections[0].get_segments()[0]
    assert (high - low) / 2 == pytest.approx(100 * 4.302653 * 3 / 3**0.5 / 40, rel=1e-5)


def test_a_kept_figure_is_shown_or_linked_by_a_page() -> None:
    """Mutations: a figure that no page shows; a PDF; a page whose figure is gone."""
    shown = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\((\S+\.png)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.resolve() for path in KEPT.rglob("*.png")} == {path for path in shown if path.is_relative_to(KEPT)}
