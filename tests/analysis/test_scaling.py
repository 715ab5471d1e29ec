"""The table and figure of a scaling study, and the model of a round's time, on studies whose every second is known."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shared.exchange import Cost
from shared.timing import StepTiming, Timing

from tests.analysis.made import check_figure, table_of
from tests.analysis.scaling_made import doctor, report, result

Script = Callable[[str], Any]

COSTS = {
    "ask": (0.001, 1e-9),
    "reply": (0.0002, 2e-9),
    "upload": (0.0005, 0.0),
    "mean": (0.002, 3e-9),
    "account": (0.0005, 0.0),
    "alone": (0.01, 0.0),
    "together": (0.011, 0.0),
}


def study(folder: Path) -> Path:
    """One process 8 s a round, 2 ranks 5 s, 3 ranks 2.5 s, of 4 clients; and the exchanges."""
    tests: list[dict[str, Any]] = []
    for ranks, seconds in ((1, 8.0), (2, 5.0), (3, 2.5)):
        place = folder / f"r{ranks}"
        place.mkdir(parents=True)
        spent = {"server": [0.125] + [0.0] * (ranks - 1), "solve": [seconds - 1] * ranks}
        if ranks > 1:
            spent["solve"][0] = 0.0
        result(place / "result.h5", ranks=ranks, m=4, walls=[seconds] * 8, compute=spent)
        named = {"method": "zo_hfl", "share": "low", "outputdir": str(place)}
        tests.append({**named, **({"study": "strong"} if ranks > 1 else {})})
        if ranks > 1:
            tests.append({"outputdir": str(doctor(folder / f"e{ranks}", ranks, COSTS))})
    return report(folder / "report.json", tests)


# --- the table


def test_the_table_tells_speed_up_and_efficiency(wrote: Any, tmp_path: Path) -> None:
    """Mutations: efficiency by client ranks; the speed-up's inverse; one process of other clients taken."""
    told = wrote("scaling", [str(study(tmp_path / "s")), "--reference", "none"])
    rows = told.rows
    assert [(row["ranks"], float(row["speed_up"]), float(row["efficiency"])) for row in rows] == [
        ("1", 1.0, 1.0),
        ("2", 1.6, 0.8),
        ("3", 3.2, pytest.approx(3.2 / 3)),
    ]
    assert [float(row["seconds"]) for row in rows] == [8.0, 5.0, 2.5]
    assert [float(row["clients_per_rank"]) for row in rows] == [4, 4, 2]
    assert [float(row["compute"]) for row in rows] == [7.0, 4.0, 1.5]
    assert {row["to_reference"] for row in rows} == {""} and {row["start"] for row in rows} == {"1.5"}
    assert "2026-11-22; Abacus 9, Open MPI v5" in told.out and "Times of a round in ms" in told.out
    check_figure(told.stem)


def test_what_is_kept_is_read_again_and_compared_with(wrote: Any, tmp_path: Path) -> None:
    """Mutations: the ratio's inverse; compared with a run of other ranks; a field lost on the way to the file."""
    told = wrote("scaling", [str(study(tmp_path / "s")), "--reference", "none"])
    text = told.path(".json").read_text()
    kept = json.loads(text)
    for run in kept["runs"]:
        run["timing"]["seconds"] *= 2 if run["timing"]["ranks"] == 3 else 1
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    told = wrote("scaling", [str(told.path(".json")), "--reference", str(tmp_path / "kept.json")])
    assert [float(row["to_reference"]) for row in told.rows] == [1.0, 1.0, 0.5]
    assert told.path(".json").read_text() == text


def test_results_alone_are_read_too(wrote: Any, tmp_path: Path) -> None:
    """Mutation: results without ReFrame's names taken for one run."""
    paths = [str(result(tmp_path / f"{ranks}.h5", ranks=ranks, walls=[6.0 / ranks] * 8)) for ranks in (1, 2)]
    rows = wrote("scaling", [*paths, "--reference", "none"]).rows
    found = [(row["system"], row["method"], float(row["speed_up"])) for row in rows]
    assert found == [("-", "zo_hfl", 1), ("-", "zo_hfl", 2)]


