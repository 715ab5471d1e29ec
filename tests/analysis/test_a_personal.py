"""Personal models compared, from tiny real results: numbers as computed by hand, steps chosen on validation samples."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.made import Grids, group_of
from zofl_mpi.errors import UserError

NAMES = ("printed", "tuned", "steps")
CHOSEN = {
    ("a1000-b0.9", "fedavg"): "own-0.3",
    ("a1000-b0.9", "zo_hfl"): "local-0.3",
    ("a0.1-b0.5", "fedavg"): "own-0.03",
    ("a0.1-b0.5", "zo_hfl"): "local-0.1",
}
"""The longest that were tried there."""
VALIDATION = "validation_personal_accuracy"


def values(groups: list[Any], column: str, **where: str) -> list[float]:
    """The last numbers in %, seed by seed, of the one group there."""
    (group,) = [g for g in groups if all(g.where.get(axis, "-") == entry for axis, entry in where.items())]
    return [100 * float(run.rounds[column][-1]) for run in group.runs]


def test_steps_are_chosen_on_validation_samples(made: Grids, script: Any, wrote: Any) -> None:
    """In each cell. Mutations: by the test samples; by the global accuracy; the least; one cell's in the other."""
    told = wrote("a_personal", made("a_personal"), names=NAMES)
    groups = made("a_personal").groups(*script("a_personal").AXES, names=("steps",))
    rows = told.rows
    for (cell, method), chosen in CHOSEN.items():
        means = {}
        here = [r for r in rows if (r["cell"], r["method"]) == (cell, method)]
        for row in [r for r in here if r["steps"] == "tried"]:
            axis, _, size = row["step"].partition("-")
            (means[row["step"]],) = values(groups, VALIDATION, cell=cell, method=method, **{axis: size})
            assert float(row["chosen_by_percent"]) == pytest.approx(means[row["step"]])
            assert row["at_edge"] == (row["step"].split("-")[0] if row["best"] == "True" else "")
        ordered = sorted(means, key=lambda step: means[step])
        assert ordered[-1] == chosen
        assert [r["step"] for r in here if r["best"] == "True"] == [chosen]
        assert [(r["step"], r["seeds"]) for r in here if r["steps"] == "tuned"] == [(chosen, "2")]
        numbers = rf"{means[chosen]:.2f} +{means[ordered[-2]]:.2f} +{len(means)}\n"
        assert re.search(rf"{cell} .*{chosen} ! +{numbers}", told.out)
    assert "a better step may lie beyond" in told.out


def test_tuned_steps_that_were_not_chosen_are_refused(made: Grids, script: Any) -> None:
    """Mutation: no check of the kind of steps that the method has."""
    module = script("a_personal")
    groups = made("a_personal").groups(*module.AXES, names=NAMES)
    (tuned,) = [g for g in groups if module.kind(g) == "tuned" and module.whose(g)[1:] == ("a1000-b0.9", "zo_hfl")]
    module.rows_of(groups)
    for step in (0.2, 0.1):  # 0.1 is the other cell's
        other = replace(tuned, config=tuned.config | {"gamma_local": step})
        with pytest.raises(
            UserError, match=r"zo_hfl: the best of the steps that were tried are local-0\.3, .* gamma_local"
        ):
            module.rows_of([other if g is tuned else g for g in groups])


def tried(own: dict[str, float]) -> list[Any]:
    """Groups of one seed with these validation accuracies by their fine-tuning's steps."""
    where = {"data": "digits", "cell": "a1-b0.5", "method": "fedavg"}
    also = {step: {"personal_accuracy": [value], VALIDATION: [value]} for step, value in own.items()}
    return [group_of([value], where=where | {"own": step}, also=also[step]) for step, value in own.items()]


@pytest.mark.parametrize(
    ("own", "at_edge"),
    [
        ({"0": 0.9, "0.1": 0.8}, []),
        ({"0.01": 0.9, "0.1": 0.8}, ["own"]),
        ({"0": 0.7, "0.1": 0.8}, ["own"]),
        ({"0": 0.7, "0.1": 0.8, "1": 0.6}, []),
    ],
)
def test_no_step_at_all_is_no_edge(own: dict[str, float], at_edge: list[str], script: Any) -> None:
    """Mutations: 0 marked; no edge marked where 0 was tried."""
    module = script("a_personal")
    groups = tried(own)
    ((best, ends),) = [(c.group, c.at_edge) for c in module.choices(groups) if c.best]
    assert list(ends) == at_edge
    rows = module.rows_of(tried(own))
    assert ("Nothing lies below" in module.tables(rows)) == (best.where["own"] == "0")
    assert "Nothing else was tried" not in module.tables(rows)
    assert "Nothing else was tried for FedAvg, fine-tuned on digits, a1-b0.5." in module.tables(
        module.rows_of(tried(dict([*own.items()][:1])))
    )


def test_a_difference_is_taken_on_the_seeds_that_both_have(script: Any) -> None:
    """Mutation: seed by place."""
    ahead = script("shared.groups").ahead
    one = group_of([0.9], [0.8], column="personal_accuracy")
    two = group_of([0.5], [0.7], column="personal_accuracy", seeds=(2, 3))
    assert ahead(one, two, "personal_accuracy") == pytest.approx([30.0])
    assert ahead(one, None, "personal_accuracy").size == 0


def test_steps_are_ordered_by_their_size(script: Any) -> None:
    """Whatever order the groups have. Mutation: as words."""
    words = ["own-0.03", "own-0.003", "own-0", "own-10", "own-2"]
    assert sorted(words, key=script("a_personal").size) == ["own-0", "own-0.003", "own-0.03", "own-2", "own-10"]
