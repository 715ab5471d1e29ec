"""A network cut in two from Python: scores of a user's own, and the way back to a module."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zofl_mpi as zofl
from tests.api.conftest import samples
from zofl_mpi import Federation, UserError


def macro_f1(outputs: Any, targets: Any) -> Any:
    """Mean over classes of 2 TP / (2 TP + FP + FN): no mean over samples, so that all outputs must be there at once."""
    found, classes = outputs.argmax(1), range(outputs.shape[1])
    right = [2 * ((found == k) & (targets == k)).sum() for k in classes]
    each = [
        both / max(int((found == k).sum() + (targets == k).sum()), 1) for k, both in zip(classes, right, strict=True)
    ]
    return sum(each) / len(each)


def weighted(outputs: Any, targets: Any) -> float:
    """A number that depends on the samples' order."""
    place = torch.arange(1, len(outputs) + 1)
    return float((outputs[:, 0] * place).sum() - (targets * place).sum())


def client(shape: Any, width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width), nn.Tanh())


NET = zofl.SplitProblem(
    client,
    lambda classes, width=5: nn.Linear(width, classes),
    lambda classes, width=5: nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, classes)),
    metrics={"macro_f1": macro_f1, "weighted": weighted},
)
FEW = {"batch": 10, "h": 2, "rounds": 2, "lr_client": 0.05, "quiet": True}


@pytest.mark.parametrize("method", ["heron", "sflv1", "fsl_sage", "decomfl", "ho_sfl"])
def test_its_scores_are_columns_and_the_module_that_has_them_comes_back(
    method: str, data: Federation, tmp_path: Path
) -> None:
    """Mutations: scores of a client's share alone, or of samples in the order of replies; the head in the module, the
    first statistics of BatchNorm; a module in training mode's statistics that the run moves."""
    result = zofl.simulate(method, NET(width=4), data, out=tmp_path / "a.h5", **FEW)
    module = result.module().eval()
    assert module.client[0].weight.shape == (4, 8) and [name for name, _ in module.named_children()] == [
        "client",
        "server",
    ]
    x, y = samples(60, 5)
    with torch.no_grad():
        outputs = module(torch.from_numpy(x)).double()
    row, targets = result.row, torch.from_numpy(y)
    assert row["test_accuracy"] == float((outputs.argmax(1) == targets).double().mean())
    assert row["test_macro_f1"] == pytest.approx(float(macro_f1(outputs, targets)), abs=1e-12)
    assert row["test_weighted"] == pytest.approx(weighted(outputs, targets), rel=1e-4)
    assert {"validation_macro_f1", "validation_weighted"} <= result.row.keys()
    assert result.best("validation_macro_f1")["round"] in (1, 2)


def test_scores_are_of_samples_in_their_order() -> None:
    """Mutation: outputs in the order in which ranks answer."""
    from zofl_mpi.rounds.split.method import SplitMethod

    rows = [np.arange(3) * 2, np.arange(3) * 2 + 1]
    method: Any = SplitMethod.__new__(SplitMethod)
    told: list[Any] = []

    class Problem:
        def measured(self, outputs: Any, targets: Any) -> dict[str, float]:
            told.extend([outputs.tolist(), targets.tolist()])
            return {"own": 1.0}

    vars(method)["setting"] = type("Setting", (), {"problem": Problem()})()
    parts = [{"rows": each, "outputs": torch.tensor(each), "targets": torch.tensor(each) + 10} for each in rows]
    assert method._metrics("test", [{}, *parts[::-1]]) == {"test_own": 1.0} and method._metrics("test", [{}]) == {}
    assert told == [list(range(6)), list(range(10, 16))]


def test_parts_of_the_clients_own_are_no_one_module(data: Federation, tmp_path: Path) -> None:
    result = zofl.simulate("heron", NET, data, out=tmp_path / "a.h5", client_parts="own", **FEW)
    with pytest.raises(UserError, match="--client-parts own: each client keeps its own part"):
        result.module()


def test_a_metric_that_gives_no_number_is_refused_before_the_run(data: Federation, tmp_path: Path) -> None:
    """Mutation: tried at the first evaluation."""
    broken = zofl.SplitProblem(NET.client, NET.auxiliary, NET.server, metrics={"all": lambda o, t: o})
    with pytest.raises(UserError, match=r"metric all gives an array of shape \(60, 2\)"):
        zofl.simulate("heron", broken, data, out=tmp_path / "a.h5", **FEW)
    assert not (tmp_path / "a.h5").exists()
