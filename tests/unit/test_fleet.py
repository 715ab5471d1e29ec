"""Devices of clients: virtual seconds by hand, who is in time, who can hold a step, and bad files."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Patch
from tests.unit.made import complaint
from zofl_mpi.engine.fleet import DeviceClass, Fleet, Needs, RoundWork
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.rounds.base import Sampling
from zofl_mpi.run import devices

FAST = DeviceClass("fast", speed=100.0, down=80.0, up=40.0, latency=0.5, joules_mac=2.0, joules_byte=3.0)
SLOW = DeviceClass("slow", speed=10.0, memory=64.0, down=8.0, up=4.0, latency=1.0, joules_mac=1.0, joules_byte=1.0)
PLAIN = DeviceClass("plain", speed=50.0)


@dataclass
class Asks:
    """A method that asks beta of its clients for ten samples each, sends 4 bytes and gets 2 in two messages."""

    setting: Setting[Any]
    beta: float = 1.0
    streams: bool = False
    server: float = 0.0

    def round_work(self, r: int, clients: Any = None) -> RoundWork:
        asked = Sampling(self.setting, self.beta)(r) if clients is None else clients
        samples, down, up, two = (np.full(len(asked), each) for each in (10.0, 4.0, 2.0, 2.0))
        return RoundWork(asked, samples, down, up, two, self.streams, self.server)


def bound(*classes: DeviceClass, of: Any, needs: Any = None, method: Any = None, **limits: Any) -> tuple[Fleet, Any]:
    """A fleet, and a method whose step it knows."""
    fleet = Fleet(classes, np.asarray(of), Streams(7), **limits)
    setting = Setting[Any](None, Streams(7), tuple(range(len(of))), fleet=fleet)
    asks = Asks(setting, **(method or {}))
    fleet.bind(asks, [needs or Needs(6.0)])
    return fleet, asks


def test_the_virtual_seconds_of_three_clients_by_hand() -> None:
    """Mutations: bytes for bits; one message; a step in place of its samples; the fastest client's end; no server."""
    fleet, asks = bound(FAST, SLOW, PLAIN, of=[0, 1, 2], server_speed=30.0, method={"server": 8.0})
    fleet.needs = (Needs(6.0, 15.0),)
    parts = fleet.seconds(asks.round_work(0))
    assert parts.latency.tolist() == [1.0, 2.0, 0.0]
    assert parts.down.tolist() == [32 / 80, 32 / 8, 0.0]
    assert parts.compute.tolist() == [0.6, 6.0, 1.2]
    assert parts.up.tolist() == [16 / 40, 16 / 4, 0.0]
    assert parts.total.tolist() == [1 + 0.4 + 0.6 + 0.4, 2 + 4 + 6 + 4, 1.2]
    rows = [(row["total"], row["joules"]) for row in fleet.class_rows()]
    assert rows == [(parts.total[0], 138.0), (parts.total[1], 66.0), (parts.total[2], 0.0)]
    spent = fleet.columns(3)
    assert spent.virtual_seconds == 3 * (16.0 + 8 * 15 / 30)
    assert spent.joules == 3 * ((2 * 60 + 3 * 6) + (60 + 6))
    assert fleet.columns(1).virtual_seconds * 3 == spent.virtual_seconds  # in any order
    assert fleet.columns(3) == spent
    each = fleet.by_client(2)
    assert each["virtual_seconds"].tolist() == [2 * 2.4, 2 * 16.0, 2 * 1.2]
    assert each["joules"].tolist() == [2 * 138.0, 2 * 66.0, 0.0]
    assert fleet.columns(3) == spent


def test_a_method_that_is_bound_later_begins_at_zero() -> None:
    """Mutation: the seconds, joules and rounds of the method before it."""
    fleet, asks = bound(FAST, SLOW, of=[0, 1], method={"beta": 0.5})
    fleet.columns(3)
    fleet.bind(replace(asks, beta=1.0), [Needs(12.0)])
    fresh, _ = bound(FAST, SLOW, of=[0, 1], needs=Needs(12.0))
    assert fleet.columns(3) == fresh.columns(3)
    assert all(np.array_equal(each, fresh.by_client(3)[name]) for name, each in fleet.by_client(3).items())


