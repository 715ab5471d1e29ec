"""Tuned steps: the best is that of the highest mean over all seeds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import group_of

LOCAL, SERVER = ("l1", "l2", "l3"), ("s1", "s2")
AXES = {"local": LOCAL, "server": SERVER}


def at(local: str, server: str, *accuracies: float, **also: list[float]) -> Any:
    """A group with these accuracies after the last round, of seeds 1, 2, ..., and further columns."""
    where = {"data": "mnist", "cell": "c", "method": "zo_hfl", "local": local, "server": server}
    return group_of(*[[accuracy] for accuracy in accuracies or (0.5,)], where=where, also=also)


@pytest.mark.parametrize(
    ("best", "left_out", "expected"),
    [
        (("l2", "s2"), [], ["server"]),
        (("l1", "s2"), [], ["local", "server"]),
        (("l3", "s1"), [], ["local", "server"]),
        (("l2", "s2"), [("l3", "s2")], ["local", "server"]),  # l3 was tried, but beside s1 alone
        (("l2", "s1"), [("l1", "s2"), ("l2", "s2"), ("l3", "s2")], []),  # one server step is not tuned
    ],
)
def test_a_best_step_is_inside_if_it_has_a_smaller_and_a_larger_one_beside_it(
    script: Any, best: tuple[str, str], left_out: list[tuple[str, str]], expected: list[str]
) -> None:
    """Mutation: the ends of the grid in place of those of what was tried beside the best."""
    edges = script("shared.edges")
    tried = [at(one, other) for one in LOCAL for other in SERVER if (one, other) not in left_out]
    (chosen,) = [group for group in tried if (group.where["local"], group.where["server"]) == best]
    assert edges.at_edge(chosen, tried, AXES) == expected


def rows_of(tuned: Any, groups: list[Any]) -> list[dict[str, Any]]:
    return list(tuned.rows_of(groups, AXES))


def test_a_best_step_inside_has_no_mark(script: Any) -> None:
    """The middle one of three is inside, whatever the order of the groups; without a neighbour it is at an edge."""
    tuned, edges = script("a_tuned"), script("shared.edges")
    groups = [at("l3", "s1", 0.4), at("l1", "s1", 0.3), at("l2", "s1", 0.6)]
    rows = rows_of(tuned, groups)
    assert [r["best"] for r in rows] == [False, False, True] and not any(r["at_edge"] for r in rows)
    assert tuned.table(rows).count(" *") == 1 and "*!" not in tuned.table(rows)
    assert tuned.tables(rows).endswith(edges.told([])) and "Every best step" in edges.told([])
    groups[0] = replace(groups[0], runs=())
    rows = rows_of(tuned, groups)
    assert [r["at_edge"] for r in rows] == ["", "", "local"] and "60.00 *!" in tuned.table(rows)
    assert tuned.tables(rows).endswith("a better step may lie beyond: ZO-HFL (l2 s1).")


def test_the_choice_is_by_the_last_validations_where_there_are_any(script: Any) -> None:
    """Mutations: by the test accuracy; by the last validation alone; by all of them; rounds without one counted."""
    tuned = script("a_tuned")
    nan = float("nan")
    noisy = at("l1", "s1", 0.9, validation_accuracy=[0.9, 0.9, 0.1, nan, 0.1, 0.1, 0.1, 0.8])
    steady = at("l2", "s1", 0.2, validation_accuracy=[0.0, 0.0, 0.3, nan, 0.3, 0.3, 0.3, 0.3])
    rows = rows_of(tuned, [noisy, steady])
    assert [r["best"] for r in rows] == [False, True]
    assert [r["chosen_by_percent"] for r in rows] == pytest.approx([24.0, 30.0])
    assert [r["accuracy_mean_percent"] for r in rows] == pytest.approx([90.0, 20.0])
    validated = tuned.choosing.validated
    assert validated([noisy, steady], tuned.VALIDATION)
    assert not validated([noisy, at("l2", "s1", 0.2)], tuned.VALIDATION)
    assert [r["best"] for r in rows_of(tuned, [noisy, at("l2", "s1", 0.2)])] == [True, False]  # by the test samples


def test_a_choice_is_over_the_seeds_that_all_steps_have(script: Any) -> None:
    """0.5 < 0.6 on seed 1, although the mean over both seeds is 0.7. Mutation: each over its own seeds."""
    tuned = script("a_tuned")
    both, one = at("l1", "s1", 0.5, 0.9), at("l2", "s1", 0.6)
    rows = rows_of(tuned, [both, one])
    assert [r["best"] for r in rows] == [False, True]
    assert [r["chosen_by_percent"] for r in rows] == pytest.approx([50.0, 60.0])
    assert rows[0]["accuracy_mean_percent"] == pytest.approx(70.0)


def test_a_step_without_all_seeds_is_not_the_best(script: Any) -> None:
    """Mutation: the best of what is there, whatever is missing."""
    rows = rows_of(script("a_tuned"), [at("l1", "s1", 0.5, 0.5), replace(at("l2", "s1", 0.9), planned=2)])
    assert [r["best"] for r in rows] == [True, False]


def test_sensors_have_columns_of_their_own(script: Any) -> None:
    """In % of the last round; a group without results has empty ones. Mutation: the first round's."""
    one, none = at("l1", "s1", 0.4, 0.6), replace(at("l2", "s1"), runs=())
    seen = [0.1, 0.3]
    runs = tuple(
        replace(run, rounds={**run.rounds, "test_accuracy_blur": np.array([0.9, value])})
        for run, value in zip(one.runs, seen, strict=True)
    )
    with_sensor, without = script("a_tuned").rows_of([replace(one, runs=runs), none], AXES)
    assert with_sensor["test_accuracy_blur_mean_percent"] == pytest.approx(20)
    assert np.isnan(without["test_accuracy_blur_mean_percent"])
    assert not any(name.startswith("test_accuracy_") for name in script("a_tuned").rows_of([one], AXES)[0])
