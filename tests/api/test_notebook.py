"""The notebook of analysis/ runs as it stands."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_runs_stops_early_and_draws(tmp_path: Path) -> None:
    """A method of a cell on data in memory. Mutations: early stopping that never stops; a class that a cell cannot
    make; outputs that are committed."""
    book = nbformat.read(ROOT / "analysis/tutorial.ipynb", as_version=4)
    assert all(not cell.outputs for cell in book.cells if cell.cell_type == "code")
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "stopped test_accuracy has not been better than" in said
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert (tmp_path / "fedsgd.h5").exists()
