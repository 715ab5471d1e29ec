"""Steps on quadratics whose best is known, tables of tuning from rows, and lines made from E2E's samples: no runs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from zofl_mpi.data.lines import Text
from zofl_mpi.engine.streams import Streams


def shares(script: Any, values: list[float], count: int) -> tuple[float, float, float]:
    """The best decrease of x'Hx/2 at x = (1, ..., 1), H diagonal, by a gradient step; zeroth-order; 1/(tr/c + 2)."""
    study, h = script("l_rank"), torch.tensor(values, dtype=torch.float64)
    x = torch.ones(len(values), dtype=torch.float64)

    def loss(at: Tensor) -> float:
        return float(h @ at**2) / 2

    look, g = study.Look(x, loss, h * x, lambda v: h * v), h * x
    curvature = float(g @ (h * g) / (g @ g))
    us = [study.direction(Streams(1), i, x) for i in range(count)]
    first, size = study.best_step(look, [g], 1 / curvature)
    zeroth, other = study.best_step(look, [(g @ u) * u for u in us], 1 / (float(h.sum()) + 2 * curvature))
    assert size == 1 and first == pytest.approx(float(g @ g) / (2 * curvature))
    assert 0.5 <= other <= 2
    return first, zeroth, 1 / (float(h.sum()) / curvature + 2)


@pytest.mark.parametrize("values", [[1.0] * 20, [8.0, *[0.1] * 39]])
def test_a_zeroth_order_step_has_the_predicted_share_of_a_gradient_steps_decrease(
    script: Any, values: list[float]
) -> None:
    """The mean decrease is t |g|^2 - t^2 (tr(H) |g|^2 + 2 g'Hg)/2 for u ~ N(0, I). With 2,000 directions the mean of
    (g'u)^2, whose standard deviation is sqrt(2) |g|^2, is known to 3 %; of steps sqrt(2) apart the best is at most 3 %
    below. Mutations: tr(H) + c; u of norm 1; a step chosen for each direction; the largest decrease for the mean.
    """
    first, zeroth, predicted = shares(script, values, 2000)
    assert zeroth / first == pytest.approx(predicted, rel=0.2)


ROW = {
    "task": "food",
    "weights": "pretrained",
    "step": "1e-3",
    "at_edge": "",
    "loss_mean": 1.0,
    "loss_sd": 0.1,
    "accuracy_mean_percent": 70.0,
    "accuracy_sd_percent": 1.0,
    "rounds": 50,
    "passes": 1000.0,
    "directions_per_parameter": 0.06,
    "bytes_up_a_round": 40.0,
    "bytes_down_a_round": 44.0,
    "seeds": 3,
}


def test_the_table_of_tuning_has_a_row_per_way_and_marks_steps_at_an_edge(script: Any) -> None:
    """Mutation: an edge without its mark."""
    study = script("l_tuning")
    rows = [
        {**ROW, "way": "decomfl", "best": True, "validation_loss": 1.1},
        {**ROW, "way": "heron", "step": "1e-2", "best": True, "at_edge": "step", "validation_loss": 1.2},
    ]
    one, two = study.table(rows).split("\n")[2:]
    assert "1e-3 " in one and "70.00 ± 1.00" in one and "!" not in one
    assert "1e-2!" in two
    last = study.attempts([*rows, {**rows[0], "best": False, "validation_loss": 1.3}]).split("\n")[2:]
    assert [line.split()[-1] for line in last] == ["*", "*!", "1.3000"]


def test_pretraining_never_asks_for_a_food_that_is_to_be_chosen() -> None:
    """Mutations: the label of the first food; a text without its kind of place; contexts of both halves."""
    from jobs.l_texts import FOODS, part_of, to_choose, to_tell, to_write

    known = Text("name : A | Type : pub | food : French | area : riverside", ("A is French .",), (), None, "", 1)
    generator = np.random.default_rng(0)
    asked = [to_tell(known, generator) for _ in range(50)]
    assert {line["completion"] for line in asked if line} == {" pub", " riverside"}
    line = to_choose(known)
    assert line is not None and FOODS[line["label"]] == "French" and line["client"] == "pub"
    assert line["context"] == "A is French . | food :" and to_write(known)["completion"] == " A is French ."
    assert to_choose(known._replace(context="name : A | Type : pub | food : Thai")) is None
    assert to_choose(known._replace(context="name : A | food : French")) is None
    assert to_tell(known._replace(context="name : A | food : French"), generator) is None
    assert [part_of(share) for share in (0.0, 0.79, 0.8, 0.89, 0.9, 0.99)] == [
        *["train"] * 2,
        *["validation"] * 2,
        *["test"] * 2,
    ]