def test_uploads_that_stream_and_the_server_overlap() -> None:
    """Mutation: sums."""
    fleet, asks = bound(SLOW, of=[0], server_speed=1.0, method={"server": 3.0, "streams": True})
    fleet.needs = (Needs(6.0, 15.0),)
    assert fleet.seconds(asks.round_work(0)).total.tolist() == [2 + 4 + max(6, 4)]
    assert fleet.columns(1).virtual_seconds == max(12, 45)


def test_one_class_without_limits_takes_the_operations_over_its_speed() -> None:
    fleet, _ = bound(PLAIN, of=[0] * 5, method={"beta": 0.4})
    assert fleet.columns(4).virtual_seconds == pytest.approx(4 * 60 / 50, rel=1e-15)


def test_participants_are_those_without_devices_where_nothing_limits_them() -> None:
    """Mutation: a draw of the fleet's own."""
    fleet, asks = bound(PLAIN, FAST, of=[0, 1] * 10, method={"beta": 0.3})
    bare = Sampling(replace(asks.setting, fleet=None), 0.3)
    assert [asks.round_work(r).clients for r in range(9)] == [bare(r) for r in range(9)]
    assert fleet.columns(9).clients_dropped == 0


def test_late_clients_are_dropped_and_the_server_waits_for_them_until_the_deadline() -> None:
    """SLOW takes 16 s, FAST 2.4. Mutations: weights of the late; an end at the last one in time; their joules saved."""
    fleet, asks = bound(FAST, SLOW, of=[0, 1, 0, 1, 1], deadline=5.0)
    assert asks.round_work(0).clients == [0, 2]
    spent = fleet.columns(2)
    assert spent.virtual_seconds == 10.0 and spent.clients_dropped == 3
    assert spent.joules == 2 * (2 * 138 + 3 * 66)
    each = fleet.by_client(2)
    assert each["asked"].tolist() == [2] * 5 and each["dropped"].tolist() == [0, 2, 0, 2, 2]
    assert each["virtual_seconds"].tolist() == pytest.approx([4.8, 32, 4.8, 32, 32]) and not each["excluded"].any()
    _, just = bound(SLOW, of=[0, 0], deadline=16.0)
    assert len(just.round_work(0).clients) == 2
    _, alone = bound(SLOW, of=[0, 0], deadline=5.0)
    assert len(alone.round_work(0).clients) == 1  # a round needs one
    assert alone.setting.fleet.columns(1).virtual_seconds == 16.0


def test_of_more_clients_than_are_needed_the_first_ones_count() -> None:
    """Half of ten are needed, eight asked. Mutations: five asked; the slow ones; an end with the last asked."""
    fleet, asks = bound(FAST, SLOW, of=[0, 1] * 5, over_select=1.5, method={"beta": 0.5})
    ends = []
    for r in range(20):
        counted = asks.round_work(r).clients
        drawn = asks.setting.streams(7, r=r).permutation(10)[:8]
        fast = [i for i in drawn if i % 2 == 0]
        assert len(counted) == 5 and set(counted) <= set(drawn.tolist())
        assert sum(i % 2 == 0 for i in counted) == min(5, len(fast))
        ends.append(2.4 if len(fast) >= 5 else 16.0)
    assert fleet.columns(20).virtual_seconds == pytest.approx(sum(ends), rel=1e-14)
    assert len(set(ends)) == 2 and fleet.columns(20).clients_dropped == 3


