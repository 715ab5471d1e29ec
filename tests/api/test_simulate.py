"""Runs from Python in one process: the command line's bits, step by step, continued, stopped, failed."""

import gc
import importlib
import os
import pkgutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zofl_mpi as zofl
from tests.api.conftest import FedSGD, samples
from tests.conftest import Capsys, Patch
from tests.launch import here
from zofl_mpi import Federation, RunFailed, UserError
from zofl_mpi.api import isolation
from zofl_mpi.run import records
from zofl_mpi.run.loop.signals import Stop


def softmax(method: Any, data: Any, out: Path, **flags: Any) -> zofl.Result:
    return zofl.simulate(method, "softmax", data, family="zo_hfl", out=out, **flags)


def test_a_run_has_the_bits_of_the_command_line(tmp_path: Path, data: Federation) -> None:
    """And one in memory those of the same samples. Mutations: another seed; a flag that does not reach the run."""
    words = {"m": 4, "rounds": 3, "tau": 2, "gamma_local": 0.2, "seed": 3, "eval_every": 2}
    result = softmax("fedavg", "digits", tmp_path / "a.h5", **words)
    typed = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert here("zofl_mpi.zo_hfl", "--method", "fedavg", *typed, "--out", tmp_path / "b.h5", "--quiet") == 0
    typed_run = records.load(tmp_path / "b.h5")
    np.testing.assert_array_equal(result.final["x"], typed_run.final["x"])
    assert result.status == "done" and result.config == typed_run.config | {"rounds": 3}
    for name in typed_run.rounds.keys() - {"seconds"}:
        np.testing.assert_array_equal(result.run.rounds[name], typed_run.rounds[name])
    assert result.run.attrs["command"].split()[:3] == ["python", "-m", "zofl_mpi.zo_hfl"]
    assert here("zofl_mpi.zo_hfl", "--resume", result.path, "--rounds", 4, "--quiet") == 0
    assert records.load(result.path).length == 4


def test_step_by_step_with_a_stop_and_continued_has_the_same_bits(tmp_path: Path, data: Federation) -> None:
    """Mutations: the block's end that runs all rounds; a stop one round late; data that are not handed on."""
    whole = softmax(FedSGD, data, tmp_path / "whole.h5", rounds=9, eval_every=2)
    with zofl.Simulation(
        FedSGD, "softmax", data, family="zo_hfl", rounds=9, eval_every=2, out=tmp_path / "a.h5"
    ) as run:
        assert run.rounds == 0 and run.rank == 0 and run.plan["gamma"] == 0.5
        with pytest.raises(UserError, match="no result yet"):
            run.result  # noqa: B018
        for row in run:
            assert row["round"] == run.rounds == run.state.r
            if run.rounds == 4:
                run.stop("enough")
    assert (run.result.status, run.result.reason, run.rounds) == ("stopped", "enough", 4)
    assert records.load(tmp_path / "a.h5").attrs["stopped"] == "enough"
    again = zofl.simulate(run.result, rounds=9)
    np.testing.assert_array_equal(again.final["x"], whole.final["x"])
    loaded = zofl.load(tmp_path / "a.h5", method=FedSGD)
    assert loaded.status == "done" and loaded.row["round"] == 9
    longer = zofl.simulate(loaded, "softmax", data, family="zo_hfl", rounds=10)
    assert longer.row["round"] == 10
    with pytest.raises(UserError, match="method=THE CLASS"):
        zofl.simulate(zofl.load(tmp_path / "a.h5"), "softmax", data)
    other = Federation.of_clients([samples(50, 1)], test=samples(60, 5))
    with pytest.raises(UserError, match="data or network are not those that the run began with"):
        zofl.simulate(longer, "softmax", other, rounds=11)


def test_a_simulation_runs_once_and_in_its_block(tmp_path: Path, data: Federation) -> None:
    """Mutation: a second run whose callbacks do not start, and whose ranks wait."""
    run = zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=2, out=tmp_path / "a.h5")
    with pytest.raises(UserError, match="the run has not begun: iterate in a `with` block"):
        next(iter(run))
    with run:
        assert len(list(run)) == 2
    with pytest.raises(UserError, match="this Simulation has run: make another one"), run:
        pass
    assert run.result.status == "done" and list(run) == []


