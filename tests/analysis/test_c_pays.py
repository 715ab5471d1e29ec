"""The shares of the gap from tiny real results: the numbers are those computed by hand from the files."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.made import Grids, Made, Wrote, check_figure, same, table_of
from tests.conftest import ROOT
from zofl_mpi.run import grid

TOLD = ("heron-frozen", "heron", "heron-head", "heron-head-jvp", "heron-n2", "cse_fsl", "sflv2")
SERVER, LOCAL = ("server-1e-2", "server-3e-2"), ("local-1e-3", "local-1e-2")
CNN, SMASHED = 4 * 9 + 8 + 4 * 4 * 9 + 8, 4 * 4 * 4


@pytest.fixture
def told(made: Grids, wrote_once: Any) -> Wrote:
    return wrote_once("c_pays", made("c_pays"))  # type: ignore[no-any-return]


@pytest.fixture
def rows(told: Wrote) -> list[dict[str, str]]:
    """The table of the first setting, beside which the rest lies."""
    assert told.path(".txt").read_text().strip() in told.out
    found = told.rows
    assert [row["method"] for row in found] == [*TOLD, "heron-frozen", "cse_fsl", "sflv2"]
    return found[: len(TOLD)]


def steps_of(method: str) -> list[dict[str, str]]:
    """Where the grid has runs of a method."""
    if method == "heron-frozen":
        return [{"local": "local-none", "server": word} for word in SERVER]
    return [{"local": word, "server": "server-3e-2"} for word in LOCAL]


def last(made: Made, column: str, **where: str) -> list[float]:
    return [100 * float(run.rounds[column][-1]) for run in made.loaded(setting="linear", **where)]


def best(made: Made, method: str) -> dict[str, str]:
    """The step of the highest accuracy on the validation part."""
    return max(steps_of(method), key=lambda at: statistics.mean(last(made, "validation_accuracy", method=method, **at)))


def test_each_method_has_the_step_that_the_validation_part_prefers(made: Grids, rows: Any, told: Wrote) -> None:
    """Mutations: the test part's; the lowest; a step of the other setting; an edge that is not told."""
    for row in rows:
        at = best(made("c_pays"), row["method"])
        steps = " ".join(word for word in at.values() if word != "local-none")
        values = last(made("c_pays"), "test_accuracy", method=row["method"], **at)
        assert row["step"] == steps and same(row["accuracy_mean_percent"], statistics.mean(values))
        assert row["at_edge"] == ("server" if row["method"] == "heron-frozen" else "local")
    tried = table_of(told.path("_steps.csv"))
    assert len(tried) == 2 * len(TOLD) + 2 * 3
    for row in tried[: 2 * len(TOLD)]:
        where = dict(zip(("local", "server"), row["step"].split(), strict=False))
        where = where if len(where) == 2 else {"local": "local-none", "server": row["step"]}
        (one, _) = last(made("c_pays"), "validation_accuracy", method=row["method"], **where)
        assert same(row["validation_percent"], one)


def test_the_share_is_taken_seed_by_seed(made: Grids, rows: Any) -> None:
    """Mutations: the ratio of the means; CSE-FSL for SFLV2; a deviation divided by n."""
    of = {m: last(made("c_pays"), "test_accuracy", method=m, **best(made("c_pays"), m)) for m in TOLD}
    for row in rows:
        gains = [a - b for a, b in zip(of[row["method"]], of["heron-frozen"], strict=True)]
        gaps = [a - b for a, b in zip(of["sflv2"], of["heron-frozen"], strict=True)]
        assert same(row["gain_mean"], statistics.mean(gains)) and same(row["gain_sd"], statistics.stdev(gains))
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = 100 * np.array(gains) / np.array(gaps)
        assert same(row["share_mean_percent"], np.mean(shares)) or not np.isfinite(shares).all()


def test_costs_are_those_of_the_results(made: Grids, rows: Any) -> None:
    """Mutations: labels left out; a round's steps of one client alone; the plain peak told as the other one."""
    for row in rows:
        runs = made("c_pays").loaded(setting="linear", method=row["method"], **best(made("c_pays"), row["method"]))
        costs = json.loads(runs[0].attrs["costs"])
        labels = np.mean([run.rounds["label_bytes"].sum() for run in runs])
        sent = np.mean([run.clients["bytes_down"].sum() + run.clients["bytes_up"].sum() for run in runs])
        assert same(row["bytes"], sent + labels)
        assert same(row["client_macs"], 4 * 2 * 3 * costs["multiply-accumulates of a client's step"])
        assert same(row["client_peak_bytes"], costs["peak bytes of a client's step, beyond its model"])
    peaks = {row["method"]: float(row["client_peak_bytes"]) for row in rows}
    assert peaks["heron-head"] < peaks["cse_fsl"] and peaks["heron-n2"] < peaks["cse_fsl"]