@pytest.mark.parametrize(("beta", "over", "asked"), [(0.5, 1.25, 13), (0.2, 1.1, 5), (0.5, 1.1, 11), (0.1, 1.5, 3)])
def test_over_selection_asks_the_ceiling(beta: float, over: float, asked: int) -> None:
    """Of 20: 12.5, 4.4, 11 (as floats a little more) and 3. Mutations: rounded; one more of a whole number."""
    fleet, asks = bound(FAST, of=[0] * 20, over_select=over, method={"beta": beta})
    assert len(asks.round_work(0).clients) == round(20 * beta)
    assert fleet.by_client(1)["asked"].sum() == asked


def test_clients_that_are_away_are_not_asked() -> None:
    """Mutations: the same ones each round; probability 1 - p; nobody asked where all are away."""
    away = replace(PLAIN, available=0.25)
    fleet, asks = bound(away, of=[0] * 400)
    numbers = [len(asks.round_work(r).clients) for r in range(20)]
    assert abs(sum(numbers) / 20 - 100) < 5 * math.sqrt(400 * 0.25 * 0.75 / 20)
    assert asks.round_work(0).clients != asks.round_work(1).clients
    _, few = bound(replace(PLAIN, available=1e-9), of=[0] * 3)
    assert [len(few.round_work(r).clients) for r in range(5)] == [1] * 5
    assert fleet.columns(2).clients_dropped == 0


@pytest.mark.parametrize("limits", [{}, {"over_select": 1.4}, {"deadline": 3.0}], ids=str)
@pytest.mark.parametrize("available", [1.0, 0.6, 1e-9])
def test_how_many_take_part_is_known_without_drawing_who(limits: Any, available: float, monkeypatch: Patch) -> None:
    """Mutations: the excluded counted; more than are needed; none where all are away; the late ones counted."""
    away, small = replace(FAST, available=available), replace(SLOW, available=available)
    for needs in (Needs(6.0), Needs(6.0, bytes=65.0)):
        _, asks = bound(away, small, of=[0, 1, 1] * 4, needs=needs, method={"beta": 0.5}, **limits)
        sampling = Sampling(asks.setting, 0.5)
        taken = [len(sampling(r)) for r in range(30)]
        with monkeypatch.context() as patched:
            if "deadline" not in limits:
                patched.setattr(Fleet, "participants", lambda *given: pytest.fail("drawn"))
            assert [sampling.size(r) for r in range(30)] == taken
    bare = Sampling(replace(asks.setting, fleet=None), 0.3)
    assert bare.size(4) == len(bare(4)) == 4


def test_a_device_that_cannot_hold_a_step_takes_no_part() -> None:
    """Mutation: below for above; the excluded asked. Its lack is told in bytes."""
    fleet, asks = bound(FAST, SLOW, of=[0, 1, 1, 0], needs=Needs(1.0, bytes=65.0))
    assert asks.round_work(3).clients == [0, 3]
    assert [row["lacks"] for row in fleet.class_rows()] == [0.0, 1.0]
    assert fleet.by_client(3)["excluded"].tolist() == [0, 1, 1, 0]
    assert fleet.by_client(3)["asked"].tolist() == [3, 0, 0, 3]
    fits, all_take_part = bound(FAST, SLOW, of=[0, 1], needs=Needs(1.0, bytes=64.0))
    assert all_take_part.round_work(0).clients == [0, 1] and (fits.way == 0).all()
    assert (bound(replace(SLOW, memory=0.5), of=[0])[0].way == 0).all(), "of an unknown step"
    sentence = complaint(bound, SLOW, of=[0], needs=Needs(1.0, bytes=100.0))
    assert "needs 100 bytes" in sentence and "largest device has 64" in sentence


