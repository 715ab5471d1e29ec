"""Clients of unequal work, placed by it: where they compute changes no bit, also where a run goes on elsewhere."""

from tests.e2e.made import *
from zofl_mpi.engine.setting import Loads
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.run.mpi.placement import ClientPlacement

ROUNDS, M = 2, 7
USUAL = ["--m", M, "--eval-every", 1, "--quiet"]
SKEWED = [*USUAL, "--data", "digits", "--alpha", "0.1", "--seed", 3]
SPLIT = [*SKEWED, "--width", 2, "--stages", 1, 1, "--batch", 10, "--h", 3, "--beta", 0.6, "--lr-server", 0.01]
TAU = [9, 1, 2, 1, 3, 1, 1]
SCAFFOLD = ["--method", "scaffold", "--problem", "toy", "--tau", *TAU, *USUAL]
RUNS: dict[str, tuple[str, list[Any]]] = {
    "fedavg": ("zofl_mpi.zo_hfl", ["--method", "fedavg", "--batch", 0, "--tau", 2, "--kernel", "numpy", *SKEWED]),
    "scaffold": ("zofl_mpi.zo_hfl", SCAFFOLD),
    "heron": ("zofl_mpi.heron_sfl", SPLIT),
    "sflv2": ("zofl_mpi.heron_sfl", ["--method", "sflv2", *SPLIT]),
    "own": ("zofl_mpi.heron_sfl", ["--client-parts", "own", "--shift", "invert", "gain", *SPLIT]),
}


def command(name: str, rounds: int, out: Path) -> list[Any]:
    return [*RUNS[name][1], "--rounds", rounds, "--out", out]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """results(name, ranks): all of RUNS on so many threads, with those that began in one process; 0: here.

    name-half: the first half, in one process; name-part-RANKS: the same, continued on so many ranks.
    """
    folder, done = tmp_path_factory.mktemp("placement"), set[int]()

    def found(name: str, ranks: int) -> Path:
        if ranks not in done:
            done.add(ranks)
            runs: list[Command] = []
            for each, (family, _) in RUNS.items():
                runs.append((family, command(each, ROUNDS, folder / f"{each}-{ranks}.h5")))
                if ranks == 0:
                    assert here(family, *command(each, ROUNDS // 2, folder / f"{each}-half.h5")) == 0
                else:
                    half, part = folder / f"{each}-half.h5", folder / f"{each}-part-{ranks}.h5"
                    shutil.copy(half, part)
                    shutil.copy(checkpoint_path(half), checkpoint_path(part))
                    runs.append((family, ["--resume", part, "--rounds", ROUNDS, "--quiet"]))
            for (_, words), one in zip(runs, (threads if ranks else launch)(ranks, runs), strict=True):
                assert one.status == 0, (words, one.stderr)
        return folder / f"{name}-{ranks}.h5"

    return found


def placed(out: Path) -> list[int]:
    """Clients on each client rank of the last session."""
    rows = records.load(out).places
    last = max(int(row["from_round"]) for row in rows)
    return [int(row["clients"]) for row in rows if row["from_round"] == last and row["rank"]]


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("name", RUNS)
def test_where_clients_of_unequal_work_live_changes_no_bit(results: Callable[..., Path], name: str, ranks: int) -> None:
    """Runs from the start, and from a checkpoint of another number of ranks: memories go to the new placement.
    Mutations: messages, items or memories sent to i mod P; a method's `loads` of the rank's own clients only."""
    alone, spread = results(name, 0), results(name, ranks)
    assert differences(alone, spread) == []
    assert differences(alone, alone.with_name(f"{name}-half.h5")) != []
    assert differences(alone, alone.with_name(f"{name}-part-{ranks}.h5")) == []


def test_the_table_of_ranks_tells_where_they_live(results: Callable[..., Path]) -> None:
    """Mutations: i mod P in the table; loads that no rank is told of."""
    results("scaffold", 0)
    sizes = np.asarray(records.load(results("fedavg", 3)).counts).sum(axis=1).tolist()
    for ranks in (3, 5):
        for name, work in {"fedavg": sizes, "scaffold": TAU}.items():
            placement, out = ClientPlacement(ranks - 1, Loads(work)), results(name, ranks)
            expected = [len(placement.of(rank, M)) for rank in range(1, ranks)]
            assert expected != [len(ClientPlacement(ranks - 1).of(rank, M)) for rank in range(1, ranks)]
            assert placed(out) == placed(out.with_name(f"{name}-part-{ranks}.h5")) == expected


@pytest.mark.parametrize("ranks", [1, 3])
def test_work_that_is_no_number_of_each_client_is_told_in_a_sentence(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: it is looked at where ranks already wait for each other."""
    monkeypatch.setattr(Scaffold, "loads", lambda self: Loads([1.0, 2.0]))
    assert run_module(ranks, RUNS["scaffold"][0], *command("scaffold", 1, tmp_path / "a.h5")) == 2
    told = capsys.readouterr().err
    assert told == "zofl_mpi: Scaffold.loads(): work must be 7 finite numbers, one for each client, at least 0\n"
