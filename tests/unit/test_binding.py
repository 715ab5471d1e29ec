"""Where ranks compute: proven by an allocation, told to all, kept in the result; GPUs left idle are noticed."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Capsys
from tests.launch import undisturbed
from tests.threads import run_module, run_ranks
from zofl_mpi.doctor import slurm
from zofl_mpi.engine import device
from zofl_mpi.errors import UserError
from zofl_mpi.run import records
from zofl_mpi.run.command import build
from zofl_mpi.run.mpi import binding
from zofl_mpi.run.mpi.binding import RankPlacement

A, B, C = "GPU-a", "GPU-b", "GPU-c"


def place(uuid: str, gpus: int, host: str = "n1", client: bool = True) -> RankPlacement:
    return RankPlacement(host, client, "cuda:0" if uuid else "cpu", uuid, gpus, "0-3", 4, "openblas")


told: list[str] = []
"""The ranks that are told to give the same bits each time."""


BUILD = {"__version__": "2.9", "version": SimpleNamespace(cuda="13.0")}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[RankPlacement]]]:
    """gpus([A, B], [A]): what all ranks learn that see these GPUs, each rank a thread with a CUDA of its own.

    An allocation that names no number lands on the current GPU, the first one until a rank chooses.
    """
    own = threading.local()
    told.clear()

    def run(*seen: list[str], broken: str = "", lands: bool = True, granted: str = "") -> list[list[RankPlacement]]:
        def uuids() -> list[str]:
            return seen[int(threading.current_thread().name.removeprefix("rank "))]

        def set_device(name: str) -> None:
            own.k = int(name.removeprefix("cuda:")) if lands else 0

        def zeros(size: int, device: str) -> Any:
            k = int(device.partition(":")[2] or getattr(own, "k", 0))
            if uuids()[k] == broken:
                raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore lines")
            return SimpleNamespace(device=k)

        cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: len(uuids()),
            get_device_properties=lambda k: SimpleNamespace(uuid=uuids()[k]),
            set_device=set_device,
        )
        monkeypatch.setattr(device, "torch", SimpleNamespace(cuda=cuda, zeros=zeros, **BUILD))
        monkeypatch.setattr(device, "NODES", ("/",))
        monkeypatch.setattr(device, "limit_threads", lambda n: None)
        monkeypatch.setattr(device, "reproducible", lambda: told.append(threading.current_thread().name))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", granted)
        return run_ranks(len(seen), lambda world: binding.bind(world, "auto", gpu=True))

    return run


def test_every_rank_learns_on_which_gpu_the_others_landed(gpus: Callable[..., list[list[RankPlacement]]]) -> None:
    """Mutations: the uuid of GPU 0; an allocation before the choice."""
    found = gpus([A, B], [A, B], [B, A])
    assert found[0] == found[1] == found[2]
    landed = [(each.device, each.uuid, each.client) for each in found[0]]
    assert landed == [("cuda:0", A, False), ("cuda:0", A, True), ("cuda:0", B, True)]
    assert {each.gpus for each in found[0]} == {2} and list(binding.warnings_of(found[0])) == []
    assert list(binding.warnings_of(gpus([A], [A], [A])[0])) == []  # it is the only one
    assert len(list(binding.warnings_of(gpus([A], [A], [A], granted="2")[0]))) == 1  # of those that Slurm gave
    told.clear()
    found = gpus([], [A], [A, B])
    assert sorted(told) == ["rank 1", "rank 2"], "others keep their bits"
    (sentence,) = binding.warnings_of(found[0])
    assert "computes on the CPU: torch 2.9 (built for CUDA 13.0) sees no GPU" in sentence


def test_ranks_that_do_not_land_where_they_chose_are_found(gpus: Callable[..., list[list[RankPlacement]]]) -> None:
    """Mutations: the uuid that was chosen in place of the one where the allocation is; one on a GPU that is named."""
    found = gpus([A, B, C], [A, B, C], [A, B, C], lands=False)[0]
    assert [each.device for each in found] == ["cuda:2", "cuda:0", "cuda:1"]
    (sentence,) = list(binding.warnings_of(found))
    assert "ranks 1, 2 on" in sentence and f"share the GPU {A}, although the node has 3 for 2 ranks" in sentence


def test_a_gpu_on_which_nothing_can_be_allocated_ends_all_ranks(gpus: Callable[..., list[list[RankPlacement]]]) -> None:
    """Mutation: a traceback of one rank while the others wait."""
    with pytest.raises(
        UserError, match=r"cuda:1 is there, but nothing can be allocated on it \(CUDA error: all"
    ) as exc:
        gpus([A], [A], [A, B], broken=B)
    assert "rank 2 on" in str(exc.value) and "more lines" not in str(exc.value)


@pytest.mark.parametrize(
    ("placements", "told"),
    [
        ([place(A, 2, client=False), place(A, 2), place(B, 2)], []),  # the server beside a client: 2 GPUs for 3 ranks
        ([place(A, 3, client=False), place(A, 3), place(B, 3)], ["ranks 0, 1 on n1"]),  # the third one is idle
        ([place(A, 1), place(A, 1)], []),
        ([place(A, 2), place(A, 2, "n2")], []),  # two nodes
        ([place("", 0), place("", 0)], []),
        ([place(A, 2, "n2"), place(A, 2, "n2"), place(B, 2, "n1"), place(B, 2, "n1")], ["ranks 2, 3", "ranks 0, 1"]),
    ],
)
def test_ranks_that_share_a_gpu_while_one_is_left_are_named(placements: list[RankPlacement], told: list[str]) -> None:
    found = list(binding.warnings_of(placements))
    assert len(found) == len(told) and all(words in each for words, each in zip(told, found, strict=True))
    assert [binding.spans(each) for each in ((), (3,), (2, 0, 1), (0, 1, 3, 8, 9))] == ["", "3", "0-2", "0-1,3,8-9"]


def test_the_table_of_ranks_is_printed_and_kept_for_each_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: clients dealt to another rank than they live on; a resume that forgets where the first part ran."""
    monkeypatch.setattr(device, "cores", lambda: frozenset({0, 1, 5}))
    out = tmp_path / "run.h5"
    run = ["--data", "digits", "--m", "3", "--tau", "1", "--quiet", "--out", out]
    with undisturbed():
        assert run_module(3, "zofl_mpi.zo_hfl", *run, "--rounds", 2, "--verbose") == 0
        told = capsys.readouterr().out.splitlines()
        assert run_module(1, "zofl_mpi.zo_hfl", "--resume", out, "--rounds", 3, "--quiet") == 0
    assert "cores" not in capsys.readouterr().out
    assert told[0].split() == ["rank", "host", "device", "uuid", "gpus", "cores", "threads", "clients", "role"]
    assert [(line.split()[0], *line.split()[2:]) for line in told[1:4]] == [
        (str(rank), "cpu", "-", "0", "0-1,5", "1", clients, "client" if rank else "server")
        for rank, clients in enumerate("021")
    ]
    rows = [
        (row["from_round"], row["rank"], row["cores"], row["clients"], row["role"])
        for row in records.load(out).placements
    ]
    ranks = [(0, 0, "0-1,5", 0, "server"), (0, 1, "0-1,5", 2, "client"), (0, 2, "0-1,5", 1, "client")]
    assert rows == [*ranks, (2, 0, "0-1,5", 3, "both")]


