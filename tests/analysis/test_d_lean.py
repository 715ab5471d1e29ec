"""Virtual time of a run on other devices, computed from its work, and the study of lean clients that stands on it."""

import csv
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.analysis.made import sketch
from tests.conftest import ROOT
from tests.launch import here
from zofl_mpi.engine.fleet import DeviceClass
from zofl_mpi.run import devices, grid, records
from zofl_mpi.run.grid import file

RUN = "--data digits --m 4 --batch 16 --rounds 3 --eval-every 2 --seed 5 --beta 0.5 --quiet"
SPLIT = f"{RUN} --problem split_cnn --channels 8 4 32 --strides 1 2 1 --cut 2 --h 2"
WHOLE = f"{RUN} --problem jobs.lean_net:Whole --server-fraction 0 --tau 2 --schedule-h constant"


def sensors(path: Path, small: int, memory: float) -> Path:
    """The packaged sensors, given to four clients by name, of which the first have so much memory."""
    classes, server = devices.read("sensors")
    known = {each.name: each for each in classes}
    text = f"[server]\nspeed = {server}\n"
    for i in range(4):
        own = known["microcontroller" if i < small else ("gateway", "board")[i % 2]]
        own = replace(own, memory=memory) if i < small else own
        kept = ("speed", "memory", "down", "up", "latency", "joules_mac", "joules_byte")
        text += f"[class.c{i}]\nclients = [{i}]\n" + "".join(f"{k} = {getattr(own, k)}\n" for k in kept)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("family", "words", "memory", "way"),
    [
        ("heron_sfl", f"{SPLIT} --method cse_fsl", 1e9, [0, 0, 0, 0]),
        ("heron_sfl", f"{SPLIT} --method sflv2", 1e5, [-1, -1, 0, 0]),
        ("heron_sfl", f"{SPLIT} --method heron --rule-by-device", 1e5, [1, 1, 0, 0]),
        ("heron_sfl", f"{SPLIT} --method jobs.lean_clients:UploadOnly", 1e5, [1, 1, 0, 0]),
        ("zo_hfl", f"{WHOLE} --method fedavg", 2e4, [-1, -1, 0, 0]),
    ],
)
def test_virtual_time_without_training_is_that_of_the_run(
    tmp_path: Path, script: Any, family: str, words: str, memory: float, way: list[int]
) -> None:
    """To the bit. Mutations: a round's seconds for those so far; another client's class; others asked."""
    out, file = tmp_path / "r.h5", sensors(tmp_path / "d.toml", 2, memory)
    assert here(f"zofl_mpi.{family}", *words.split(), "--devices", file, "--out", out) == 0
    run, module = records.load(out), script("shared.virtual")
    known = module.rebuilt(run, f"zofl_mpi.{family}")
    assert known.way.tolist() == way
    there = module.federation("sensors", 4, 2)
    spent = known.spent(there)
    assert np.array_equal(spent, np.stack([run.rounds["virtual_seconds"], run.rounds["joules"]], axis=1))
    assert known.accuracy_on(range(10)) == pytest.approx(run.rounds["test_accuracy"][-1], abs=1e-12)
    slow = known.spent(module.federation("sensors", 4, 2, 1e3))
    assert (slow[:, 0] > spent[:, 0]).all() and np.array_equal(slow[:, 1], spent[:, 1])


def test_an_accuracy_on_some_classes_is_their_share_of_the_whole(tmp_path: Path, script: Any) -> None:
    """Mutation: the others' samples."""
    out, file = tmp_path / "r.h5", sensors(tmp_path / "d.toml", 0, 1.0)
    words = f"{SPLIT} --method sflv2 --lr-server 1e-2 --lr-client 1e-2"
    assert here("zofl_mpi.heron_sfl", *words.split(), "--devices", file, "--out", out) == 0
    known = script("shared.virtual").rebuilt(records.load(out), "zofl_mpi.heron_sfl")
    test = known.method.setting.test
    counts = np.bincount(test.labels[test.rows], minlength=10)
    parts = [known.accuracy_on((c,)) for c in range(10)]
    assert np.dot(parts, counts) / counts.sum() == pytest.approx(known.accuracy_on(range(10)))
    assert known.accuracy_on((7, 8, 9)) == pytest.approx(np.dot(parts[7:], counts[7:]) / counts[7:].sum())
    assert len(set(parts)) > 1


