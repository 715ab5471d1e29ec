"""The page on runs from Python: its examples run as they stand, one after the other."""

import re
from pathlib import Path

from tests.conftest import ROOT, Capsys, Patch

PAGE = ROOT / "zofl_mpi/api/README.md"


def test_the_examples_run_and_say_what_the_page_says(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    told = capsys.readouterr().out
    assert told.startswith("done ") and "stopped ten rounds are enough" in told
    assert (tmp_path / "a.h5").exists()
