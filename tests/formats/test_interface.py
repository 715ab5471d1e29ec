"""The public interface: tests/formats/interface.json against the code, the page against both."""

import re
from pathlib import Path

import zofl_mpi
from tests.tools import interface
from zofl_mpi.run.records.hdf5 import FORMAT

PAGE = (Path(__file__).parents[2] / "zofl_mpi/INTERFACE.md").read_text(encoding="utf-8")


def test_the_list_of_the_interface_is_that_of_the_code() -> None:
    """Mutations: a flag, a column, a path or a name that is added, renamed or gone."""
    assert interface.FILE.read_text(encoding="utf-8") == interface.written()


def test_the_page_has_all_names_hooks_and_the_format() -> None:
    """Mutations: a public name or a hook that the page lacks, or one that is gone; another format."""
    paragraphs = {
        title.strip(". "): text for title, text in re.findall(r"\*\*(.+?)\*\*(.*?)(?=\n\n\*\*|\Z)", PAGE, re.S)
    }
    named = set(re.findall(r"`(\w+)`", paragraphs["Names"]))
    assert named == set(zofl_mpi.__all__)
    hooks = interface.hooks()
    told = set(re.findall(r"`([^`]+)`", paragraphs["Functions of a method"])) - {"--devices"}
    assert told == {*hooks["required"], *hooks["called"], *hooks["provisional"]}
    assert f"have format {FORMAT};" in paragraphs["Files"]