def test_leaving_the_block_ends_the_run_after_the_round(tmp_path: Path, data: Federation) -> None:
    with zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=9, out=tmp_path / "a.h5") as run:
        for row in run:
            if row["round"] == 2:
                break
    assert run.result.status == "stopped" and run.result.run.length == 2
    failing = zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=9, out=tmp_path / "b.h5")
    with pytest.raises(ZeroDivisionError), failing as run:
        for row in run:
            1 / (row["round"] - 3)
    found = records.load(tmp_path / "b.h5")
    assert found.attrs["status"] == "interrupted" and found.length == 3
    with zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=9, out=tmp_path / "c.h5") as run:
        pass
    assert run.result.status == "stopped" and run.rounds == 0


def test_a_method_ends_its_run(tmp_path: Path, data: Federation) -> None:
    """Mutations: one round later; a status that says done."""

    @dataclass(frozen=True)
    class Ending(FedSGD):
        def ends(self, state: Any, r: int) -> str:
            return "it is good enough" if r == 2 else ""

    result = softmax(Ending, data, tmp_path / "a.h5", rounds=9)
    assert (result.status, result.reason, result.run.length) == ("stopped", "the method ended it: it is good enough", 3)
    assert result.final["r"] == 3
    longer, whole = zofl.simulate(result, rounds=9), softmax(FedSGD, data, tmp_path / "b.h5", rounds=9)
    assert longer.status == "done" and longer.row["round"] == 9
    np.testing.assert_array_equal(longer.final["x"], whole.final["x"])


class Looking:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_start(self, run: Any) -> None:
        self.seen.append(("start", run.rounds))

    def on_round(self, run: Any, row: Any) -> None:
        checkpoint = records.checkpoint_path(Path(run._session.recorder.path)).exists()
        self.seen.append((row["round"], run._session.rounds.totals.round, checkpoint))
        time.sleep(0.5)

    def on_end(self, run: Any) -> None:
        self.seen.append(("end", run.result.status))


def test_callbacks_see_each_row_before_its_checkpoint_and_cost_no_round(tmp_path: Path, data: Federation) -> None:
    """Mutations: after the checkpoint; before the row; seconds that count for the next round."""
    looks = Looking()
    result = softmax(
        FedSGD,
        data,
        tmp_path / "a.h5",
        rounds=3,
        checkpoint_every=1,
        callbacks=[looks, SimpleNamespace(on_start=id)],
    )
    assert looks.seen == [("start", 0), (1, 1, False), (2, 2, True), (3, 3, True), ("end", "done")]
    assert result.run.rounds["seconds"].max() < 0.4


def test_a_round_that_fails_says_where_and_shows_the_users_frames(tmp_path: Path, data: Federation) -> None:
    """Mutations: frames of the package alone; an exit; a result that stays open."""

    @dataclass(frozen=True)
    class Failing(FedSGD):
        def gradient(self, client: Any, model: Any) -> Any:
            if (client.i, model.r) == (1, 2):
                raise ArithmeticError("planted")
            return super().gradient(client, model)

    with pytest.raises(RunFailed) as caught:
        softmax(Failing, data, tmp_path / "a.h5", rounds=9)
    exc = caught.value
    assert (exc.round, exc.client, exc.step, exc.rank) == (3, 1, "gradient", 0)
    assert "planted" in exc.cause and "the 2 finished rounds are in" in exc.kept and isinstance(exc, UserError)
    assert traceback.extract_tb(exc.__traceback__)[-1].line == 'raise ArithmeticError("planted")'
    assert isinstance(exc.__cause__.__cause__, ArithmeticError)
    assert records.load(tmp_path / "a.h5").attrs["status"] == "interrupted"


