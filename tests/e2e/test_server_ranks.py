"""--server-ranks: a server of several ranks gives the bits of one, and no rank waits for ever."""

import functools
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  ranks that are threads take turns with its generator where it is loaded

from tests.conftest import Capsys, Completed, Patch
from tests.e2e.test_survival import Leap
from tests.fates import Death, Fate
from tests.launch import here
from tests.tally import tallied
from tests.threads import run_module
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.report.same import differences
from zofl_mpi.rounds.split.client import LocalSteps
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.run import records

FAMILY = "zofl_mpi.heron_sfl"
RUN = ["--problem", "split_cnn", "--data", "digits", "--m", "7", "--batch", "8", "--h", "2", "--quiet"]
RUN += ["--rounds", "2", "--merge", "4", "--eval-clients", "2", "--eval-samples", "60", "--checkpoint-every", "1"]
METHODS = {
    "heron": ["--method", "heron"],
    "cse_fsl": ["--method", "cse_fsl", "--optimiser", "adam"],
    "fsl_sage": ["--method", "fsl_sage", "--align-epochs", "1", "--buffer", "8"],
    "sflv2": ["--method", "sflv2"],
    "ho_sfl": ["--method", "ho_sfl", "--beta", "0.7"],
    "batchnorm": ["--problem", "split_resnet", "--width", "4", "--stages", "1", "1"],
}
"""Uploads streamed and in lockstep; groups of 4 and 3 or 1 of 7 or 5 clients; statistics that a step averages."""


def rank() -> str:
    return threading.current_thread().name


def met(patch: Patch, begun: Any = lambda: None, computed: Any = lambda given: None, read: Any = lambda: None) -> None:
    """Calls begun() before a server rank's pass for a step, computed(its terms) for each upload, read() at a client."""
    passes, inputs = SplitMethod.server_pass, LocalSteps.inputs

    @functools.wraps(passes)
    def server_pass(self: Any, part: Any) -> Any:
        begun()
        work = passes(self, part)

        def passed(item: Any) -> Any:
            given = work(item)
            computed(given)
            return given

        return passed

    patch.setattr(SplitMethod, "server_pass", server_pass)
    patch.setattr(LocalSteps, "inputs", lambda *given: (read(), inputs(*given))[1])


