"""The page on runs from Python: its examples run as they stand, one after the other."""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import zofl_mpi as zofl
from tests.conftest import ROOT, Capsys, Patch

PAGE = ROOT / "zofl_mpi/api/README.md"


def test_the_examples_run_and_say_what_the_page_says(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, str(PAGE), "exec"), names)
    told = capsys.readouterr().out
    assert told.startswith("done ") and "stopped ten rounds are enough" in told
    assert (tmp_path / "a.h5").exists()
    for library, tracker in {"mlflow": names["MLflow"], "wandb": names["WandB"]}.items():  # the libraries: stand-ins
        module = MagicMock()
        monkeypatch.setitem(sys.modules, library, module)
        zofl.simulate("fedavg", "softmax", names["data"], rounds=2, out=f"{library}.h5", callbacks=[tracker()])
        logged = module.log_metrics if library == "mlflow" else module.init.return_value.log
        assert [call.kwargs["step"] for call in logged.call_args_list] == [1, 2]
        (module.end_run if library == "mlflow" else module.init.return_value.finish).assert_called_once_with()