def test_what_cannot_be_read_is_told_in_a_sentence(refuses: Any, tmp_path: Path) -> None:
    failed = report(tmp_path / "f.json", [{"result": "fail", "fail_reason": "bits", "display_name": "Scaling 3"}])
    other, none = tmp_path / "other.json", tmp_path / "no.json"
    other.write_text('{"a": 1}')
    lone = report(tmp_path / "e.json", [{"outputdir": str(doctor(tmp_path / "e", 2, COSTS))}])
    for path, words in (
        (failed, "Scaling 3 did not pass: bits"),
        (none, f"there is no file {none}"),
        (other, f"{other} is neither ReFrame's report nor a kept scaling study"),
        (lone, f"no run is in {lone}"),
    ):
        (line,) = refuses("scaling", [str(path)])
        assert line.startswith(f"scaling: {words}")


# --- the model


def net_of(script: Script, **more: Any) -> Any:
    """A network with round numbers."""
    values: dict[str, Any] = {
        "stage": {"ask": 0.001, "upload": 0.0005, "mean": 0.002, "account": 0.0001},
        "rank": {"ask": 0.0, "upload": 0.0, "mean": 0.0, "account": 0.0},
        "reply": 0.0,
        "down": 1e-6,
        "up": 2e-6,
        "averaged": 3e-6,
    }
    return script("shared.round_model").Network(**{**values, **more})


def work_of(script: Script, **more: Any) -> Any:
    """A question with 0.01 s of computing, 1,000 B down and 100 B up, to each client."""
    model = script("shared.round_model")
    question = model.Question(**{"mean": False, "seconds": 0.01, "down": 1000, "up": 100, "items": 1, **more})
    return model.Work((question,), fixed=0.004, item=0.0005, client=0.0, meanwhile=True)


def test_each_term_of_a_question_is_what_the_model_says(script: Script) -> None:
    """10 clients on 3 ranks: 4 on the busiest, 3 waves after the first. Mutations: floor of m/P; the first wave counted
    twice; the sum of what goes on at once in place of the longest; bytes down of all clients, up of one."""
    model = script("shared.round_model")
    fixed = (0.0001 + 0.001) * 2 + 1000 * 1e-6  # two stages: 3 ranks and the server
    clients = model.predict(work_of(script), net_of(script), 10, 3, "one")
    assert clients.seconds == pytest.approx(fixed + 4 * 0.01 + 3 * 0.0005, rel=1e-12)
    assert clients.limit == "clients"
    slow = replace(work_of(script), item=0.02)
    assert model.predict(slow, net_of(script), 10, 3, "one").seconds == pytest.approx(
        fixed + 0.01 + 10 * 0.02, rel=1e-12
    )
    assert model.predict(slow, net_of(script), 10, 3).limit == "server"
    far = net_of(script, stage={"ask": 0.001, "upload": 0.05, "mean": 0.002, "account": 0.0001})
    waved = model.predict(work_of(script), far, 10, 3, "one")
    assert waved.seconds == pytest.approx(fixed + 0.01 + 3 * 0.1 + 10 * 100 * 2e-6, rel=1e-12)
    assert waved.limit == "waves"
    shared = model.predict(work_of(script), net_of(script, speed=0.25), 10, 3, "one")
    total = 10 * 0.01 + 0.004 + 10 * 0.0005  # on what is one core
    assert [model.turns(10, 3, k) for k in (1, 2, 3)] == [10, 3 * 1.5 + 1, 4]
    assert shared.seconds == pytest.approx(fixed + max((3 * 3 + 1) * 0.01 + 3 * 0.0005, total), rel=1e-12)


def test_packed_replies_take_few_waves(script: Script) -> None:
    """6,000 clients on 10 ranks. Mutations: 60 items a wave of all ranks together; the bound on bytes forgotten."""
    model = script("shared.round_model")
    quick = work_of(script, seconds=0.0)
    one, packed = (model.predict(quick, net_of(script), 6_000, 10, form).parts["waves"] for form in ("one", "packed"))
    stages = math.log2(11)
    assert one == pytest.approx(599 * 0.0005 * stages) and packed == pytest.approx(9 * 0.0005 * stages)
    unpacked = net_of(script, reply=0.00005)
    both = [model.predict(quick, unpacked, 6_000, 10, form) for form in ("one", "packed")]
    assert [each.parts["server"] for each in both] == pytest.approx([0.004 + 6_000 * 0.00055] * 2)
    large = work_of(script, up=32_768)  # two of them fill a wave
    assert model.predict(large, net_of(script), 6_000, 10).parts["waves"] == pytest.approx(299 * 0.0005 * stages)


