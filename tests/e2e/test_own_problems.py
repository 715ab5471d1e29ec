"""Problems of a user's own for `zofl_mpi.fedrzo`: the README's risk-averse regression, and a bilevel one."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.conftest import ROOT, Completed
from tests.launch import here
from tests.tools.agreement import differences
from zofl_mpi.data import npz, partition
from zofl_mpi.engine.streams import Streams
from zofl_mpi.run import records

FAMILY = "zofl_mpi.fedrzo"
Mpirun = Callable[..., Completed]
README = (ROOT / "zofl_mpi/problems/README.md").read_text()


def shown(pattern: str) -> str:
    """What the README shows."""
    found = re.search(pattern, README, re.S)
    assert found, pattern
    return found[1]


CVAR = shown(r'```python\n("""min over x = \(w, b, t\).*?)```')
TABLE = shown(r"```python\n(import numpy as np\n\nrng[^`]*table.npz[^`]*)```")
COMMAND = shown(r"mpirun -n 3 python -m zofl_mpi.fedrzo (--problem risk:CVaR [^\n]*)").split()

RIDGE = '''
"""Choose the regulariser of a least-squares fit."""

from dataclasses import dataclass

import numpy as np

from zofl_mpi.data import Federation


@dataclass(frozen=True)
class Ridge:
    """f_i(x, y) = mean (<u, y> - v)^2 / 2 and h_i(x, y) = f_i + (floor + x^2) / 2 |y|^2.

    Attributes:
        federation: who holds which samples.
        floor: least regulariser.
    """

    federation: Federation
    floor: float = 0.1
    n = 1

    @property
    def n_lower(self):
        return self.federation.test.features

    def errors(self, y, data, batch):
        batch = np.arange(len(data)) if batch is None else batch
        u = data.take(batch, np.float64)[0]
        return u, y @ u.T - data.target(batch, np.float64)

    def f(self, i, x, y, data, batch=None):
        return (self.errors(y, data, batch)[1] ** 2).mean(axis=1) / 2

    def gradient_h(self, i, x, y, data, batch=None):
        u, errors = self.errors(y, data, batch)
        return errors @ u / len(u) + (self.floor + x[0] ** 2) * y

    def curvature(self, x):
        least = self.floor + float(x[0]) ** 2
        inputs = [data.take(np.arange(len(data)), np.float64)[0] for data in self.federation.clients]
        return least, least + max((u**2).sum(axis=1).mean() for u in inputs)

    def project(self, i, x):
        return np.clip(x, 0.5, 2)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the README's table and problem, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "risk.py").write_text(CVAR)
    (tmp_path / "ridge.py").write_text(RIDGE)
    exec(TABLE, {})
    yield tmp_path
    for name in ("risk", "ridge"):
        sys.modules.pop(name, None)


def clients(m: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """What the clients hold: inputs and targets."""
    raw = npz.read_npz(Path("table.npz"))
    parts = partition.split(raw, Streams(seed), m=m, alpha=np.inf, server_fraction=0.0).clients
    return [(raw.inputs[d.rows], raw.targets[d.rows]) for d in parts if d.rows is not None and raw.targets is not None]


def risk(x: np.ndarray, alpha_risk: float, m: int) -> float:
    """The mean over clients, sample by sample, of t + (mean of what the errors are above t) / (1 - alpha_risk)."""
    w, b, t = x[:-2], x[-2], x[-1]
    above = [
        np.mean([max(0.0, abs(float(u @ w) + b - v) - t) for u, v in zip(*part, strict=True)]) for part in clients(m)
    ]
    return float(t + np.mean(above) / (1 - alpha_risk))


def optimum(alpha_risk: float, m: int) -> float:
    """The least risk, by the linear program min t + sum_j c_j z_j with z_j >= +-(<u_j, w> + b - v_j) - t, z >= 0."""
    parts = clients(m)
    U, v = np.concatenate([u for u, _ in parts]), np.concatenate([v for _, v in parts])
    c = np.concatenate([np.full(len(v), 1 / (m * len(v) * (1 - alpha_risk))) for _, v in parts])
    one = np.ones((len(U), 1))
    rows = np.block([[U, one, -one, -np.eye(len(U))], [-U, -one, -one, -np.eye(len(U))]])
    free = [(None, None)] * (U.shape[1] + 2)
    found = linprog(np.r_[np.zeros(U.shape[1] + 1), 1, c], rows, np.r_[v, -v], bounds=free + [(0, None)] * len(U))
    assert found.status == 0
    return float(found.fun)


def run(mpirun: Mpirun, ranks: int, *arguments: object) -> Path:
    """The result file of a run that went well; 0 ranks is in this process."""
    out = Path(f"on_{ranks}.h5").absolute()
    words = [*arguments, "--quiet", "--force", "--out", out]
    if ranks:
        done = mpirun(ranks, "-m", FAMILY, *words)
        assert done.returncode == 0, done.stderr
    else:
        assert here(FAMILY, *words) == 0
    return out


# --- Lipschitz


@pytest.mark.slow
def test_the_regression_of_the_readme_nears_the_optimum_on_any_number_of_ranks(mpirun: Mpirun, folder: Path) -> None:
    """Mutations: t left out of the errors, targets of other rows, mean over all columns; bits that depend on ranks."""
    one, three = (run(mpirun, ranks, *COMMAND) for ranks in (0, 3))
    assert differences(one, three) == []
    found = records.load(one)
    objective = found.rounds["objective"][-1]
    assert objective == pytest.approx(risk(found.final["x"].astype(float), 0.9, 4), rel=1e-9)
    least = optimum(0.9, 4)
    assert found.rounds["objective"][0] > 5 * least
    assert least <= objective <= 1.01 * least
    said = shown(r"within (1 % of the optimum that a linear program finds \([\d.]+)\)")
    assert said == f"1 % of the optimum that a linear program finds ({least:.3f}"


def test_its_field_is_a_flag(mpirun: Mpirun, folder: Path) -> None:
    """With --alpha-risk 0.5 and x = 0 the objective is twice the mean of |v|."""
    flags = ["--alpha-risk", "0.5", "--gamma", "0", "--rounds", "1"]
    found = records.load(run(mpirun, 0, *COMMAND, *flags))
    mean = np.mean([abs(v).mean() for _, v in clients(4)])
    assert found.rounds["objective"][0] == pytest.approx(2 * mean, rel=1e-12)


def test_a_class_without_project_is_refused_by_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "risk.py").write_text(CVAR.replace("def project(", "def _project("))
    assert here(FAMILY, *COMMAND) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and told.startswith("zofl_mpi: --problem risk:CVaR: CVaR is no problem: ")
    assert re.search(r"a Lipschitz problem lacks project(;|$)", told)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--alpha", "0.3"], "--alpha 0.3: a regression has no classes for clients to be uneven in"),
        (["--problem", "relu_net"], "--data table.npz has targets, not classes; this problem classifies"),
        (["--data", "digits"], "client 0 (rank 0) failed in step 'step', item 0: these data have classes, not targets"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert here(FAMILY, *COMMAND, *flags, "--quiet") == (1 if "digits" in flags else 2)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and words in told


# --- Bilevel


def fitted(x: float) -> float:
    """f(y(x)) of `Ridge` in closed form; its clients hold equally many samples."""
    parts = clients(4)
    U, v = np.concatenate([u for u, _ in parts]), np.concatenate([v for _, v in parts])
    y = np.linalg.solve(U.T @ U / len(U) + (0.1 + x**2) * np.eye(U.shape[1]), U.T @ v / len(U))
    return float(np.mean((U @ y - v) ** 2) / 2)


def test_a_bilevel_problem_of_ones_own_runs_on_any_number_of_ranks(mpirun: Mpirun, folder: Path) -> None:
    """Nothing but the protocol's functions. Less regularisation fits better, so x is driven to its set's lower bound
    0.5 and beyond it until the penalty (x - 0.5)/eta balances the slope of f(y(x)).
    """
    own = [
        "--method",
        "fedrzo_bl",
        "--problem",
        "ridge:Ridge",
        "--data",
        "table.npz",
        "--m",
        "4",
        "--lower",
        "local_sgd",
    ]
    own += ["--T-lower", "40", "--batch-lower", "0", "--gamma-lower", "0.2", "--batch", "0", "--dtype", "float64"]
    own += ["--gamma", "0.004", "--eta", "0.01", "--H", "10", "--rounds", "10", "--eval-every", "9"]
    one, three = (run(mpirun, ranks, *own) for ranks in (0, 3))
    assert differences(one, three) == []
    found = records.load(one)
    x = float(found.final["x"][0])
    assert found.rounds["lower_rounds"].tolist() == [80] * 10
    assert found.rounds["lower_residual"][-1] < 1e-4
    assert found.rounds["objective"][-1] == pytest.approx(fitted(x), rel=1e-6)
    slope = (fitted(x + 0.001) - fitted(x - 0.001)) / 0.002
    assert slope > 0.2
    assert 0.5 - x == pytest.approx(0.01 * slope, rel=0.05)