def test_the_doctor_says_what_a_job_cannot_do_without() -> None:
    """Mutation: only rank 0's node is looked at."""
    job, hosts = {"SLURM_JOB_ID": "7"}, ["n1", "n1", "n2"]
    assert "this is no job" in slurm({}, hosts, [[], [], []])
    assert slurm(job, hosts, [[], [], []]) == "Slurm: job 7 can put itself back into the queue"
    told = slurm(job, hosts, [[], [], ["squeue", "scontrol"]])
    assert "job 7 cannot put itself back" in told and "no squeue and no scontrol on n2" in told
    told = slurm(job, hosts, [[], [], ["squeue"]])
    assert "job 7 can put itself back" in told and "no squeue on n2" in told


def test_of_many_ranks_a_result_lists_each_host_once_and_mixed_libraries_are_warned_of(capsys: Capsys) -> None:
    """An attribute holds 64 kB. Mutations: the limit left out; the warning by every rank, or for one library."""
    some = [replace(place("", 0, host=f"n{k % 3}"), blas="mkl" if k == 7 else "openblas") for k in range(513)]
    for rank in (0, 1):
        world: Any = SimpleNamespace(rank=rank, size=513)
        lists = build._placements(world, some)
        assert lists == {"hosts": ["n0", "n1", "n2"], "blas": ["mkl", "openblas"], "device": ["cpu"], "threads": [4]}
        warned = "ranks use different BLAS libraries (mkl, openblas)" in capsys.readouterr().err
        assert warned == (rank == 0)
    few: Any = SimpleNamespace(rank=0, size=3)
    assert build._placements(few, some[:3])["blas"] == ["openblas"] * 3 and not capsys.readouterr().err
