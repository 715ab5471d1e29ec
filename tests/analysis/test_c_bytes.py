"""Rounds to an accuracy and bytes up of methods that send models, parts of models or scalars."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import group_of


def planted(method: str, test: list[float], validation: list[float], up: int = 1, labels: int = 0, **where: str) -> Any:
    """A group of one seed that sends `up` bytes a client and round."""
    also = {"validation_accuracy": validation} | ({"label_bytes": [labels] * len(test)} if labels else {})
    group = group_of(test, where={"method": method, **where}, also=also, method=method, m=2)
    (run,) = group.runs
    clients = run.clients | {way: np.full((len(test), 1, 2), k * up) for way, k in (("bytes_up", 1), ("bytes_down", 4))}
    return replace(group, runs=(replace(run, clients=clients),))


def test_a_row_counts_rounds_and_bytes(script: Any) -> None:
    """Mutations: rounds from 0; labels left out; the test part for the validation part."""
    nan = math.nan
    group = planted(
        "heron", [0.1, nan, 0.75, 0.85], [0.1, nan, 0.85, 0.9], up=10, labels=3, local="local-1", server="x-none"
    )
    module = script("c_bytes")
    row = module.row(group, True)
    assert (row["rounds_to_70_by_seed"], row["rounds_to_80_by_seed"], row["rounds_by_validation"]) == ("3", "4", 3.0)
    assert (row["bytes_up"], row["bytes_up_a_client_and_round"], row["step"]) == (4 * (2 * 10 + 3), 11.5, "local-1")
    assert row["rounds_to_75_mean"] == 3.0 and row["best"]
    longer = module.row(planted("heron", [0.1, 0.85, 0.9], [0.1, 0.9, 0.9], up=10, labels=3), False)
    assert (longer["bytes_up_to_80"], longer["bytes_both_to_80"]) == (2 * 23, 2 * (23 + 80))


def test_an_accuracy_that_is_not_reached_is_no_number(script: Any) -> None:
    row = script("c_bytes").row(planted("hiso", [0.1, 0.72], [0.1, 0.6]), False)
    assert row["rounds_to_80_by_seed"] == "-" and math.isnan(row["rounds_to_80_mean"])
    assert math.isnan(row["rounds_by_validation"])


def test_the_best_step_is_that_of_the_validation_part(script: Any) -> None:
    """And it alone is drawn, against the bytes so far. Mutation: chosen on the test samples."""
    module = script("c_bytes")
    groups = [
        planted("fedavg", [0.5, 0.9], [0.5, 0.6], up=512, local="local-1"),
        planted("fedavg", [0.5, 0.8], [0.5, 0.7], up=512, local="local-3"),
        planted("decomfl", [0.2, 0.4], [0.2, 0.3], up=8, local="local-1"),
    ]
    told = module.report(groups)
    chosen = [(row["method"], row["step"]) for row in told.rows if row["best"]]
    assert chosen == [("fedavg", "local-3"), ("decomfl", "local-1")]
    lines = {line.get_label(): line for line in told.figure.axes[0].get_lines()}
    assert set(lines) == {"FedAvg", "DeComFL"}
    assert lines["FedAvg"].get_xdata() == pytest.approx([1, 2])
    assert lines["FedAvg"].get_ydata() == pytest.approx([50, 80])


def test_networks_in_one_piece_are_those_that_are_cut() -> None:
    """Sizes of both, beside the pages' 458 and 28,938. Mutation: the auxiliary head among the parameters."""
    from jobs.decomfl_mnist import Whole
    from jobs.perceptron import Perceptron

    for network, shape, size in ((Perceptron, (17,), 458), (Whole, (1, 28, 28), 28_938)):
        assert sum(p.numel() for p in network(shape, 10).parameters()) == size
