"""The page about runs, in a real browser; the table in the terminal. Figures: tests/unit/test_figure.py."""

import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.analysis.made import refused as refused_by
from tests.conftest import Capsys, Patch, run_process
from zofl_mpi.report import charts, facts, same, watch
from zofl_mpi.report.__main__ import main
from zofl_mpi.report.groups import of_results
from zofl_mpi.run import records

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">@CURVES@"


def made(path: Path, rounds: int = 5, every: int = 2, gain: float = 0.1, **attrs: Any) -> records.Recorder:
    """A result with rows of an evaluation every second round; still open."""
    m = 3
    attrs = {"config": {"method": "fedavg", "rounds": 9, "seed": 1, **attrs.pop("config", {})}, **attrs}
    recorder = records.Recorder.create(path, attrs=attrs, m=m, ranks=2, rounds=9)
    recorder.begins(1.25)
    for r in range(rounds):
        row = {"round": r + 1.0, "seconds": 2.0, **({} if r % every else {"test_accuracy": 0.5 + gain * r})}
        clients = {"bytes_up": np.full((2, m), 2**19), "messages": np.array([[0] * m, [1] * (m - 1) + [r % 2]])}
        seconds = {"seconds_compute": np.array([[1.0, 0.0], [0.0, 1.5]]), "seconds_wait": np.full((2, 2), 0.25)}
        recorder.append(row, steps=["server", "train"], **clients, **seconds)
    return recorder


PROBE = """
<script>
const errors = [];
window.addEventListener("error", event => errors.push(event.message));
console.error = (...words) => errors.push(words.join(" "));
document.addEventListener("securitypolicyviolation", event => errors.push(event.blockedURI + event.violatedDirective));
</script>
"""
ZOOM = """
<script>
window.addEventListener("load", () => setTimeout(() => {
  const plot = document.getElementById("curves"), drag = plot.querySelector(".nsewdrag");
  const box = drag.getBoundingClientRect(), all = query => [...document.querySelectorAll(query)];
  const before = plot.layout.xaxis.range.slice();
  const mouse = (type, target, share) => target.dispatchEvent(new MouseEvent(type, {
    bubbles: true, clientX: box.left + share * box.width, clientY: box.top + box.height / 2, button: 0, buttons: 1 }));
  mouse("mousedown", drag, 0.25); mouse("mousemove", document, 0.5);
  mouse("mousemove", document, 0.75); mouse("mouseup", document, 0.75);
  setTimeout(() => {
    const found = {
      errors, before, after: plot.layout.xaxis.range, title: document.title,
      drawn: all(".plot, #curves").map(one => [one.id, one.querySelectorAll(".main-svg").length > 0]),
      names: all("#curves .legendtext").map(one => one.textContent),
      shares: all("[data-title*=hare]").length,
      wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      fetched: performance.getEntriesByType("resource").map(one => one.name),
    };
    const told = document.createElement("pre");
    told.id = "found"; told.textContent = JSON.stringify(found); document.body.append(told);
  }, 500);
}, 500));
</script>
"""


def browsed(page: Path, width: int = 1200) -> dict[str, Any]:
    """What a browser finds on the page, after a drag over the middle half of its first figure."""
    text = page.read_text().replace("<head>", "<head>" + PROBE).replace("</body>", ZOOM + "</body>")
    page.with_name("probed.html").write_text(text)
    words = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},2000"]
    words += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    done = run_process([*words, page.with_name("probed.html").as_uri()])
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    return dict(json.loads(unescape(found)))


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("width", [1200, 500])  # a browser without a screen is no narrower
def test_the_page_is_drawn_by_a_browser_and_can_be_zoomed(tmp_path: Path, width: int) -> None:
    """Of a finished, a running and a killed run. Mutations: a script that fails; a figure that is not drawn; a button
    or a text that needs a network; names from a result that become code."""
    made(tmp_path / "done.h5", command=HOSTILE, config={"alpha": HOSTILE}).finish({"x": np.zeros(3)})
    running = made(tmp_path / "running.h5", rounds=3, config={"alpha": 0.1})
    killed = made(tmp_path / "killed.h5", rounds=2, config={"alpha": 1.0})
    killed.abandon()
    runs = [tmp_path / f"{name}.h5" for name in ("done", "running", "killed")]
    main([*map(str, runs), "--out", str(tmp_path / "report.html")])
    running.close()
    assert (tmp_path / "report.html").stat().st_size < 6e6
    found = browsed(tmp_path / "report.html", width)
    assert found["errors"] == [] and found["fetched"] == [] and found["shares"] == 0
    assert found["title"] == "3 runs compared"
    assert found["names"] == [f"FedAvg, alpha {alpha}" for alpha in (HOSTILE, 0.1, 1)]
    assert {place for place, there in found["drawn"] if there} == {
        "curves",
        *(f"run{k}-{n}" for k in range(3) for n in range(4)),
    }
    (a, b), (after_a, after_b) = found["before"], found["after"]
    assert after_a == pytest.approx(a + 0.25 * (b - a), abs=0.02 * (b - a))
    assert after_b == pytest.approx(a + 0.75 * (b - a), abs=0.02 * (b - a))
    assert found["wide"] <= 0


def test_curves_have_every_column_against_rounds_seconds_and_bytes(tmp_path: Path) -> None:
    """Mutations: sums that begin with the second round; bytes of both directions in one; an evaluation elsewhere."""
    made(tmp_path / "a.h5").close()
    drawn = charts.curves(of_results([records.load(tmp_path / "a.h5")]).groups)
    assert drawn["columns"][0]["name"] == "test_accuracy"
    (run,) = drawn["groups"]
    assert run["y"]["test_accuracy"] == [0.5, None, 0.7, None, 0.9]
    assert list(run["x"].values()) == [[1, 2, 3, 4, 5], [2, 4, 6, 8, 10], [3, 6, 9, 12, 15], [0] * 5, [3, 6, 9, 12, 15]]


