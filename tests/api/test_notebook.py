"""The notebook of analysis/ runs as it stands."""

import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import LIMIT, ROOT, Patch, environment

BOOK = ROOT / "analysis/tutorial.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_says_which_method_wins_and_repeats_it_on_ranks(tmp_path: Path, monkeypatch: Patch) -> None:
    """Mutations: a script whose ranks have other data; a figure that is not drawn; outputs that are committed."""
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    book = nbformat.read(BOOK, as_version=4)
    assert all(not cell.outputs for cell in book.cells if cell.cell_type == "code")
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "FedAvg leads by " in said and " directions per parameter" in said  # who wins is the processor's, too
    assert "done 0." in said and "ranks.h5: the same bits" in said
    assert any("image/png" in output.get("data", {}) for output in outputs)
    subprocess.run(["bash", "-n", str(tmp_path / "study.sbatch")], check=True, timeout=LIMIT)
