"""Figures that are drawn again from the kept tables, and which figures are kept."""

import re
from pathlib import Path
from typing import Any

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


def test_a_kept_figure_is_shown_or_linked_by_a_page() -> None:
    """Mutations: a figure that no page shows; a PDF; a page whose figure is gone."""
    shown = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\((\S+\.png)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.resolve() for path in KEPT.rglob("*.png")} == {path for path in shown if path.is_relative_to(KEPT)}