def test_what_estimates_are_worth(made: Grids, rows: Any) -> None:
    """Mutations: head's products left out of passes; one pass for a derivative; evaluations of one seed alone."""
    head, estimated = SMASHED * 10 + 10, {"heron": 1, "heron-head": 2, "heron-head-jvp": 2}
    for row in rows:
        runs = made("c_pays").loaded(setting="linear", method=row["method"], **best(made("c_pays"), row["method"]))
        costs = json.loads(runs[0].attrs["costs"])
        each = 16 * costs["multiply-accumulates of a sample at the client"]
        assert same(row["passes"], costs["multiply-accumulates of a client's step"] / each)
        if row["method"] not in estimated:
            assert row["cosine"] == row["cosine_sd"] == row["cosine_rule"] == ""
            continue
        d, p = CNN + head * (row["method"] == "heron"), estimated[row["method"]]
        assert same(row["cosine_rule"], (p / (p + d + 1)) ** 0.5) and int(row["directions"]) == p
        means = [float(np.nanmean(run.rounds["estimate_cosine"])) for run in runs]
        assert same(row["cosine"], statistics.mean(means)) and same(row["cosine_sd"], statistics.stdev(means))
    assert {row["method"]: row["directions"] for row in rows if row["method"] not in estimated} == {
        "heron-frozen": "0",
        "heron-n2": "0",
        "cse_fsl": "0",
        "sflv2": "0",
    }
    spent = {row["method"]: float(row["passes"]) for row in rows}
    assert spent["heron-head-jvp"] == pytest.approx(5 / 3 * spent["heron-head"], rel=0.05)  # 1 + 2 * 2 beside 1 + 2


def test_methods_that_differ_in_one_thing_are_compared_seed_by_seed(made: Grids, rows: Any, told: Wrote) -> None:
    """Mutations: the difference of the means alone; the sign; the frozen client in the place of the other."""
    (row,) = table_of(told.path("_pairs.csv"))
    assert (row["method"], row["beside"]) == ("heron-head-jvp", "heron-head")
    one, other = (
        last(made("c_pays"), "test_accuracy", method=m, **best(made("c_pays"), m))
        for m in (row["method"], row["beside"])
    )
    ahead = [a - b for a, b in zip(one, other, strict=True)]
    assert [float(value) for value in row["ahead_by_seed"].split()] == pytest.approx(ahead, abs=1e-4)
    assert same(row["ahead_mean"], statistics.mean(ahead)) and same(row["ahead_sd"], statistics.stdev(ahead))


