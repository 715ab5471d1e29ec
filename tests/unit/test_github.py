"""What a repository's host reads: the workflow, the forms for issues, the pages on contributing and security."""

import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def test_the_workflow_runs_what_a_developer_runs() -> None:
    """Mutations: a command of its own in place of .ci/run; rights to write; a name of a file that is not there."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert (ROOT / ".ci/run").read_text().rstrip().endswith('/../tests/run.sh"')


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_is_complete_and_names_commands_that_exist(form: Path) -> None:
    """Mutations: two fields of one name; a field without a label; a kind that no form has; a renamed module."""
    text = form.read_text()
    read = yaml.safe_load(text)
    assert {"name", "description", "labels", "body"} == read.keys()
    names = [field["id"] for field in read["body"]]
    assert len(set(names)) == len(names) and len(FORMS) >= 3
    assert all(field["type"] in KINDS and field["attributes"]["label"] for field in read["body"])
    for module in re.findall(r"python -m (zofl_mpi[\w.]*)", text):
        place = ROOT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module


def test_nothing_there_has_an_address_that_is_invented() -> None:
    """The repository has none yet. Mutation: a badge; a mail address; a link to a host."""
    pages = [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    assert not [path for path in (*pages, ROOT / "README.md") if re.search(r"://|\w@\w+\.\w", path.read_text())]
