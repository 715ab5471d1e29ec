"""What a round costs, read from a result whose every second is known; and when two results have the same bits."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import exchange
from shared.timing import Timing, timing

from tests.analysis.scaling_made import result
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.loop.local import LocalClients


def test_medians_leave_out_the_first_round_and_the_evaluated_ones(tmp_path: Path) -> None:
    """Mutations: round 1, 4 or 8 counted (each takes 9 s); the mean in place of the median; high and low exchanged."""
    walls = [9.0, 0.5, 0.25, 9.0, 0.25, 1.0, 2.0, 9.0]
    found = timing(records.load(result(tmp_path / "a.h5", ranks=3, walls=walls, eval_every=4)))
    assert (found.rounds, found.seconds, found.low, found.high) == (5, 0.5, 0.25, 2.0)


def test_seconds_are_split_by_rank_and_step(tmp_path: Path) -> None:
    """Mutations: the mean rank in place of the longest; the server's rank among the clients' means; a step left out."""
    compute = {"server": [0.5, 0.0, 0.0], "solve": [0.0, 1.0, 3.0], "ask": [0.0, 0.5, 0.25]}
    wait = {"server": [0.125, 0.25, 0.75], "solve": [0.0, 2.0, 1.0], "ask": [0.0, 0.0, 0.0]}
    comm = {"server": [0.0, 0.0, 0.0], "solve": [0.375, 0.25, 0.5], "ask": [0.0, 0.0, 0.25]}
    found = timing(records.load(result(tmp_path / "a.h5", ranks=3, compute=compute, wait=wait, comm=comm)))
    assert (found.compute, found.compute_all, found.wait, found.send) == (3.25, 4.75, 2.0, 0.5)
    assert (found.server_compute, found.server_wait, found.server_send) == (0.5, 0.125, 0.375)
    assert found.share == 0.5 / 5.25
    assert {step.name: step.seconds for step in found.steps} == {"solve": 4.0, "ask": 0.75}
    found = timing(records.load(result(tmp_path / "b.h5", ranks=1, compute={"server": [0.5], "solve": [2.0]})))
    assert (found.compute, found.compute_all, found.server_compute) == (2.0, 2.0, 0.5)  # one process is both
    with pytest.raises(UserError, match=r"c\.h5: none of its 8 rounds can be timed"):
        timing(records.load(result(tmp_path / "c.h5", ranks=1, eval_every=1)))


def test_bytes_participants_and_places_are_told(tmp_path: Path) -> None:
    """Mutations: m in place of those who answered; hosts counted twice; a client's bytes in place of all clients'."""
    path = result(tmp_path / "a.h5", ranks=3, m=4, asked=3, hosts=["a", "b", "a"], down=10, up=7)
    found = timing(records.load(path))
    assert (found.m, found.participants, found.ranks, found.nodes) == (4, 3, 3, 2)
    assert (found.bytes_down, found.bytes_up, found.start) == (30, 21, 1.5)
    assert Timing.of(json.loads(json.dumps(asdict(found)))) == found


def test_the_command_tells_whether_the_bits_are_the_same(tmp_path: Path, capsys: Any, script: Any) -> None:
    """Mutations: exit status 0 for other bits; seconds or ranks compared as bits; the last state not compared."""
    main, one = script("timing").main, result(tmp_path / "one.h5", ranks=1)
    same = result(tmp_path / "same.h5", ranks=3, walls=[2.0] * 8)
    other = result(tmp_path / "other.h5", ranks=3, x=np.nextafter(1.0, 2.0))
    assert main([str(same), "--same-as", str(one)]) == 0
    told = capsys.readouterr().out
    assert "\nbits             same\n" in told and told.startswith("m                2 1\n")
    assert "\nseconds          2 s\n" in told
    assert main([str(other), "--same-as", str(one)]) == 1
    assert capsys.readouterr().out.endswith("differ: final/x\n")
    assert main([str(tmp_path / "none.h5")]) == 2
    assert capsys.readouterr().err == f"zofl_mpi: there is no file {tmp_path / 'none.h5'}\n"


def test_every_kind_of_question_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """For two ranks in one process. Mutations: a kind forgotten; bytes not told for what moves them; a server that does
    not compute with the others."""
    computed, turns, usual = list[int](), list[int](), exchange._usual

    def arithmetic() -> Any:
        computed.append(1)
        return np.ones(1, np.float32)

    def counted(act: Callable[[], Any]) -> float:
        computed.clear()
        act()
        turns.append(len(computed))
        return float(usual(act))

    monkeypatch.setattr(exchange, "MOST", 3)
    monkeypatch.setattr(exchange, "arithmetic", arithmetic)
    monkeypatch.setattr(exchange, "_usual", counted)
    method = exchange.Post()
    clients = LocalClients([None] * (2 * exchange.STREAM), method=method)
    costs = exchange.measure(clients, method, 2)
    assert set(costs) == set(exchange.KINDS)
    assert all(cost.fixed >= 0 and cost.per_byte >= 0 for cost in costs.values())
    assert turns[-2:] == [1, 3] and costs["alone"].fixed > 0  # alone, and together
    assert {kind for kind, cost in costs.items() if cost.per_byte} <= {"ask", "reply", "mean"}
