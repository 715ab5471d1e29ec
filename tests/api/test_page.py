"""The page on runs from Python: its examples run as they stand, one after the other."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

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
        if library == "mlflow":
            module.end_run.assert_called_once_with("FINISHED")
        else:
            module.init.return_value.finish.assert_called_once_with(exit_code=0)


CALLS = {
    "simulate": zofl.simulate,
    "plan": zofl.plan,
    "Simulation": zofl.Simulation,
    "load": zofl.load,
    "check_method": zofl.check_method,
    "Federation.of_clients": zofl.Federation.of_clients,
    "TorchProblem": zofl.TorchProblem,
    "SplitProblem": zofl.SplitProblem,
    "EarlyStopping": zofl.EarlyStopping,
    "OptunaPruning": zofl.OptunaPruning,
    "TensorBoard": zofl.TensorBoard,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_reference_names_every_parameter_with_its_default(name: str) -> None:
    """And each is explained. Mutations: one more parameter; another default."""
    text = PAGE.read_text()
    row = re.search(rf"\| `{re.escape(name)}\((.*?)\)` \|", text)
    assert row is not None
    listed = [each.partition("=")[::2] for each in row[1].split(", ") if each != "*"]
    wanted = {k: p for k, p in inspect.signature(CALLS[name]).parameters.items() if k != "self"}
    assert [word.lstrip("*") for word, _ in listed] == list(wanted)
    for (word, default), (k, parameter) in zip(listed, wanted.items(), strict=True):
        factory = isinstance(parameter.default, type) or "factory" in repr(parameter.default)
        shown = "" if parameter.default is parameter.empty else "{}" if factory else repr(parameter.default)
        assert default.replace('"', "'") == shown, word
        explained = any(f"`{k}`" in line for line in text.splitlines() if not line.startswith(f"| `{name}("))
        assert explained or name in ("EarlyStopping", "OptunaPruning", "TensorBoard"), k


@pytest.mark.parametrize("cls", [zofl.Result, zofl.Simulation])
def test_the_reference_names_every_member(cls: type[Any]) -> None:
    text = PAGE.read_text()
    own = [name for name, value in vars(cls).items() if not name.startswith("_") and not isinstance(value, str)]
    own = [name for name in own if name not in ("built", "problem", "continued", "rank", "reason")]  # the run's own
    prefix = "run." if cls is zofl.Simulation else ""
    assert [name for name in own if not re.search(rf"`{re.escape(prefix)}{name}(\(|`|\[)", text)] == []