def test_a_mean_is_not_asked_client_by_client(script: Script) -> None:
    """Mutations: its bytes for every client; the server's work hidden behind the clients'; an account after it."""
    model = script("shared.round_model")
    todo = replace(work_of(script, mean=True), meanwhile=False, item=0.0, client=0.002)
    found = model.predict(todo, net_of(script), 10, 3)
    moved = 1000 * 1e-6 + 100 * 3e-6
    assert found.seconds == pytest.approx(0.002 * 2 + moved + 4 * 0.012 + 0.004, rel=1e-12)


def test_a_server_of_several_ranks_shares_the_passes_and_pays_for_the_exchange(script: Script) -> None:
    """Mutations: a share of the exchange too; rank 0's own uploads sent; a step's exchange for each upload."""
    model = script("shared.round_model")
    todo, net = replace(work_of(script, up=1000), item=0.008), net_of(script)
    items, up = todo.questions[0].items, todo.questions[0].up
    assert model.shared_server(todo, net, 1, 6, 500) == todo
    found = model.shared_server(todo, net, 4, 6, 500)
    step = net.fixed("mean", 3) + 500 * (4 * net.down + 8 * net.averaged)
    assert found.item == pytest.approx(0.002 + (up * net.up * 0.75 + step / 6) / items, rel=1e-12)
    assert replace(found, item=0.008) == todo


def test_ranks_of_many_clients_do_the_servers_work_for_a_sum(script: Script) -> None:
    """100 clients on 3 ranks, then 10. Mutations: all terms at the server; those of all ranks at one; a vector for each
    client; few clients asked for a sum."""
    model, todo = script("shared.round_model"), work_of(script)
    far = script("scaling_model").line("heron", replace(todo, item=0.02), net_of(script), 100, 3)
    assert (far["limit"], far["lifted_by"]) == ("server", script("scaling_model").SERVER_LIFTS["heron"])
    many = model.predict(replace(todo, item=0.02, summed=True), net_of(script), 100, 3)
    moved = 1000 * 1e-6 + 4 * 1000 * 3e-6
    assert many.seconds == pytest.approx(0.002 * 2 + moved + 34 * 0.03 + 100 * 5e-6, rel=1e-12)
    assert many.limit == "clients" and many.parts["server"] == pytest.approx(0.0045)
    few = [model.predict(replace(todo, summed=summed), net_of(script), 10, 3).seconds for summed in (False, True)]
    assert few[0] == few[1]


def synthetic(script: Script, todo: Any, net: Any, method: str) -> Any:
    """A study made from the model: 3 runs in one process, exchanges and runs on 2, 3 and 7 ranks."""
    shared, model = script("shared.scaling"), script("shared.round_model")

    def timing(ranks: int, m: int, seconds: float) -> Timing:
        steps = tuple(
            StepTiming(name, m * q.seconds, m * q.down, m * q.up, m * q.items)
            for name, q in zip(("train", "update"), todo.questions, strict=False)
        )
        items = sum(q.items for q in todo.questions if not q.mean)
        server = todo.fixed + m * (items * todo.item + todo.client)
        parts = dict.fromkeys(
            ("low", "high", "compute", "compute_all", "wait", "send", "server_wait", "server_send"), 0.0
        )
        rest = {"bytes_down": 0.0, "bytes_up": 0.0, "start": 0.0, "kernel": "", "steps": steps, "nodes": 1, "rounds": 6}
        return Timing(m=m, participants=m, ranks=ranks, seconds=seconds, server_compute=server, **parts, **rest)

    cases = [shared.Case("here", method, "low", "", timing(1, m, 1.0)) for m in (2, 4, 8)]
    exchanges = []
    for ranks in (2, 3, 7):
        p = ranks - 1
        costs = {kind: Cost(net.fixed(kind, p)) for kind in ("ask", "upload", "mean", "account")}
        costs["ask"] = Cost(net.fixed("ask", p), net.down)
        costs["mean"] = Cost(net.fixed("mean", p), net.averaged)
        costs["reply"] = Cost(p * net.reply, net.up)
        costs |= {"alone": Cost(0.01), "together": Cost(net.fixed("ask", p) + 0.01 / net.speed)}
        exchanges.append(shared.Exchange("here", ranks, 1, "Abacus 9", "Open MPI v5", costs))
        seconds = model.predict(todo, net, 8, p).seconds
        cases.append(shared.Case("here", method, "low", "strong", timing(ranks, 8, seconds)))
    return shared.Measured(tuple(cases), tuple(exchanges), "2026-11-22")