@pytest.fixture(scope="module", params=METHODS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """A run's arguments, and its result in one process."""
    run, out = [*RUN, *METHODS[request.param]], tmp_path_factory.mktemp(request.param) / "run.h5"
    assert here(FAMILY, *run, "--out", out) == 0
    return run, out


def test_any_number_of_server_ranks_gives_the_bits_of_one_process(
    case: tuple[list[str], Path], tmp_path: Path, monkeypatch: Patch
) -> None:
    """On 5 and 3 ranks, each upload of a step on rank k mod S. Mutations: the mean of each rank's mean; a quantum of a
    rank's own gradients; a theta that another rank keeps from step to step; a single upload's gradient rounded; replies
    or losses in the order in which ranks finish; rank 0 that computes all."""
    run, whole = case
    computed = Counter[str]()
    met(monkeypatch, computed=lambda given: computed.update([rank()]))
    for ranks, servers in ((5, 3), (3, 2)):
        out = tmp_path / f"{ranks}-{servers}.h5"
        computed.clear()
        assert run_module(ranks, FAMILY, *run, "--server-ranks", servers, "--out", out) == 0
        assert differences(whole, out) == []
        share = {name: count for name, count in computed.items() if "rank" in name}
        assert set(share) == {f"rank {rank}" for rank in range(servers)}, share
        assert max(share.values()) <= 3 * min(share.values()), share


def test_a_run_goes_on_with_another_number_of_server_ranks(case: tuple[list[str], Path], tmp_path: Path) -> None:
    """Mutations: S in the configuration; moments at another rank than 0."""
    run, whole = case
    out = tmp_path / "run.h5"
    assert run_module(5, FAMILY, *run, "--rounds", 1, "--server-ranks", 3, "--out", out) == 0
    assert run_module(4, FAMILY, "--resume", out, "--rounds", 2, "--server-ranks", 2, "--quiet") == 0
    assert differences(whole, out) == []
    assert "server_ranks" not in json.loads(records.load(out).attrs["config"])


def test_the_servers_ranks_count_what_they_move(tmp_path: Path) -> None:
    """To the byte, over all communicators, in rows of the ranks that moved it; MPI's start is left out. Mutations: the
    uploads that rank 0 passes on; the sums of gradients; a pair's bytes at another rank."""
    out = tmp_path / "run.h5"
    with tallied() as tally:
        assert run_module(5, FAMILY, *RUN, "--server-ranks", 3, "--out", out) == 0
    assert np.array_equal(tally.counted, tally.by_rank())
    run = records.load(out)
    sent, received = (run.ranks[f"transport_{way}"].sum((0, 1)) for way in ("sent", "received"))
    assert (sent > 0).all() and (received > 0).all() and (sent <= tally.counted[0]).all()


def test_the_ranks_roles_their_seconds_and_the_clients_bytes(tmp_path: Path, capsys: Capsys) -> None:
    """Mutations: another server rank's seconds at a client's place, or with the clients'; its bytes in the ledger; all
    of rank 0's waiting for it counted as its computing."""
    runs = {}
    for servers in (1, 2):
        out = tmp_path / f"{servers}.h5"
        assert run_module(4, FAMILY, *RUN, "--server-ranks", servers, "--out", out) == 0
        runs[servers] = records.load(out)
    one, two = runs.values()
    assert [row["role"] for row in two.placements] == ["server", "server", "client", "client"]
    assert [row["clients"] for row in two.placements] == [0, 0, 4, 3]
    compute = two.ranks["seconds_compute"].sum(0)  # (steps, ranks)
    server = two.steps.index("server")
    assert compute.shape[1] == 4 and two.server_ranks == 2 and one.server_ranks == 1
    assert (compute[server] > 0).tolist() == [True, True, False, False]
    assert (np.delete(compute, server, 0).sum(0) > 0).tolist() == [False, False, True, True]
    for name, counted in one.clients.items():
        np.testing.assert_array_equal(counted, two.clients[name])
    told = capsys.readouterr().out
    assert re.search(r"server    2 ranks, each on average: computing", told), told


NO_STEP = ".*takes no step on uploads .*leave the flag out"


@pytest.mark.parametrize(
    ("ranks", "servers", "words", "sentence"),
    [
        (1, 2, RUN, "no rank is left .*is 1 in all.; take --server-ranks 1, or start mpirun -n 3"),
        (3, 3, RUN, "no rank is left .*are 3 in all.; take --server-ranks 2, or start mpirun -n 4"),
        (2, 2, RUN, "no rank is left .*; take --server-ranks 1, or start mpirun -n 3"),
        (3, 0, RUN, "must be a whole number, at least 1"),
        (3, 2, [*RUN, "--merge", 1], ".* --merge 1 of the uploads, .*; take --server-ranks 1, or --merge 2"),
        (3, 5, RUN, ".* --merge 4 of the uploads, .*; take --server-ranks 2, or --merge 5 or more"),
        (3, 2, [*RUN, "--method", "sflv1", "--merge", 1], ".*leave the flag out"),
        (3, 2, [*RUN, "--method", "decomfl", "--merge", 1], ".*takes no step on uploads"),
        (3, 2, ["zo_hfl", "--problem", "toy"], NO_STEP),
        (3, 2, ["zo_hfl", "--problem", "toy", "--method", "fedavg"], NO_STEP),
        (3, 2, ["fedrzo"], NO_STEP),
    ],
)
def test_what_is_refused(
    ranks: int, servers: int, words: list[Any], sentence: str, tmp_path: Path, capsys: Capsys
) -> None:
    """Other families refuse the flag."""
    family, out = (FAMILY if words[0] in RUN else f"zofl_mpi.{words[0]}"), tmp_path / "run.h5"
    own = words if family == FAMILY else [*words[1:], "--m", 2, "--rounds", 1, "--quiet"]
    assert run_module(ranks, family, *own, "--server-ranks", servers, "--out", out) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(rf"zofl_mpi: --server-ranks {servers}: {sentence}.*\n", told), told
    assert not out.exists()


class Broken(RuntimeError):
    """Planted."""


@pytest.mark.parametrize("where", ["rank 0", "rank 1", "rank 3"])
def test_a_rank_that_fails_ends_all(where: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """In the second step's pass of a server rank, or a client. Mutation: the others wait."""
    steps = Counter[str]()

    def fail(after: int) -> None:
        steps[rank()] += 1
        if steps[rank()] > after and rank() == where:
            raise Broken("planted")

    met(monkeypatch, begun=lambda: fail(1), read=lambda: where != "rank 3" or fail(0))
    assert run_module(4, FAMILY, *RUN, "--server-ranks", 2, "--out", tmp_path / "run.h5") == 1
    told = capsys.readouterr().err
    assert "Broken: planted" in told, told
    assert where != "rank 3" or "(rank 3)" in told, told


@pytest.mark.parametrize("late", [1, 3])
def test_a_round_that_takes_too_long_names_the_rank_that_is_late(
    late: int, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """A rank of the server, or a client rank while the server's other rank waits. Mutations: server ranks that never
    say that they wait; rank 0 that listens to the clients alone."""
    stuck = list[float]()

    def hold() -> None:
        if rank() == f"rank {late}":
            stuck.append(time.monotonic())
            threading.Event().wait()

    met(monkeypatch, begun=hold, read=hold)
    Leap(monkeypatch, stuck, limit=6, round_=1, waiting=2)
    flags = ["--server-ranks", 2, "--round-timeout", 6, "--out", tmp_path / "run.h5"]
    assert run_module(4, FAMILY, *RUN, *flags) == 1
    told = capsys.readouterr().err
    assert re.search(rf"--round-timeout 6 s; late: rank {late} on \S+ \(1 of 3 ranks beside 0", told), told


def test_an_upload_that_diverges_is_named_by_its_client(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """Whichever rank computed on it. Mutations: its number in the step; a traceback of the other rank."""
    met(monkeypatch, computed=lambda given: given.terms[0].fill_(np.inf if rank() == "rank 1" else 0.0))
    assert run_module(4, FAMILY, *RUN, "--server-ranks", 2, "--out", tmp_path / "run.h5") == 1
    told = capsys.readouterr().err
    found = re.search(r"zofl_mpi: round 1: client (\d): the server's gradient on its upload", told)
    assert found and "Traceback" not in told, told
    order = Streams(1)(Purpose.ORDER, r=0).permutation(7).tolist()
    assert int(found[1]) == order[1], order  # the second upload of the step


@pytest.mark.parametrize("name", ["heron", "sflv2", "fsl_sage"])
def test_merged_steps_survive_the_loss_of_client_ranks(name: str, tmp_path: Path) -> None:
    """Lost in the middle of a step's uploads too: uploads stream from all ranks until the round is over. Mutations:
    uploads of the round that was given up count for the step of the repeated one; theta of then."""
    run, whole = [*RUN, *METHODS[name], "--merge", 5], tmp_path / "whole.h5"
    assert here(FAMILY, *run, "--out", whole) == 0
    for k in (1, 8):
        out, fate = tmp_path / f"{k}.h5", Fate({2: Death(1 + k % 2, k, after=bool(k % 3))})
        assert run_module(4, FAMILY, *run, "--survive", "--out", out, fate=fate) == 0
        assert differences(whole, out) == []
        assert json.loads(records.load(out).attrs["lost"])[0]["ranks"] == [2]


def test_survival_refuses_several_ranks_of_the_server(tmp_path: Path, capsys: Capsys) -> None:
    flags = [*RUN, "--server-ranks", 2, "--survive", "--out", tmp_path / "run.h5"]
    assert run_module(4, FAMILY, *flags, fate=Fate()) == 2
    assert "--server-ranks 2: --survive replaces lost client ranks" in capsys.readouterr().err


def test_a_killed_rank_of_the_server_ends_the_job(mpirun: Callable[..., Completed], tmp_path: Path) -> None:
    """Rank 1 under mpirun; the run goes on with one rank of the server. Mutation: rank 0 waits for ever."""
    run, whole, out = [*RUN, "--rounds", 3, "--eval-every", 3], tmp_path / "whole.h5", tmp_path / "run.h5"
    assert here(FAMILY, *run, "--out", whole) == 0
    assert mpirun(3, "-c", KILLED, *run, "--server-ranks", 2, "--out", out).returncode != 0
    assert 1 <= records.load(out).length < 3
    assert here(FAMILY, "--resume", out, "--quiet") == 0
    assert differences(whole, out) == []


KILLED = """
import functools, os, signal, sys
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.rounds.split.method import SplitMethod
from zofl_mpi.run.command import cli

passes, seen = SplitMethod.server_pass, []

@functools.wraps(passes)
def killed(self, part):
    seen.append(1)
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1" and len(seen) > 9:  # in the third round: four steps each
        os.kill(os.getpid(), signal.SIGKILL)
    return passes(self, part)

SplitMethod.server_pass = killed
cli.main("zofl_mpi.heron_sfl", sys.argv[1:])
"""
