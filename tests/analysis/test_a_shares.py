"""Gains over the server alone: steps chosen by validation, differences seed by seed."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.made import group_of

CELL = "share-0.01+n-170+lacks-3"


def group(setting: str, accuracies: list[float], validation: float = 0.5) -> Any:
    """A group of this method and steps with these test accuracies of seeds 1, 2, ..., and a validation accuracy."""
    method, *steps = setting.split("+")
    where = {"cell": CELL, "method": method} | {axis: size for axis, _, size in (word.partition("-") for word in steps)}
    also = {"validation_accuracy": [validation] * 2, "personal_accuracy": [0.5] * 2}
    return group_of(*[[0.1, accuracy] for accuracy in accuracies], where=where, also=also)


def rows_of(script: Any) -> list[dict[str, Any]]:
    zo, server = "zo_hfl+lam-30+local-0.1+server", "server_sgd+server"
    groups = [
        group(f"{zo}-0.003", [0.95], 0.8),
        group(f"{zo}-0.03", [0.7, 0.73, 0.71], 0.8),
        group(f"{server}-0.1", [0.5, 0.51, 0.55], 0.6),
        group(f"{zo}-0.01", [0.9], 0.7),
        group(f"{server}-0.3", [0.6], 0.5),
        group(f"{server}-0.03", [0.6], 0.5),
        group("fedavg-server+local-0.3+server-0.1", [0.8], 0.5),
    ]
    shares = script("a_shares")
    return list(shares.rows_of(shares.placed(groups)))


def test_gains_are_differences_seed_by_seed_of_the_best_steps(script: Any) -> None:
    """Mutations: a difference of means; the best by test accuracy; the control's first step; of equals the first."""
    best = {row["method"]: row for row in rows_of(script) if row["best"]}
    zo, control = best["zo_hfl"], best["server_sgd"]
    assert (zo["share"], zo["n"], zo["lacks"], zo["step"]) == (0.01, 170, 3, "lam-30 local-0.1 server-0.03")
    gains = np.array([20, 22, 16])
    assert zo["gain_mean"] == pytest.approx(gains.mean()) and zo["gain_sd"] == pytest.approx(gains.std(ddof=1))
    assert zo["gain_in_deviations"] == pytest.approx(gains.mean() / gains.std(ddof=1))
    assert (zo["seeds"], zo["seeds_ahead"], zo["accuracy_by_seed_percent"]) == (3, 3, "70.0000 73.0000 71.0000")
    assert (control["step"], control["gain_mean"], control["gain_sd"]) == ("server-0.1", 0, 0)
    assert best["fedavg+server"]["gain_mean"] == pytest.approx(30)  # on the one seed that it has


def test_all_steps_stand_in_the_table_and_edges_are_named(script: Any) -> None:
    """Mutation: edges by the order in the grid, in which server-0.1 is the first."""
    rows = rows_of(script)
    assert len(rows) == 7 and sum(row["best"] for row in rows) == 3
    assert {row["method"]: row["at_edge"] for row in rows if row["best"]} == {
        "zo_hfl": "server",  # nothing larger was tried
        "server_sgd": "",
        "fedavg+server": "",
    }
    told = script("a_shares").table([row for row in rows if row["best"]])
    assert "1 %, n = 170, lacks 3 classes" in told and "+19.33 ± 3.06" in told and "server-0.03 !" in told
