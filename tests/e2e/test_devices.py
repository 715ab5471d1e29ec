"""--devices in whole runs: counted bytes, the same numbers on any ranks and continued, clients that are left out."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys, Patch
from tests.launch import here, refused
from tests.threads import run_module
from zofl_mpi.engine.fleet import BY_CLIENT, HELD_BYTES, Fleet
from zofl_mpi.problems import Bilevel, SecondOrder
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

SPLIT = "--problem split_resnet --data digits --m 4 --width 2 --stages 1 1 --batch 16 --h 3 --beta 0.5"
COMMANDS = {
    "zo_hfl": ("zo_hfl", "--tau 2 --exchange solutions"),
    "fedavg": ("zo_hfl", "--method fedavg --tau 2 --beta 0.5 --compress topk:0.1"),
    "scaffold": ("zo_hfl", "--method scaffold --tau 2 3 1 1 1 1 1 1 1 1 --compress quantise:3"),
    "ditto": ("zo_hfl", "--method ditto --tau 2"),
    "server_sgd": ("zo_hfl", "--method server_sgd"),
    "fedrzo_nn": ("fedrzo", "--data digits --H 2 --compress topk:0.2"),
    "scaffnew": ("fedrzo", "--data digits --method scaffnew"),
    "fedrzo_bl": ("fedrzo", "--method fedrzo_bl --data digits --T-lower 5 --H-lower 2 --H 2"),
    "fedrzo_bl-fedac": ("fedrzo", "--method fedrzo_bl --data digits --problem fair --lower fedac1 --T-lower 3"),
    "fedrzo_bl-exact": ("fedrzo", "--method fedrzo_bl --data digits --gamma 0.002 --lower exact"),
    "fednest": ("fedrzo", "--method fednest --data digits --H-lower 2 --T 2 --N 3 --series random"),
    "fedmspp": ("fedrzo", "--data digits --method fedmspp --tau 2"),
    "heron": ("heron_sfl", SPLIT + " --state average --optimiser adamw"),
    "heron-seeds": ("heron_sfl", SPLIT + " --uplink seeds"),
    "cse_fsl": ("heron_sfl", SPLIT + " --method cse_fsl --k 2"),
    "fsl_sage": ("heron_sfl", SPLIT + " --method fsl_sage --l 2 --align-epochs 3"),
    "sflv1": ("heron_sfl", SPLIT + " --method sflv1"),
    "sflv2": ("heron_sfl", SPLIT + " --method sflv2"),
    "decomfl": ("heron_sfl", SPLIT + " --method decomfl --n-p 2"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_planned_bytes_are_the_counted_ones(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    """Of each client and round; messages are a model each way, uploads and what is returned for them; and the result
    says what a step holds. Mutations: a head that does not travel; missed rounds of DeComFL left out; uploads without
    messages; the costs of the method alone."""
    fleets, bind = list[tuple[Fleet, Any]](), Fleet.bind

    def noted(self: Fleet, method: Any, needs: Any) -> None:
        bind(self, method, needs)
        fleets.append((self, method))

    monkeypatch.setattr(Fleet, "bind", noted)
    family, words = COMMANDS[name]
    out = tmp_path / "run.h5"
    given = f"{words} --rounds 3 --devices silos --quiet".split()
    assert here(f"zofl_mpi.{family}", *given, "--out", out) == 0
    fleet, method = fleets[-1]
    with h5py.File(out) as file:
        names = ("bytes_down", "bytes_up", "messages")
        down, up, messages = (file[f"clients/{name}"][()].sum(axis=1) for name in names)
        assert json.loads(file.attrs.get("costs", "{}")).get(HELD_BYTES, 0) == int(fleet.needs[-1].bytes)
    for r in range(3):
        work = method.round_work(r)
        planned = np.zeros((2, down.shape[1]))
        planned[:, list(work.clients)] = work.down, work.up
        assert np.array_equal(planned, [down[r], up[r]])
        if method.needs in (Bilevel, SecondOrder):
            assert np.array_equal(work.messages, 2 * messages[r]) and len(set(work.samples)) == 1
        else:
            sent = {"heron": 5, "heron-seeds": 5, "cse_fsl": 4, "fsl_sage": 6 - r % 2, "sflv1": 8, "sflv2": 8}.get(
                name, 2
            )
            assert set(work.messages) <= {sent}
    assert records.load(out).rounds["virtual_seconds"].tolist() == [fleet.columns(k).virtual_seconds for k in (1, 2, 3)]


@pytest.mark.parametrize("name", ["fedavg", "decomfl", "heron"])
def test_virtual_time_is_the_same_on_any_ranks_and_continued(name: str, tmp_path: Path) -> None:
    """With dropped clients. Mutations: participants that client ranks draw otherwise; a clock that begins anew;
    clients' sums that do.
    """
    family, words = COMMANDS[name]
    module, m = f"zofl_mpi.{family}", 4 if family == "heron_sfl" else 10
    given = [*f"{words} --devices d.toml --over-select 1.5 --eval-every 3 --quiet".split()]
    slow = "[class.slow]\nspeed = 1e6\nshare = 0.5\nup = 1e5\navailable = 0.7\n"
    Path("d.toml").write_text("[class.fast]\nspeed = 1e9\nshare = 0.5\n" + slow)
    one, three = tmp_path / "one.h5", tmp_path / "three.h5"
    assert here(module, *given, "--rounds", 6, "--out", one) == 0
    assert run_module(5, module, *given, "--rounds", 3, "--out", three) == 0
    assert run_module(3, module, "--resume", three, "--rounds", 6, "--devices", "d.toml", "--quiet") == 0
    assert differences(one, three) == []
    run = records.load(one)
    assert np.all(np.diff(run.rounds["virtual_seconds"]) > 0) and run.rounds["clients_dropped"].max() > 0
    assert sum(row["clients"] for row in json.loads(run.attrs["devices"])) == m
    each = {name: run.final[f"clients/{name}"] for name in BY_CLIENT}
    assert all(value.shape == (m,) for value in each.values()) and not each["excluded"].any()
    assert each["dropped"].sum() == run.rounds["clients_dropped"].sum() and each["asked"].sum() > each["dropped"].sum()
    assert np.array_equal(each["virtual_seconds"] > 0, each["asked"] > 0)


def test_late_clients_are_the_slow_ones_where_all_are_asked(tmp_path: Path) -> None:
    """Mutation: the seconds of clients in another order than that in which they are asked."""
    cases = (("zo_hfl", "--method fedavg --tau 2", [1, 4, 5]), ("heron_sfl", f"{SPLIT} --method sflv2 --beta 1", [1]))
    for family, words, slow in cases:
        fast = "[class.fast]\nspeed = 1e9\nshare = 1\n"
        Path("d.toml").write_text(f"{fast}[class.slow]\nspeed = 1e9\nlatency = 9\nclients = {slow}\n")
        given, out = f"{words} --rounds 3 --devices d.toml --deadline 5 --quiet".split(), tmp_path / f"{family}.h5"
        assert here(f"zofl_mpi.{family}", *given, "--out", out) == 0
        with h5py.File(out) as file:
            sent = file["clients/bytes_up"][()].sum(axis=1)
        assert all(np.flatnonzero(row == 0).tolist() == slow for row in sent)


def test_clients_without_memory_are_named_and_left_out(tmp_path: Path, capsys: Capsys) -> None:
    """A backward pass does not fit where two forward passes do, or its parts. Mutations: nobody left out; the memory of
    a plain pass.
    """
    Path("d.toml").write_text(
        "[class.a]\nspeed = 1e9\nclients = [0, 1]\n[class.b]\nspeed = 1e9\nshare = 1\nmemory = 7e4\n"
    )
    words = f"{SPLIT} --beta 1 --rounds 2 --devices d.toml --quiet".split()
    lean = "--norm group --client-memory accumulate:4"
    for flags, asked in (("heron", [0, 1, 2, 3]), ("cse_fsl", [0, 1]), (f"cse_fsl {lean}", [0, 1, 2, 3])):
        out = tmp_path / f"{flags[:12]}.h5"
        assert here("zofl_mpi.heron_sfl", "--method", *flags.split(), *words, "--out", out) == 0
        with h5py.File(out) as file:
            assert np.flatnonzero(file["clients/bytes_up"][()].sum(axis=(0, 1))).tolist() == asked
        assert ("2 clients of class b take no part" in capsys.readouterr().err) == (flags == "cse_fsl")


def test_what_devices_cannot_do_is_told_in_a_sentence(tmp_path: Path, capsys: Capsys) -> None:
    """Mutations: accepted; a continuation on other devices."""
    family = "zofl_mpi.zo_hfl"
    assert here(family, "--method", "server_sgd", "--devices", "phones", "--rounds", 1, "--quiet") == 0  # asks nobody
    capsys.readouterr()
    out = tmp_path / "run.h5"
    Path("d.toml").write_text("[class.a]\nspeed = 1e9\nshare = 1\n")
    assert here(family, "--tau", 1, "--rounds", 1, "--devices", "d.toml", "--out", out, "--quiet") == 0
    assert "used only where the command names it" in refused(capsys, family, "--resume", out, "--rounds", 2)
    Path("d.toml").write_text("[class.a]\nspeed = 1e8\nshare = 1\n")
    said = refused(capsys, family, "--resume", out, "--rounds", 2, "--devices", "d.toml")
    assert "data or network are not those that the run began with" in said


def test_clients_of_one_run_backpropagate_or_estimate_by_their_memory(tmp_path: Path) -> None:
    """All with room are CSE-FSL, none is HERON, to the bit. Mutations: the rule of all by the first client's device;
    a client without room left out; operations of the other rule.
    """
    words = f"{SPLIT} --beta 1 --rounds 2 --devices d.toml --quiet".split()

    def run(name: str, memory: str, *more: str) -> Any:
        Path("d.toml").write_text(f"[class.a]\nspeed = 1e9\nshare = 1\n{memory}")
        assert here("zofl_mpi.heron_sfl", *words, *more, "--out", tmp_path / f"{name}.h5", "--force") == 0
        return records.load(tmp_path / f"{name}.h5")

    small, some = "memory = 7e4\n", "[class.b]\nspeed = 1e9\nmemory = 7e4\nclients = [1, 2]\n"
    heron, cse = run("heron", ""), run("cse", "", "--method", "cse_fsl")
    room, none, mixed = (run("by", memory, "--rule-by-device") for memory in ("", small, some))
    assert np.array_equal(room.final["theta"], cse.final["theta"])
    assert np.array_equal(none.final["theta"], heron.final["theta"])
    seconds = [each.rounds["virtual_seconds"][-1] for each in (heron, cse, none, room)]
    assert seconds[0] == seconds[2] < seconds[1] == seconds[3] == mixed.rounds["virtual_seconds"][-1]
    assert mixed.attrs["directions_per_parameter"] == none.attrs["directions_per_parameter"] / 2
    assert not np.array_equal(mixed.final["theta"], room.final["theta"])


def test_runs_are_drawn_against_virtual_hours_where_all_have_them(tmp_path: Path) -> None:
    """Mutation: an axis that one of the runs lacks."""
    from zofl_mpi.report import charts
    from zofl_mpi.report.groups import of_results

    with_, without = tmp_path / "with.h5", tmp_path / "without.h5"
    assert here("zofl_mpi.zo_hfl", "--tau", 1, "--rounds", 2, "--quiet", "--devices", "silos", "--out", with_) == 0
    assert here("zofl_mpi.zo_hfl", "--tau", 1, "--rounds", 2, "--quiet", "--out", without) == 0
    one, other = records.load(with_), records.load(without)
    (drawn,) = charts.curves(of_results([one]).groups)["groups"]
    hours = drawn["x"]["virtual hours so far"]
    assert hours == pytest.approx(one.rounds["virtual_seconds"] / 3600, rel=1e-5) and hours[0] < hours[1]
    assert {len(run["x"]) for run in charts.curves(of_results([one, other]).groups)["groups"]} == {5}