def test_a_client_takes_its_step_in_the_first_way_that_its_device_holds() -> None:
    """Until a method is bound that is the first one. FAST holds all of three, SLOW the third alone. Mutations: a device
    that must hold all ways, or is excluded with the first; the last way; costs of the first, or the second, way."""
    fleet, asks = bound(FAST, SLOW, of=[0, 1, 1])
    assert Fleet([FAST, SLOW], np.array([0, 1, 1]), Streams(7)).way.tolist() == [0, 0, 0] and fleet.costs() == {}
    fleet.bind(asks, [Needs(6.0, bytes=66.0), Needs(5.0, bytes=65.0), Needs(3.0, bytes=64.0, upload_macs=1.0)])
    assert fleet.way.tolist() == [0, 2, 2] and list(fleet.costs().values()) == [64]
    assert fleet.seconds(asks.round_work(0)).compute.tolist() == [60 / 100, 30 / 10, 30 / 10]
    assert fleet.macs(asks.round_work(0)._replace(uploaded=2.0)).tolist() == [60, 32, 32]
    assert [row["way"] for row in fleet.class_rows()] == [0, 2] and not fleet.by_client(1)["excluded"].any()


def test_the_totals_of_a_run_are_estimated_from_rounds_at_equal_distances() -> None:
    """Rounds 0, 3 and 6 of nine, times three. Mutations: the first rounds; one round more than `most` clients allow;
    none where they allow less than a round, or half of them where a round asks one."""
    fleet, _ = bound(FAST, SLOW, of=[0, 1, 0, 1], over_select=1.5, method={"beta": 0.5})
    taken, found = fleet.sampled(9, 6)
    ends = [fleet.columns(r + 1).virtual_seconds - fleet.columns(r).virtual_seconds for r in (0, 3, 6)]
    joules = [fleet.columns(r + 1).joules - fleet.columns(r).joules for r in (0, 3, 6)]
    assert (taken, found.clients_dropped) == (3, 9)
    assert found.virtual_seconds == pytest.approx(3 * sum(ends)) and found.joules == pytest.approx(3 * sum(joules))
    assert [fleet.sampled(9, most)[0] for most in (0, 1, 2, 4)] == [1, 1, 1, 2]
    assert bound(FAST, of=[0])[0].sampled(9, 3)[0] == 3
    taken, whole = fleet.sampled(9, 100)
    assert taken == 9 and whole.virtual_seconds == pytest.approx(fleet.columns(9).virtual_seconds)


def test_a_method_that_asks_all_clients_cannot_leave_any_out() -> None:
    class Everyone(Asks):
        def round_work(self, r: int, clients: Any = None) -> RoundWork:
            return super().round_work(r, range(len(self.setting.data)))

    fleet = Fleet([FAST, SLOW], np.array([0, 1]), Streams(1), over_select=1.2)
    method: Any = Everyone(Setting[Any](None, Streams(1), (0, 1), fleet=fleet))
    assert "asks all clients in every round, and there is --over-select" in complaint(fleet.bind, method, [Needs(1.0)])
    unlimited = Fleet([FAST, SLOW], np.array([0, 1]), Streams(1))
    unlimited.bind(method, [Needs(6.0)])
    assert unlimited.columns(1).virtual_seconds == 16.0


def test_a_problem_without_known_operations_is_refused() -> None:
    """Mutation: a clock that is not a number."""
    fleet, asks = bound(FAST, of=[0])
    asks.device_needs = lambda: [Needs(math.nan)]
    assert "does not state its operations" in complaint(devices.bind, SingleProcess(), asks, "m", False)
    asks.device_needs = lambda: ()
    assert "--method m does not state its clients' work" in complaint(devices.bind, SingleProcess(), asks, "m", False)
    assert fleet.needs == (Needs(6.0),)


# --- files


def equipped(text: str, tmp_path: Path, m: int = 4, counts: Any = None) -> Fleet:
    (tmp_path / "d.toml").write_text(text)
    setting = Setting[Any](None, Streams(3), tuple(range(m)), counts=counts, fingerprint="x")
    made = devices.equipped(SingleProcess(), setting, str(tmp_path / "d.toml"), 0.0, 1.0)
    assert made.fleet is not None and made.fingerprint.startswith("x, devices ")
    return made.fleet


ONE = "[class.a]\nspeed = 1\nshare = 1\n"