def test_an_uplink_leaves_no_downlink_slower_than_itself(script: Any) -> None:
    """And the small devices come first. Mutation: the file's order of classes."""
    there = script("shared.virtual").federation("phones", 5, 2, 2e7)
    assert [each.name for each in there.clients] == ["simple", "old", "flagship", "middle", "flagship"]
    assert [each.up for each in there.clients] == [2e7] * 5
    assert [each.down for each in there.clients] == [2e7, 2e7, 1e8, 4e7, 1e8]


@pytest.mark.parametrize("small", [0, 3, 6, 9, 10])
def test_the_devices_of_the_grids_are_the_packaged_sensors(script: Any, small: int) -> None:
    """But for memory and availability. Mutation: a number of a file."""
    classes, server = devices.read(str(ROOT / f"jobs/devices/lean_{small}.toml"))
    there, lean = script("shared.virtual").federation("sensors", 10, small), script("shared.lean")
    assert server == there.server and sorted(i for each in classes for i in each.clients) == list(range(10))
    for each in classes:
        for i in each.clients:
            own: DeviceClass = there.clients[i]
            memory = lean.ROOM if i < small else own.memory
            assert replace(each, clients=()) == replace(own, share=0.0, available=1.0, memory=memory)


@pytest.mark.parametrize("small", [0, 3, 6, 9])
def test_small_devices_hold_three_classes_alone(small: int) -> None:
    """Clients hold equally many. Mutations: a class with everybody; sizes by class."""
    from jobs.lean_data import CLIENTS, LACKED, clients

    labels = np.repeat(np.arange(10), 1200)
    owners = clients(labels, small)
    counts = np.array([np.bincount(labels[owners == i], minlength=10) for i in range(CLIENTS)])
    assert counts.sum(axis=1).tolist() == [1200] * 10
    lacked = counts[:, list(LACKED)]
    assert (lacked[small:] == 0).all() == (small > 0) and (lacked[: small or 10] > 0).all()


def test_the_network_in_one_piece_is_that_which_is_cut() -> None:
    """Mutation: the auxiliary head among the parameters."""
    from jobs.lean_net import Whole, Wider

    nets = (Whole((1, 28, 28), 10), Wider((3, 32, 32), 10))
    assert [sum(p.numel() for p in net.parameters()) for net in nets] == [1930, 3724]


def test_clients_that_only_upload_are_those_of_cse_fsl_where_all_have_room(tmp_path: Path) -> None:
    """To the bit; where none has, the client's part stays. Mutation: a model of those without."""
    for name, small in (("room", 0), ("none", 4)):
        words = ("--devices", sensors(tmp_path / f"{name}.toml", small, 1e5), *SPLIT.split(), "--lr-server", "1e-2")
        for method in ("cse_fsl", "jobs.lean_clients:UploadOnly"):
            if name == "room" or method != "cse_fsl":
                out = tmp_path / f"{name}-{method[:3]}.h5"
                assert here("zofl_mpi.heron_sfl", *words, "--method", method, "--out", out) == 0
    whole, same, still = (records.load(tmp_path / f"{name}.h5") for name in ("room-cse", "room-job", "none-job"))
    for part in ("theta", "theta_s"):
        assert np.array_equal(whole.final[part], same.final[part])
    assert whole.clients["bytes_up"].sum() > still.clients["bytes_up"].sum() > 0
    assert not np.array_equal(whole.final["theta"], still.final["theta"])
    first = tmp_path / "first.h5"
    words = (*SPLIT.split(), "--rounds", "1", "--lr-client", "0", "--method", "cse_fsl", "--out", first)
    assert here("zofl_mpi.heron_sfl", *words) == 0
    assert np.array_equal(records.load(first).final["theta"], still.final["theta"])


def planted(module: Any, name: str, small: int, values: list[float], minutes: float = 2.0) -> Any:
    """A way that is as accurate at any time, in %, on each seed."""
    ways = {way.name: way for way in module.WAYS}
    return SimpleNamespace(
        place=module.Place("mnist", "apart", small),
        way=ways[name],
        minutes=lambda fleet, up: np.full(len(values), minutes),
        accuracy_in=lambda time, fleet, up: np.array(values) + (time - 1),
    )