def test_figures_of_a_run_by_hand(tmp_path: Path) -> None:
    made(tmp_path / "a.h5").close()
    run = records.load(tmp_path / "a.h5")
    by_rank = {trace["name"]: trace["y"] for trace in charts.rank_seconds(run)["data"]}
    assert by_rank == {"computing": [5.0, 7.5], "waiting": [2.5, 2.5], "sending": [0.0, 0.0]}
    up = charts.step_bytes(run)["data"][1]
    assert (up["x"], up["y"]) == (["server", "train"], [7.5, 7.5])
    assert charts.participation(run)["data"][0]["y"] == [5.0, 5.0, 2.0]


def test_many_clients_and_rounds_are_shown_in_few_points() -> None:
    """Mutations: the last round left out; a group that is longer than its name; sums in place of means."""
    assert len(charts.thinned(10**6)) <= charts.POINTS and charts.thinned(10**6)[-1] == 10**6 - 1
    names, starts = charts.groups(130)
    assert len(names) == charts.BARS and names[0] == "0 to 1" and names[-1].endswith("the last")
    firsts = [int(name.split()[0]) for name in names]
    assert [int(name.split()[2]) + 1 for name in names[:-1]] == firsts[1:]
    assert charts.means(np.full(130, 3.0), starts).tolist() == [3.0] * charts.BARS
    assert charts.groups(2, np.array([0, 10]))[0] == ["0 to 9", "10 to the last"]


def test_runs_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    for name, config in {"a": {"gamma": 0.1}, "b": {"gamma": 1.0}, "c": {"gamma": 1.0, "out": "c"}}.items():
        made(tmp_path / f"{name}.h5", config=config).close()
    runs = [records.load(tmp_path / f"{name}.h5") for name in "abc"]
    assert facts.labels(runs) == ["fedavg, gamma 0.1", "fedavg, gamma 1.0 (b.h5)", "fedavg, gamma 1.0 (c.h5)"]
    assert facts.labels(runs[:1]) == ["fedavg"]


def test_the_table_is_watched_until_no_run_is_running(tmp_path: Path, monkeypatch: Patch) -> None:
    recorder = made(tmp_path / "a.h5", rounds=2)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: recorder.close())
    with (tmp_path / "seen").open("w") as file:
        watch.watch([tmp_path / "a.h5"], Console(file=file, width=80, force_terminal=True))
    seen = (tmp_path / "seen").read_text()
    assert "running" in seen and seen.rindex("interrupted") > seen.rindex("running") and "2 of 9" in seen


@pytest.mark.parametrize("columns", [("test_accuracy", "test_loss"), ("objective",)])
def test_the_figure_of_a_run_is_drawn_also_while_it_runs(tmp_path: Path, columns: tuple[str, ...]) -> None:
    recorder = records.Recorder.create(tmp_path / "a.h5", attrs={"config": {}}, m=2, ranks=1, rounds=9)
    for r in range(3):
        row = {"round": r + 1.0, **{name: 0.5 for name in columns if r != 1}}
        recorder.append(row, steps=["solve"], bytes_up=np.full((1, 2), 8), seconds_compute=[[0.5]])
    for name in ("a.png", "b.pdf"):
        main([str(tmp_path / "a.h5"), "--out", str(tmp_path / name)])
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("results", "out", "sentence"),
    [
        (["none"], "a.html", "there is no file"),
        (["text"], "a.html", "text.h5"),
        (["new"], "a.png", "the runs have no column in common"),
        (["new"], "a.docx", "ends in neither .html nor .png, .pdf, .svg"),
        (["new"], "missing/a.html", "there is no folder"),
    ],
)
def test_a_page_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, capsys: Capsys, results: list[str], out: str, sentence: str
) -> None:
    records.Recorder.create(tmp_path / "new.h5", attrs={}, m=2, ranks=1, rounds=9).close()
    (tmp_path / "text.h5").write_text("no HDF5")
    words = [str(tmp_path / f"{name}.h5") for name in results]
    (line,) = refused_by(main, [*words, "--out", str(tmp_path / out)], capsys)
    assert line.startswith("zofl_mpi: ") and sentence in line
    assert not (tmp_path / out).exists()


def test_results_are_compared_by_their_bits(tmp_path: Path, capsys: Capsys) -> None:
    """Mutations: seconds that count; the state that does not; status 0 where something differs; NaN differs from a
    value; any two values agree."""
    for name, every, gain in (("a", 2, 0.1), ("b", 2, 0.1), ("c", 2, 0.2), ("d", 1, 0.1)):
        made(tmp_path / f"{name}.h5", 3, every, gain).finish({"x": np.full(2, gain)})
    a, b, c, d = (str(tmp_path / f"{name}.h5") for name in "abcd")
    for words, status, told in (
        ([b], 0, f"{b}: the same bits\n"),
        ([d], 0, f"{d}: the same bits, evaluated in other rounds\n"),
        ([b, c], 1, f"{c}: differs in final/x, rounds/test_accuracy (flags, data"),
    ):
        with pytest.raises(SystemExit) as ended:
            same.main([a, *words])
        assert ended.value.code == status and told in capsys.readouterr().out
    (line,) = refused_by(same.main, [a, str(tmp_path / "none.h5")], capsys)
    assert line.startswith("zofl_mpi: there is no file")