def test_the_way_up_by_formula(rows: Any, told: Wrote) -> None:
    """Mutations: coefficients of 8 bytes; the head's left out; the seed's; scalars of 4 bytes."""
    head = SMASHED * 10 + 10
    found = {
        (row["method"], row["uplink"], int(row["numbers"])): (int(row["bytes"]), float(row["cosine"]))
        for row in table_of(told.path("_uplink.csv"))[:9]
    }
    assert found["cse_fsl", "dense", CNN + head] == (4 * (CNN + head), 1)
    assert found["sflv2", "dense", CNN] == (4 * CNN, 1)
    assert found["heron", "seeds", 3][0] == found["ho_sfl", "seeds", 3][0] == 24
    assert found["heron-head", "seeds", 3 + head][0] == 24 + 4 * head
    size, cosine = found["sflv2", "coefficients", 4]
    assert size == 24 and cosine == pytest.approx((4 / (4 + CNN + 1)) ** 0.5)
    half = {key[0]: value for key, value in found.items() if abs(value[1] - 0.5) < 0.01}
    assert half["cse_fsl"][0] == 4 * -(-(CNN + head + 1) // 3) + 8
    assert {int(row["smashed_bytes"]) for row in table_of(told.path("_uplink.csv"))} == {3 * 16 * 4 * SMASHED}


def test_the_lines_and_the_curve_of_the_figures(made: Grids, rows: Any, told: Wrote, script: Any) -> None:
    """Mutations: a peak in place of the work; the step of another method; all passes counted alike."""
    for end in ("", "_memory", "_estimates"):
        check_figure(told.path(end), 7)
    module, pays = script("shared.pays_figures"), script("shared.pays")
    groups = made("c_pays").groups("setting", "method", "local", "server")
    chosen = [g for g, _ in pays.chosen(groups, {"local": ["local-none", *LOCAL], "server": list(SERVER)})]
    places = {"linear": chosen[: len(TOLD)]}
    figure = module.budgets(places)
    lines = {line.get_label(): line for line in figure.axes[2].get_lines()}
    assert set(lines) == {"SFLV2", "CSE-FSL", "HERON, last 2 layers exact", "HERON", "frozen client"}
    macs = float(next(r["client_macs"] for r in rows if r["method"] == "sflv2"))
    assert lines["SFLV2"].get_xdata()[-1] == pytest.approx(macs / 1e9)
    figure_of_memory = module.memory(places)
    curve = next(c for c in figure_of_memory.axes[0].containers if c.get_label().startswith("last 0"))
    peaks = [float(r["client_peak_bytes"]) / 2**20 for m in module.CURVE for r in rows if r["method"] == m]
    assert curve.lines[0].get_xdata().tolist() == pytest.approx(peaks) and len(peaks) == 3
    figure_of_estimates = module.estimates(places)
    angles, gains = (
        {c.get_label(): c.lines[0].get_xydata().tolist() for c in panel.containers}
        for panel in figure_of_estimates.axes
    )
    assert set(angles) == set(gains) == {"HERON", "HERON, exact head", "HERON, exact head, jvp"}
    for row in rows:
        if row["cosine"]:
            at = angles[pays.spelled(row["method"])], gains[pays.spelled(row["method"])]
            assert at[0] == [pytest.approx([float(row["passes"]), float(row["cosine"])])]
            assert at[1] == [pytest.approx([float(row["passes"]), float(row["gain_mean"])])]


def test_the_grids_of_the_repository_are_those_of_the_scripts(script: Any) -> None:
    """Mutation: steps that are not in the order of their size."""
    study = grid.read(ROOT / "jobs/c_pays.toml", trust=True)
    for axis in ("local", "server"):
        steps = [float(word.partition("-")[2]) for word in study.axes[axis] if not word.endswith("none")]
        assert steps == sorted(steps)
    search = grid.read(ROOT / "jobs/c_pays_search.toml", trust=True)
    assert tuple(search.axes["method"]) == script("c_pays_search").METHODS


def test_the_search_is_told_setting_by_setting(made: Grids, tmp_path: Path, wrote: Any) -> None:
    """Mutations: the test part's accuracies; CSE-FSL told as SFLV2."""
    where = {"heron-frozen": "local-none", "cse_fsl": "local-1e-2", "sflv2": "local-1e-2"}
    text = made("c_pays").path().read_text()
    head = 'module = "zofl_mpi.heron_sfl"\nname = "{setting}-{method}-s{seed}"\n[fixed]\nlr-server = 3e-2'
    head += text[text.index("[fixed]") + len("[fixed]") : text.index("[axes.method]")]
    entries = 'heron-frozen = { method = "heron", freeze = "client" }\n' + "".join(
        f'{m} = {{ method = "{m}", lr-client = 1e-2 }}\n' for m in ("cse_fsl", "sflv2")
    )
    (tmp_path / "search.toml").write_text(f"{head}[axes.method]\n{entries}")
    (tmp_path / "found").mkdir()
    for m, s in where.items():
        for run in made("c_pays").runs(method=m, local=s, server="server-3e-2"):
            at = run.coordinates
            shutil.copy(run.out, tmp_path / "found" / f"{at['setting']}-{m}-s{at['seed']}.h5")
    told = wrote("c_pays_search", ["--grid", str(tmp_path / "search.toml"), "--results", str(tmp_path / "found")])
    (row, _) = told.rows
    values = {
        m: statistics.mean(last(made("c_pays"), "validation_accuracy", method=m, local=s, server="server-3e-2"))
        for m, s in where.items()
    }
    assert same(row["frozen_percent"], values["heron-frozen"]) and same(row["sflv2_percent"], values["sflv2"])
    assert same(row["cse_fsl_more"], values["cse_fsl"] - values["heron-frozen"])