def test_what_a_script_changes_between_rounds_is_no_hidden_state(
    tmp_path: Path, data: Federation, monkeypatch: Patch
) -> None:
    """In the method's own module, as in a notebook or a script, where `for row in run` sets a name; and random numbers.
    Mutations: a failed run; a round's own change that is found no more."""
    own: Any = ModuleType("of_a_script")
    monkeypatch.setitem(sys.modules, "of_a_script", own)

    class Own(FedSGD):
        __module__ = "of_a_script"

    class Hiding(Own):
        __module__ = "of_a_script"

        def round(self, model: Any, r: int, clients: Any) -> Any:
            own.seen = r
            return super().round(model, r, clients)

    def note(row: Any) -> None:
        own.row, own.count = row["round"], getattr(own, "count", 0) + 1
        np.random.random()  # noqa: NPY002

    words: dict[str, Any] = {"family": "zo_hfl", "rounds": 4, "eval_every": 2}
    with zofl.Simulation(Own, "softmax", data, out=tmp_path / "a.h5", **words) as run:
        for row in run:
            note(row)
    noting = SimpleNamespace(on_round=lambda run, row: note(row))
    again = zofl.simulate(Own, "softmax", data, out=tmp_path / "b.h5", callbacks=[noting], **words)
    np.testing.assert_array_equal(again.final["x"], run.result.final["x"])
    for callbacks in ([noting], []):
        with pytest.raises(RunFailed, match="a round changed seen of the module of_a_script"):
            zofl.simulate(Hiding, "softmax", data, out=tmp_path / "c.h5", force=True, callbacks=callbacks, **words)


class NoStart(FedSGD):
    def start(self) -> Any:
        raise ArithmeticError("planted")


class NoState(FedSGD):
    def start(self) -> Any:
        return 3


class NoMemory(FedSGD):
    def gradient(self, client: Any, model: Any) -> Any:
        client.memory["handle"] = object()
        return super().gradient(client, model)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (NoStart, "the start: ArithmeticError: planted; the 0 finished rounds are in"),
        (NoState, "the start: TypeError: a message is an instance of a dataclass, not int; the 0 finished"),
        (NoMemory, "the checkpoint after round 2 failed: the memory of client 0: TypeError: .* is a object"),
    ],
)
def test_what_fails_outside_a_round_is_a_failed_run(method: Any, words: str, tmp_path: Path, data: Federation) -> None:
    """And the command line's sentence. Mutation: the exception as it is, which no other rank and no caller expects."""
    with pytest.raises(RunFailed, match=words) as caught:
        softmax(method, data, tmp_path / "a.h5", rounds=9, checkpoint_every=2)
    assert caught.value.round == 0 and records.load(tmp_path / "a.h5").attrs["status"] == "interrupted"


