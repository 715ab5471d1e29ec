"""A bilevel problem of a user's own for `zofl_mpi.fedrzo`, with nothing but the protocol's functions."""

from tests.e2e.made import *
from zofl_mpi.data import npz, partition
from zofl_mpi.engine.streams import Streams

(RIDGE,) = re.findall(r"```python\n([^`]*class Ridge[^`]*)```", (ROOT / "zofl_mpi/problems/README.md").read_text())
"""The problems' README shows it, with a table for it."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the problem, a table, and a cache of its own."""
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ridge.py").write_text(RIDGE)
    generator = np.random.Generator(np.random.Philox(1))
    u = generator.standard_normal((200, 3))
    np.savez(tmp_path / "table.npz", x=u, y=u @ [1, -2, 0.5] + generator.standard_normal(200))
    yield tmp_path
    sys.modules.pop("ridge", None)


def fitted(x: float) -> float:
    """f(y(x)) of `Ridge` in closed form; its clients hold equally many samples."""
    raw = npz.read_npz(Path("table.npz"))
    assert raw.targets is not None
    parts = partition.split(raw, Streams(1), m=4, alpha=np.inf, server_fraction=0.0).clients
    U, v = (np.concatenate([values[own.rows] for own in parts]) for values in (raw.inputs, raw.targets))
    y = np.linalg.solve(U.T @ U / len(U) + (0.1 + x**2) * np.eye(U.shape[1]), U.T @ v / len(U))
    return float(np.mean((U @ y - v) ** 2) / 2)


def test_a_bilevel_problem_of_ones_own_runs_on_any_number_of_ranks(folder: Path) -> None:
    """Less regularisation fits better, so x is driven to its set's lower bound 0.5 and beyond it until the penalty
    (x - 0.5)/eta balances the slope of f(y(x)). Mutations: another client's samples; a penalty of another set."""
    words = "--method fedrzo_bl --problem ridge:Ridge --data table.npz --m 4 --lower local_sgd --T-lower 40"
    words += " --batch-lower 0 --gamma-lower 0.2 --batch 0 --dtype float64 --gamma 0.004 --eta 0.01 --H 10 --rounds 10"
    for ranks, run in ((0, launch), (3, threads)):
        one: Command = ("zofl_mpi.fedrzo", [*words.split(), "--eval-every", 9, "--quiet", "--out", f"{ranks}.h5"])
        (ended,) = run(ranks, [one])
        assert ended.status == 0, ended.stderr
    assert differences(Path("0.h5"), Path("3.h5")) == []
    found = records.load("0.h5")
    x = float(found.final["x"][0])
    assert found.rounds["lower_rounds"].tolist() == [80] * 10
    assert found.rounds["lower_residual"][-1] < 1e-4
    assert found.rounds["objective"][-1] == pytest.approx(fitted(x), rel=1e-6)
    slope = (fitted(x + 0.001) - fitted(x - 0.001)) / 0.002
    assert slope > 0.2
    assert 0.5 - x == pytest.approx(0.01 * slope, rel=0.05)
