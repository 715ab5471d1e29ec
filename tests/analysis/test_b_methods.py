"""The comparison of methods on [B]'s network, from tiny real results: the numbers are those computed by hand."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.analysis.made import Grids, group_of
from tests.launch import here
from zofl_mpi.engine.streams import Streams
from zofl_mpi.run import records


def test_all_methods_are_measured_on_the_same_nonsmooth_objective(made: Grids, script: Any) -> None:
    """The column is the true rectifier's objective at the last x; the one that FedAvg descends on is another."""
    from zofl_mpi.engine.world import SingleProcess
    from zofl_mpi.problems.relu_net import ReLUNet
    from zofl_mpi.settings.samples import Samples

    where = {"method": "fedavg", "rectifier": "1", "step": "0.05"}
    path = made("b_methods").seeds(**where)[0].out
    run = records.load(path)
    federation = Samples(data="digits", m=3, server_fraction=0.0).federation(SingleProcess(), Streams(1))
    problem = ReLUNet(federation.test.features, rectifier=1.0)
    x = run.final["x"]
    losses = [problem.losses(i, x[None], data)[0] for i, data in enumerate(federation.clients)]
    sizes = [len(data) for data in federation.clients]
    told = run.rounds["objective_nonsmooth"][-1]
    assert told == pytest.approx(float(np.average(losses, weights=sizes)), rel=1e-12)
    assert run.rounds["test_smooth_loss"][-1] == pytest.approx(
        problem.score(x, federation.test)["smooth_loss"], rel=1e-12
    )
    assert abs(told - run.rounds["objective"][-1]) > 1e-3


def test_other_problems_have_no_column_of_a_twin(tmp_path: Path) -> None:
    out = tmp_path / "r.h5"
    flags = ["--method", "fedavg", "--problem", "bowls", "--rounds", "1", "--out", str(out), "--quiet"]
    assert here("zofl_mpi.fedrzo", *flags) == 0
    with h5py.File(out) as file:
        assert "objective" in file["rounds"]
        assert not {"objective_nonsmooth", "test_smooth_loss"} & set(file["rounds"])


def test_the_evaluations_are_those_of_the_local_steps(made: Grids, script: Any) -> None:
    module = script("b_methods")
    groups = made("b_methods").groups(*module.AXES)
    for group in groups:
        found = module.evaluations(group)
        if group.entry("method").startswith("fedrzo"):  # 3 clients, 2 steps of 8 samples
            points = 2 if group.entry("method") == "fedrzo" else 4
            assert found.tolist() == [3 * 2 * 8 * points * r for r in range(1, 6)]
        elif group.entry("method") == "fedavg":
            assert found.tolist() == [3 * 2 * 8 * 2 * r for r in range(1, 6)]
        else:
            steps = made("b_methods").column("local_steps", **group.where).mean(axis=0)
            assert found == pytest.approx(np.cumsum(steps) * 8 * 2)


def test_the_step_is_chosen_on_the_validation_part_where_there_is_one(script: Any) -> None:
    """Mutations: by the objective all the same; by the last evaluation alone."""
    module = script("b_methods")

    def group(step: str, objective: float, **also: list[float]) -> Any:
        where = {"method": "fedavg", "step": step}
        return group_of([objective], column="objective_nonsmooth", where=where, also=also, data="d", rectifier=1)

    groups = [
        group("one", 0.1, validation_loss=[0.5, 0.5, 0.5, 0.1]),
        group("other", 0.4, validation_loss=[0.3, 0.3, 0.3, 0.3]),
    ]
    bare = [group("one", 0.1), group("other", 0.4)]
    assert [choice.best for choice in module.choices(groups)] == [False, True]
    assert [choice.best for choice in module.choices(bare)] == [True, False]
