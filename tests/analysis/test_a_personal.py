"""Personal models compared, from tiny real results: numbers as computed by hand, steps chosen on validation samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import Grids, Made, check_difference, check_figure, group_of, table_of
from zofl_mpi.errors import UserError

CELLS, NAMES = ("a1000-b0.9", "a0.1-b0.5"), ("printed", "tuned", "steps")


def written(made: Made, out: Path, script: Any) -> list[dict[str, str]]:
    """The rows of the CSV of all grids."""
    script("a_personal").main(made.words(out, names=NAMES))
    return table_of(out.with_name(f"{out.name}.csv"))


def values(groups: list[Any], column: str, **where: str) -> list[float]:
    """The last numbers in %, seed by seed, of the one group there."""
    (group,) = [g for g in groups if all(g.where.get(axis, "-") == entry for axis, entry in where.items())]
    return [100 * float(run.rounds[column][-1]) for run in group.runs]


def test_the_numbers_are_those_of_the_results(made: Grids, tmp_path: Path, script: Any, capsys: Any) -> None:
    """Mutations: x for y_i; differences of means; the rival of another cell."""
    rows = written(made("a_personal"), tmp_path / "p", script)
    told = capsys.readouterr()
    assert told.err == ""
    check_figure(tmp_path / "p", 7.0)
    groups = made("a_personal").groups(*script("a_personal").AXES, names=("printed",))
    printed = [row for row in rows if row["steps"] == "printed"]
    assert len(printed) == 2 * 3 and {row["step"] for row in printed} == {"printed"}
    for row in printed:
        at = {"cell": row["cell"]}
        own = values(groups, "personal_accuracy", method=row["method"], **at)
        assert float(row["personal_mean_percent"]) == pytest.approx(np.mean(own))
        of_x = values(groups, "test_accuracy", method=row["method"], **at)
        assert float(row["global_mean_percent"]) == pytest.approx(np.mean(of_x))
        rival = values(groups, "personal_accuracy", method="fedavg", **at)
        check_difference(row, ("less_fedavg_mean", "less_fedavg_sd"), own, rival)
        ahead = sum(a > b for a, b in zip(own, rival, strict=True))
        assert int(row["seeds_ahead_of_fedavg"]) == ahead
        if row["method"] == "zo_hfl":
            assert f"printed, digits, {row['cell']}: {np.subtract(own, rival).mean():+.2f}" in told.out
            assert f"ahead on {ahead} of 2 seeds" in told.out
    assert any(abs(float(row["less_fedavg_mean"])) > 0.1 for row in printed)


def test_steps_are_chosen_on_validation_samples(made: Grids, tmp_path: Path, script: Any, capsys: Any) -> None:
    """Mutations: by the test samples; by the global accuracy; the least."""
    rows = written(made("a_personal"), tmp_path / "p", script)
    groups = made("a_personal").groups(*script("a_personal").AXES, names=("steps",))
    for method in ("fedavg", "zo_hfl"):
        means = {}
        for row in [r for r in rows if (r["steps"], r["method"]) == ("tried", method)]:
            word = {"local": "local-none", "own": "own-none"} | {row["step"].split("-")[0]: row["step"]}
            (means[row["step"]],) = values(groups, "validation_personal_accuracy", method=method, **word)
            assert float(row["chosen_by_percent"]) == pytest.approx(means[row["step"]])
            assert row["at_edge"] == (row["step"].split("-")[0] if row["best"] == "True" else "")
        best = max(means, key=lambda step: means[step])
        assert [r["step"] for r in rows if r["method"] == method and r["best"] == "True"] == [best]
        assert {r["step"] for r in rows if (r["steps"], r["method"]) == ("tuned", method)} == {best}
    told = capsys.readouterr().out
    assert f"{best} *!" in told and "a better step may lie beyond" in told


def test_tuned_steps_that_were_not_chosen_are_refused(made: Grids, script: Any) -> None:
    """Mutation: no check of the kind of steps that the method has."""
    module = script("a_personal")
    groups = made("a_personal").groups(*module.AXES, names=NAMES)
    (tuned,) = [
        g for g in groups if module.kind(g) == "tuned" and module.where(g)[2] == CELLS[0] and "zo" in g.where["method"]
    ]
    other = replace(tuned, config=tuned.config | {"gamma_local": 0.2})
    module.rows_of(groups)
    with pytest.raises(
        UserError, match=r"zo_hfl: the best of the steps that were tried are local-0\.3, .* gamma_local"
    ):
        module.rows_of([other if g is tuned else g for g in groups])


def test_a_difference_is_taken_on_the_seeds_that_both_have(script: Any) -> None:
    """Mutation: seed by place."""
    module = script("a_personal")
    one, two = group_of([0.9], [0.8]), group_of([0.5], [0.7])
    give = {id(one): (1, 2), id(two): (2, 3)}
    one, two = (
        replace(
            group,
            runs=tuple(
                replace(run, config={"seed": seed}, rounds={"personal_accuracy": run.rounds["test_accuracy"]})
                for run, seed in zip(group.runs, give[id(group)], strict=True)
            ),
        )
        for group in (one, two)
    )
    assert module.ahead(one, two) == pytest.approx([30.0])
    assert module.ahead(one, None).size == 0


def test_steps_are_ordered_by_their_size(script: Any) -> None:
    """Whatever order the groups have. Mutation: as words."""
    words = ["own-0.03", "own-0.003", "own-none", "own-10", "own-2"]
    assert sorted(words, key=script("a_personal").size) == ["own-none", "own-0.003", "own-0.03", "own-2", "own-10"]