@pytest.mark.parametrize(
    ("arguments", "flags", "words"),
    [
        (("fedavgg",), {}, "method fedavgg: must be one of .*; the nearest is fedavg"),
        (("fedavg", "softmux"), {}, "problem softmux: must be one of .*; the nearest is softmax"),
        (("fedavg", "mlp"), {}, "belong to zo_hfl and fedrzo: choose one by family='zo_hfl'"),
        (("fedavg", "softmax"), {"tua": 3}, r"unknown flag --tua; the nearest is --tau"),
        (("fedavg", "softmax"), {"tau": {}}, "tau is a dict; a flag's value is"),
        (("fedavg", "softmax"), {"beta": 0}, "--beta 0.0: must be"),
        (("fedavg", 3), {}, "problem is a int; it must be a problem's word, a class"),
        (("fedavg", "softmax"), {"family": "zo"}, "family 'zo': must be one of zo_hfl, fedrzo, heron_sfl"),
        (("fedavg", "softmax"), {"dry_run": True}, "dry_run: has no effect in a script; call zofl_mpi.plan"),
        ((int, "softmax"), {}, "int is no method, it lacks"),
        (("fedavg", "softmax"), {"out": "--x"}, "out='--x' is not a valid flag value"),
        (("fedavg", "softmax"), {"help": True}, "help: has no effect in a script; python -m zofl_mpi.FAMILY --help"),
        (("fedavg", "softmax"), {"family": 3}, "family 3: must be one of zo_hfl, fedrzo, heron_sfl"),
        (("fedavg", "softmax", (1, 2)), {}, r"data is a tuple; it must be .*zofl_mpi.Federation.of_clients\(...\)"),
        (
            ("fedavg", "softmax"),
            {"callbacks": zofl.EarlyStopping("f1")},
            "callbacks is a EarlyStopping; it must be a l",
        ),
        (("fedavg", "softmax"), {"callbacks": [zofl.EarlyStopping]}, "callbacks has the class EarlyStopping in it"),
        (
            ("fedavg", "softmax"),
            {"callbacks": [print]},
            "callbacks has a builtin_function_or_method in it; it must hav",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_is_a_sentence_before_anything_is_written(
    arguments: Any, flags: Any, words: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as caught:
        zofl.simulate(*arguments, **flags)
    assert not isinstance(caught.value, RunFailed) and list(tmp_path.iterdir()) == []


def test_the_plan_is_what_a_dry_run_prints(
    data: Federation, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    found = zofl.plan("fedavg", "softmax", "digits", tau=5)
    assert found.config["tau"] == (5.0,) and found.expected["length of x, n"] == 640
    assert here("zofl_mpi.zo_hfl", "--method", "fedavg", "--tau", 5, "--dry-run") == 0
    both = capsys.readouterr().out, str(found)
    texts = [[line for line in text.splitlines() if "seconds" not in line] for text in both]
    assert texts[0] == texts[1]
    assert list(tmp_path.iterdir()) == []


def test_no_public_name_is_hidden_by_a_module() -> None:
    """Importing every module sets attributes of the package. Mutation: a function `report` beside the folder."""
    for found in pkgutil.walk_packages(zofl.__path__, "zofl_mpi."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in zofl.__all__:
        assert name == "records" or not isinstance(getattr(zofl, name), type(sys)), name


def test_two_runs_at_once_are_refused(tmp_path: Path, data: Federation) -> None:
    with zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=2, out=tmp_path / "a.h5") as run:
        with pytest.raises(UserError, match="a run is in progress in this process"):
            softmax(FedSGD, data, tmp_path / "b.h5", rounds=1)
        assert len(list(run)) == 2
    assert softmax(FedSGD, data, tmp_path / "b.h5", rounds=1).status == "done"


def marks() -> dict[str, Any]:
    """What a run could leave behind in its process."""
    import torch
    from threadpoolctl import ThreadpoolController

    gc.collect()
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)],
        "wakeup": signal.set_wakeup_fd(-1),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "libraries": {each.filepath: each.num_threads for each in ThreadpoolController().lib_controllers},
        "torch": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()),
        "environment": dict(os.environ),
        "hooks": (sys.excepthook, threading.excepthook, sys.stdout, sys.stderr),
        "path": list(sys.path),
        "folder": os.getcwd(),
        "random": (np.random.get_state(legacy=False)["state"]["key"].tolist(), torch.get_rng_state().tolist()),  # noqa: NPY002
        "files": Counter(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if _is_file(n)),
        "tasks": len(os.listdir("/proc/self/task")),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
    }


def _is_file(n: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{n}").startswith(("/", "pipe", "socket")) and os.path.exists(
            f"/proc/self/fd/{n}"
        )
    except OSError:
        return False


@pytest.mark.parametrize("problem", ["softmax", "mlp"])
def test_a_run_leaves_its_process_as_it_was(problem: str, tmp_path: Path, data: Federation) -> None:
    """Done, failed, refused. Mutations: signals, threads, the environment, a hook that stay."""
    import torch

    torch.set_num_threads(2)
    try:
        zofl.simulate("fedavg", problem, data, family="zo_hfl", rounds=1, out=tmp_path / "first.h5")  # loads libraries
        before = marks()
        for k, flags in enumerate(({}, {"gamma_local": 1e300}, {"tua": 1}, {"beta": 7})):
            with suppress(UserError):
                zofl.simulate("fedavg", problem, data, family="zo_hfl", rounds=2, out=tmp_path / f"{k}.h5", **flags)
            after = marks()
            new = after.pop("files") - before["files"]  # fewer is no fault: garbage of an earlier test closes late
            assert not new, (k, new)
            for name in after:
                assert after[name] == before[name], (k, name)
    finally:
        torch.set_num_threads(1)


def test_twenty_runs_keep_their_memory(tmp_path: Path, data: Federation) -> None:
    """Mutation: a run that stays in a list: small data would not show, 8 MB of a client's memory do."""

    @dataclass(frozen=True)
    class Large(FedSGD):
        def start(self) -> Any:
            return super().start()

        def gradient(self, client: Any, model: Any) -> Any:
            client.memory["much"] = np.full(1 << 20, float(client.i))
            return super().gradient(client, model)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for k in range(24):
        result = softmax(Large, data, tmp_path / f"{k}.h5", rounds=1, checkpoint_every=0)
        if k == 3:
            first = resident()
    assert result.status == "done" and resident() - first < 100 << 20  # 20 runs hold 480 MiB


def test_signals_are_heard_in_the_main_thread_alone_and_stop_the_run(tmp_path: Path, data: Federation) -> None:
    def interrupt(run: Any, row: Any) -> None:
        if row["round"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    looking = SimpleNamespace(on_round=interrupt)
    result = softmax(FedSGD, data, tmp_path / "a.h5", rounds=9, callbacks=[looking])
    assert result.status == "interrupted" and result.run.length < 9
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    found: list[Any] = []

    def program() -> None:
        Stop().listen()
        found.append(softmax(FedSGD, data, tmp_path / "b.h5", rounds=2).status)

    thread = threading.Thread(target=program)
    thread.start()
    thread.join()
    assert found == ["done"]


def test_an_edited_module_is_told(tmp_path: Path, data: Federation, monkeypatch: Patch, capsys: Capsys) -> None:
    """Mutation: in silence."""
    monkeypatch.chdir(tmp_path)
    text = "from tests.api.conftest import FedSGD as Base\nclass Mine(Base):\n    pass\n"
    Path("mine_edited.py").write_text(text)
    softmax("mine_edited:Mine", data, tmp_path / "a.h5", rounds=1)
    assert "edited" not in capsys.readouterr().err
    Path("mine_edited.py").write_text(text + "\n")
    softmax("mine_edited:Mine", data, tmp_path / "b.h5", rounds=1)
    assert "mine_edited.py was edited since this process read it" in capsys.readouterr().err


def test_a_notebook_under_a_launchers_variables_says_mpi_false(monkeypatch: Patch, tmp_path: Path, data: Any) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    with pytest.raises(UserError, match=r"inherits SLURM_STEP_NUM_TASKS from a launcher: say mpi=False"):
        softmax(FedSGD, data, tmp_path / "a.h5", rounds=1)
    with pytest.raises(UserError, match="there are no ranks to lead; call the function itself, whose runs say mpi=F"):
        zofl.lead(lambda: 1)
    assert softmax(FedSGD, data, tmp_path / "a.h5", rounds=1, mpi=False).status == "done"
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    assert zofl.lead(lambda value: value + 1, 1) == 2
    assert not isolation._RUNNING.locked()


def test_results_tell_the_best_row(tmp_path: Path, data: Federation) -> None:
    """Mutations: the last row; the largest loss."""
    result = softmax("fedavg", data, tmp_path / "a.h5", rounds=6, eval_every=1, gamma_local=0.3)
    rows = result.run.rounds
    best = result.best("validation_accuracy")
    assert best["round"] == rows["round"][np.argmax(rows["validation_accuracy"])]
    assert result.best("test_loss")["test_loss"] == rows["test_loss"].min()
    assert result.best("test_loss", smallest=False)["test_loss"] == rows["test_loss"].max()
    with pytest.raises(UserError, match="no column 'acuracy'"):
        result.best("acuracy")
    with pytest.raises(UserError, match="without a torch module"):
        result.module()
    assert len(result.table()) == 6
