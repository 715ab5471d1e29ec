"""Privacy's prediction by hand, and robust means' table from rows: no runs."""

import math
from typing import Any

import numpy as np
import pytest

ROW = {"cell": "c", "step": "step-1", "best": True, "at_edge": "", "seeds": 1, "seeds_planned": 1, "n": 170}


def row(method: str, epsilon: str = "e1", mean: float = 70.0, **more: Any) -> dict[str, Any]:
    told = {"accuracy_mean_percent": mean, "accuracy_sd_percent": float("nan"), "by_seed_percent": f"{mean}"}
    own = {"participants": 100.0, "noise_multiplier": 4.0, "bytes_up_each": 8.0, "signal": float("nan")}
    return {**ROW, "method": method, "epsilon": epsilon, **told, **own, **more}


def test_the_prediction_is_its_formula(script: Any) -> None:
    """s^2 = (N |mean|^2 - 1)/(N - 1): replies of independent directions have none; a = (s q m / z)^2. Mutations: the
    floor of 1/N kept; z squared; K and a exchanged; the scalars ahead where they are behind."""
    study = script("p_privacy")
    assert study.signal(row("scalars-64", signal=0.1)) == pytest.approx(0, abs=1e-6)
    assert study.signal(row("scalars-64", signal=1.0)) == 1
    own = row("scalars-64", mean=69.0, signal=math.sqrt(0.2575))  # s = 1/2
    assert study.enough(own) == pytest.approx((0.5 * 100 / 4) ** 2)
    found = [row("fedavg-1"), row("scalars-8", mean=67.5), own, row("fedavg-1", "inf"), row("fedavg-1", "p1")]
    ((epsilon, z, s, a, one, none, eight, behind, many, less),) = study.predictions(found)
    assert (epsilon, z, s, a) == ("1", "4", "0.50", "156")
    share = 8 * (156.25 + 170) / (170 * (156.25 + 8))
    assert (eight, behind, less, none) == (f"{100 * share:.0f} %", "2.50", "1.00", "-")
    assert study.share(8, 170, 74.0, True) == pytest.approx(8 * (170**2 + 74) / (170 * (74 + 4 * 64 / math.pi)))
    assert study.share(170, 170, 74.0, False) == 1  # as many scalars as parameters
    p1 = row("scalars-64", "p1", signal=math.sqrt(0.2575 * math.pi / 128))
    assert study.signal(p1) == pytest.approx(0.5)  # l1 clips 64 normal numbers to sqrt(pi/128) in l2
    assert (one, int(many.split()[0]) > 50) == ("1 %", True)


def test_a_share_is_the_rounds_after_which_first_order_has_the_loss_of_the_scalars(script: Any) -> None:
    """By interpolation in the logarithm of the rounds, seed by seed. Mutations: in the rounds; of the mean loss;
    rounds in place of their share of the scalars' own; a prediction for another K."""
    study = script("p_privacy")
    first = [
        row("fedavg-1", cell="shares", rounds=rounds, loss_by_seed=losses)
        for rounds, losses in ((200, "0.6 0.5"), (50, "0.8 0.7"), (100, "0.7 0.6"))
    ]
    own = row("scalars-64", cell="shares", rounds=200, loss_by_seed="0.65 0.7", signal=math.sqrt(0.2575))
    two = row("scalars-2", cell="shares", rounds=200, loss_by_seed="0.75 0.65")
    found = study.shares([*first, own, two])
    assert list(found) == [2, 64]
    np.testing.assert_allclose(found[64][1], [100 * math.sqrt(0.5), 25])
    np.testing.assert_allclose(found[2][1], [25 * math.sqrt(2), 25 * math.sqrt(2)])
    assert found[2][0] == pytest.approx(100 * 2 * (156.25 + 170) / (170 * (156.25 + 2)))
    assert study.progress(found).split("\n")[-1].split() == ["64", "56", "%", "48", "±", "32", "%"]


def test_the_table_has_a_row_per_method_and_the_figure_a_panel_per_cell(script: Any) -> None:
    """Mutations: pure epsilon in a cell's panel; methods in the order of the rows; one without noise at epsilon 1; a
    method that does not clip on the line of one that does; first order less scalars."""
    study = script("p_privacy")
    rows = [row("scalars-8", e, 60.0 + k) for k, e in enumerate(("e0.3", "e1", "inf"))]
    rows += [row("fedavg-1", e, 70.0 + k, at_edge="step") for k, e in enumerate(("e0.3", "e1", "inf"))]
    rows += [row("server", "inf", 50.0), row("scalars-8", "p10", 55.0), row("fedavg-1", "p10", 52.0)]
    rows += [row("fedavg-1", "free", 75.0)]
    lines = study.tables(rows).split("\n")
    assert lines[0].split() == ["method", "0.3", "1", "none", "pure", "10", "free", "B", "up"]
    assert [line[:17].strip() for line in lines[2:5]] == ["FedAvg, one step", "8 scalars", "the server alone"]
    assert "71.00 !" in lines[2] and "61.00" in lines[3]
    figure = study.draw(rows)
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == ["c", "c", "c, pure ε", "c", "", ""]

    def drawn(panel: int, method: str) -> list[float]:
        (line,) = (c for c in figure.axes[panel].containers if c.get_label() == method)
        return list(line.lines[0].get_ydata())

    assert drawn(0, "FedAvg, one step") == [70.0, 71.0, 72.0]  # clipped ones alone
    assert drawn(3, "8 scalars") == [-10.0, -10.0, -10.0]
    assert study.place(rows[2], 4.0) == 4.0 and study.place(rows[0], 4.0) == 0.3


def test_liars_stand_beside_the_same_aggregate_without_them(script: Any) -> None:
    """Mutations: the accuracy without liars of another aggregate, or of another step; a table of every aggregate."""
    study = script("r_robust")

    def liar(aggregate: str, attack: str, share: str, mean: float, **more: Any) -> dict[str, Any]:
        told = {"validation_percent": mean, "accuracy_mean_percent": mean, "accuracy_sd_percent": float("nan")}
        where = {"cell": "alike", "method": "fedavg", "local": "local-1"}
        own = {"aggregate": aggregate, "attack": attack, "share": share}
        return {**ROW, **where, **own, **told, **more}

    rows = [
        liar("mean", "none", "F-0", 77.0),
        liar("mean", "none", "F-0", 71.0, local="local-3", best=False),
        liar("median", "none", "F-0", 76.0),
        liar("clip-1", "none", "F-0", 75.0),
        liar("mean", "scale", "F-0.2", 60.0),
        liar("median", "scale", "F-0.2", 75.5),
    ]
    first, _, *lines = study.text(rows).split("\n")
    assert first == "FedAvg, clients alike, scale"
    assert [line.split() for line in lines[1:3]] == [["mean", "77.00", "60.00"], ["median", "76.00", "75.50"]]
    assert [line.split()[-2:] for line in lines[6:8]] == [["77.00", "*"], ["local-3", "71.00"]]
