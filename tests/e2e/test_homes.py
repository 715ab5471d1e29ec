"""Clients of unequal work, placed by it: where they compute changes no bit, also where a run goes on elsewhere."""

from tests.e2e.made import *
from tests.launch import Runs
from zofl_mpi.engine.setting import Loads
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.run.mpi.placement import ClientPlacement

M = 7
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


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    commands = {name: (family, [*words, "--rounds", 2]) for name, (family, words) in RUNS.items()}
    return Runs(tmp_path_factory.mktemp("placement"), commands)


def placed(out: Path) -> list[int]:
    """Clients on each client rank of the last session."""
    rows = records.load(out).places
    last = max(int(row["from_round"]) for row in rows)
    return [int(row["clients"]) for row in rows if row["from_round"] == last and row["rank"]]


@pytest.mark.parametrize("ranks", [3, 5])
@pytest.mark.parametrize("name", RUNS)
def test_where_clients_of_unequal_work_live_changes_no_bit(results: Runs, name: str, ranks: int) -> None:
    """Runs from the start, and from a checkpoint of another number of ranks: memories go to the new placement.
    Mutations: messages, items or memories sent to i mod P; a method's `loads` of the rank's own clients only."""
    alone = results(name, 0)
    assert differences(alone, results(name, ranks)) == []
    assert differences(alone, results.continued(name, 0, ranks, (1, 2))) == []


def test_the_table_of_ranks_tells_where_they_live(results: Runs) -> None:
    """Mutations: i mod P in the table; loads that no rank is told of."""
    sizes = np.asarray(records.load(results("fedavg", 3)).counts).sum(axis=1).tolist()
    for ranks in (3, 5):
        for name, work in {"fedavg": sizes, "scaffold": TAU}.items():
            placement = ClientPlacement(ranks - 1, Loads(work))
            expected = [len(placement.of(rank, M)) for rank in range(1, ranks)]
            assert expected != [len(ClientPlacement(ranks - 1).of(rank, M)) for rank in range(1, ranks)]
            assert placed(results(name, ranks)) == expected
            assert placed(results.continued(name, 0, ranks, (1, 2))) == expected


@pytest.mark.parametrize("ranks", [1, 3])
def test_work_that_is_no_number_of_each_client_is_told_in_a_sentence(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutation: it is looked at where ranks already wait for each other."""
    monkeypatch.setattr(Scaffold, "loads", lambda self: Loads([1.0, 2.0]))
    assert run_module(ranks, "zofl_mpi.zo_hfl", *SCAFFOLD, "--out", tmp_path / "a.h5") == 2
    told = capsys.readouterr().err
    assert told == "zofl_mpi: Scaffold.loads(): work must be 7 finite numbers, one for each client, at least 0\n"