def test_who_is_ahead_is_told_of_what_fits(script: Any) -> None:
    """At half of CSE-FSL's time, with the lead. Mutations: its whole time; who does not fit; one deviation."""
    module = script("d_lean")
    lines = [
        planted(module, "CSE-FSL, all", 6, [80, 82, 84]),
        planted(module, "last stage exact", 6, [70, 71, 72]),
        planted(module, "HERON, 8 directions", 6, [60, 63, 66]),
        planted(module, "frozen client", 6, [50, 50, 50]),
    ]
    cells = list(module.cells_of(lines))
    assert len(cells) == 2 * 3 * 4 and {cell.minutes for cell in cells} == {1.0}
    found = {cell.pool: cell for cell in cells}
    assert [cell.best for cell in found.values()] == ["HERON, 8 directions", "last stage exact", "CSE-FSL, all"]
    assert [cell.second for cell in found.values()] == ["frozen client", "HERON, 8 directions", "last stage exact"]
    assert [cell.accuracy for cell in found.values()] == [63, 71, 82]
    deviations = [13 / np.sqrt(9 / 2), 8 / np.sqrt((1 + 9) / 2), 11 / np.sqrt((4 + 1) / 2)]
    assert [cell.deviations for cell in found.values()] == pytest.approx(deviations)
    nobody = [planted(module, line.way.name, 0, [80.0, 80.0]) for line in lines]
    assert {cell.best for cell in module.cells_of(nobody)} == {max(line.way.name for line in nobody)}


GRID = """
module = "zofl_mpi.{family}"
folder = "{folder}/{family}"
[fixed]
partition = "natural"
batch = 16
rounds = 1
validation = 0.1
{fixed}
[axes]
seed = [1]
[axes.data]
mnist-0 = {{ data = "{folder}/d.npz" }}
mnist-6 = {{ data = "{folder}/e.npz" }}
[axes.room]
all = {{ devices = "jobs/devices/lean_0.toml" }}
without-6 = {{ devices = "jobs/devices/lean_6.toml" }}
[axes.method]
{methods}
"""


def test_the_study_tells_each_way_at_each_place(
    tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From runs of seconds. Mutations: the same runs at all places; those with room alone for all."""
    from jobs.lean_data import clients
    from zofl_mpi.data.sources import digits

    monkeypatch.chdir(ROOT)
    raw, labels = digits(), np.repeat(np.arange(10), 100)
    rows = np.concatenate([np.flatnonzero(raw.labels == label)[:100] for label in range(10)])
    images = raw.inputs[rows].reshape(-1, 1, 8, 8)
    for name, small in (("d", 0), ("e", 6)):
        whose = clients(np.repeat(labels, 12), small)[::12]
        np.savez(tmp_path / f"{name}.npz", x=images, y=labels, client=whose)
    split = 'problem = "split_cnn"\nchannels = [8, 4, 32]\nstrides = [1, 2, 1]\ncut = 2\nh = 2'
    whole = 'problem = "jobs.lean_net:Whole"\nserver-fraction = 0\ntau = 2\nschedule-h = "constant"'
    methods = {
        "heron_sfl": 'cse_fsl = {{ method = "cse_fsl" }}\nupload = {{ method = "jobs.lean_clients:UploadOnly" }}\n',
        "zo_hfl": 'fedavg = {{ method = "fedavg" }}\n',
    }
    words = []
    for family, fixed in (("heron_sfl", split), ("zo_hfl", whole)):
        text = GRID.format(family=family, fixed=fixed, folder=tmp_path, methods=methods[family].format())
        (path := tmp_path / f"{family}.toml").write_text(text)
        study = grid.read(path, trust=True)
        for run in study.runs:
            run.out.parent.mkdir(exist_ok=True)
            assert here(study.module, *file.arguments(study.module, run.flags), "--quiet", "--out", run.out) == 0
        words.append(path)
    monkeypatch.setattr(Figure, "savefig", sketch)
    script("d_lean").main(["--grid", *map(str, words), "--out", str(tmp_path / "out")])
    ways: dict[tuple[str, str], list[str]] = {}
    with (tmp_path / "out.csv").open() as table:
        for row in csv.DictReader(table):
            ways.setdefault((row["classes"], row["small"]), []).append(row["way"])
    assert ways["same mix", "0"] == ["CSE-FSL, all", "FedAvg, all"]
    left = ["CSE-FSL, left out", "FedAvg, left out", "CSE-FSL, uploads only", "CSE-FSL, all", "FedAvg, all"]
    assert ways["same mix", "6"] == ways["apart", "6"] == left
    assert capsys.readouterr().out.count("MNIST, test accuracy") == 1
    assert {path.name for path in tmp_path.glob("*.png")} == {"out_mnist.png", "out_map_mnist.png"}