@pytest.mark.parametrize("method", ["zo_hfl", "fedavg", "heron"])
@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_the_model_is_exact_on_data_made_from_it(script: Script, method: str, speed: float) -> None:
    """Work and network come back, and every run is predicted. Mutations: work of a mean counted as the server's; the
    fixed part lost; seconds of all clients taken for one's; the network of other ranks; a share of the bytes."""
    model = script("shared.round_model")
    train: dict[str, Any] = {"seconds": 0.01, "down": 5000, "up": 300, "items": 3 if method == "heron" else 1}
    questions = [model.Question(mean=method == "fedavg", **train)]
    if method == "heron":
        questions.append(model.Question(mean=True, seconds=0.0, down=0, up=5000, items=1))
    per = {"item": 0.0, "client": 0.003} if method == "fedavg" else {"item": 0.0005, "client": 0.0}
    todo = model.Work(tuple(questions), fixed=0.004, meanwhile=method == "zo_hfl", **per)
    net = net_of(script, reply=0.00005, speed=speed)
    made = synthetic(script, todo, net, method)
    again = script("scaling_model").work_of(made, method, "low", "here")
    assert (again.fixed, again.item, again.client) == pytest.approx((todo.fixed, todo.item, todo.client), rel=1e-9)
    assert again.questions == todo.questions and again.meanwhile == todo.meanwhile
    fitted = model.network(made.exchanges)
    assert fitted.stage == pytest.approx(net.stage, rel=1e-9) and fitted.rank == pytest.approx(net.rank, abs=1e-12)
    errors = [script("scaling_model").checked(case, made)["error"] for case in made.cases if case.timing.ranks > 1]
    assert errors == pytest.approx([0.0] * 3, abs=1e-9)


def test_the_models_text_and_figure_are_made(wrote: Any, tmp_path: Path) -> None:
    """Mutations: errors of one sign only; a method's far rounds left out; the limit's sentence of another limit."""
    told = wrote("scaling_model", [str(study(tmp_path / "s"))])
    assert [row["ranks"] for row in told.rows] == ["2", "3"]
    for row in told.rows:
        assert float(row["error"]) == pytest.approx(float(row["predicted"]) / float(row["measured"]) - 1)
    text = " ".join(told.out.split())
    assert "2 runs: error" in text and "links of 100 Gbit/s" in text
    far = table_of(told.path("_far.csv"))
    places = [(row["m"], row["client_ranks"]) for row in far]
    assert places == [(m, p) for m in ("1000", "100000") for p in ("16", "128", "1024")]
    assert {row["limit"] for row in far} == {"clients"}
    assert all(row["lifted_by"].startswith("more client ranks") for row in far)
    check_figure(told.stem)


def test_a_model_without_its_measurements_is_refused(refuses: Any, tmp_path: Path) -> None:
    tests = json.loads(study(tmp_path / "s").read_text())["runs"][0]["testcases"]
    without = report(tmp_path / "w.json", [test for test in tests if "method" in test])
    alone = report(tmp_path / "a.json", tests[:1])
    for words, sentence in (
        ([str(without)], "here: no exchange on 2 ranks is among the results"),
        ([str(alone)], "no run on several ranks is among the results: there is nothing to compare the model with"),
        ([str(tmp_path / "s/report.json"), "--rate", "0"], "--rate 0.0: must be a number of Gbit/s above 0"),
    ):
        assert refuses("scaling_model", words) == [f"scaling_model: {sentence}"]