def test_clients_get_the_classes_that_name_them_their_labels_or_a_share(tmp_path: Path) -> None:
    """Mutations: a label's share in place of the commonest; names that lose against labels; draws that depend on m."""
    counts = np.array([[5, 1, 1], [0, 3, 4], [2, 9, 0], [4, 0, 5]])
    text = ONE + "[class.b]\nspeed = 2\nlabels = [2]\n[class.c]\nspeed = 3\nclients = [3]\n"
    assert equipped(text, tmp_path, counts=counts).of.tolist() == [0, 1, 0, 2]
    assert "--devices b: must be of labels below 2" in complaint(equipped, text, tmp_path, counts=counts[:, :2])
    halves = "[class.a]\nspeed = 1\nshare = 0.25\n[class.b]\nspeed = 1\nshare = 0.75\n"
    many, few = equipped(halves, tmp_path, 4000).of, equipped(halves, tmp_path, 10).of
    assert many[:10].tolist() == few.tolist()
    assert abs(many.mean() - 0.75) < 5 * math.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize("name", devices.NAMES)
def test_the_classes_of_the_package_are_read(name: str) -> None:
    assert {path.stem for path in devices.FOLDER.glob("*.toml")} == set(devices.NAMES)
    classes, speed = devices.read(name)
    assert math.fsum(each.share for each in classes) == pytest.approx(1) and math.isfinite(speed)
    assert all(math.isfinite(each.memory) and each.joules_byte > 0 for each in classes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[class.a]\nspeed = 1\nshare = 0.5\n", "add up to 0.5; they must add up to 1"),
        ("[class.a]\nspeed = -1\nshare = 1\n", "speed = -1; must be a number above 0"),
        ("[class.a]\nspeed = 1" + "0" * 400 + "\nshare = 1\n", "; must be a number above 0, at most 1e+30"),
        ("[class.a]\nspeed = nan\nshare = 1\n", "speed = nan; must be a number above 0"),
        ("[class.a]\nspeed = 'x'\nshare = 1\n", "speed = x; must be a number above 0"),
        ("[class.a]\nspeed = true\nshare = 1\n", "speed = True; must be a number above 0"),
        ("[class.a]\nspeed = 1\nlatency = -1\nshare = 1\n", "latency = -1; must be a number of at least 0"),
        ("[class.a]\nshare = 1\n", "[class.a]: has no speed"),
        ("[class.a]\nspeed = 1\n", "has nothing of share, clients, labels; it must have one"),
        ("[class.a]\nspeed = 1\nshare = 1\nclients = [1]\n", "has share and clients of"),
        ("[class.a]\nspeed = 1\nshare = 1\nmemroy = 1\n", "unknown key 'memroy'; the nearest is memory"),
        ("[class.a]\nspeed = 1\nshare = 1\navailable = 0\n", "available = 0; must be above 0 and at most 1"),
        ("[class.a]\nspeed = 1\nclients = [1, -2]\n", "clients: must be a list of whole numbers"),
        ("[class.a]\nspeed = 1\nclients = [9]\n", "--devices a: must be of clients below 4 (--m)"),
        ("[class.a]\nspeed = 1\nclients = [0]\n", "3 clients have no class, 1 among them"),
        ("[class.a]\nspeed = 1\nlabels = [0]\n", "without labels: these data have none"),
        ("class = 3\n", "must have a table [class.NAME]"),
        ("[phones]\nspeed = 1\n", "unknown key 'phones'"),
        ("[class]\na = 3\n", "[class.a]: must be a table of numbers"),
        (ONE + "[server]\nspeed = 0\n", "[server]: speed = 0; must be a number above 0"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_file_that_says_something_else_is_refused_in_a_sentence(text: str, said: str, tmp_path: Path) -> None:
    assert said in complaint(equipped, text, tmp_path)


def test_a_name_that_is_no_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "must be one of phones, sensors, silos, or a file .toml; the nearest is phones" in complaint(
        devices.read, "phone"
    )
    assert "cannot be read (No such file" in complaint(devices.read, str(tmp_path / "none.toml"))
