"""HERON-SFL and its baselines by the command line: bits, bytes, continued runs, refusals, networks of a user's own."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.conftest import Capsys
from tests.launch import Runs, here, refused
from zofl_mpi import heron_sfl
from zofl_mpi.report.same import compared
from zofl_mpi.rounds.split.costs import STEP_BYTES, STEP_MACS
from zofl_mpi.rounds.split.method import LockstepMethod
from zofl_mpi.rounds.split.unsplit import UnsplitMethod
from zofl_mpi.run import records
from zofl_mpi.run.records.hdf5 import set_attributes

FAMILY = "zofl_mpi.heron_sfl"
METHODS: dict[str, list[str]] = {name: [] for name in heron_sfl.METHODS} | {
    "heron": ["--k", "2", "--n-p", "2", "--mu", "0.01"],
    "heron+seeds": ["--k", "2", "--n-p", "2", "--mu", "0.01", "--uplink", "seeds"],
    "heron+average": ["--state", "average", "--k", "2", "--freeze", "auxiliary"],
    "heron+adamw": ["--optimiser", "adamw", "--weight-decay", "0.1", "--uplink", "seeds"],
    "sflv1": ["--momentum", "0.5", "--optimiser", "sgd", "--lr-client", "0.1"],
    "sflv2": ["--order", "client_major"],
    "cse_fsl": ["--k", "3"],
    "fsl_sage": ["--k", "2", "--l", "2", "--align-epochs", "2", "--buffer", "40", "--merge", "2"],
    "splitlora": ["--warmup", "3"],
    "decomfl": ["--optimiser", "adamw", "--n-p", "2", "--mu", "0.01", "--lr-client", "0.01"],
    "hiso": ["--n-p", "2", "--mu", "0.01", "--lr-client", "0.01"],
    "fedkseed": ["--seeds", "20", "--mu", "0.01", "--lr-client", "0.01", "--seed-weights", "magnitude"],
    "heron+head": ["--k", "2", "--n-p", "2", "--mu", "0.01", "--head-gradient", "exact", "--uplink", "seeds"],
    "heron+signs": ["--k", "2", "--directions", "per-sample", "--batchnorm", "running", "--head-gradient", "exact"],
    "ho_sfl+exact": ["--mu", "0.01", "--exact-layers", "2", "--uplink", "seeds"],
    "ho_sfl": ["--n-p", "2", "--mu", "0.01"],
    "ho_sfl+seeds": ["--n-p", "2", "--mu", "0.01", "--uplink", "seeds"],
    "heron+own": ["--k", "2", "--mu", "0.01", "--client-parts", "own", "--shift", "invert", "gain", "blur"],
    "sflv2+merge": ["--merge", "2", "--warmup", "4"],
    "cse_fsl+merge": ["--merge", "5", "--schedule", "linear", "--decay-steps", "14", "--decay-steps-server", "9"],
    "sflv2+own": ["--client-parts", "own", "--shift", "contrast", "clean"],
    "heron+bf16": ["--k", "2", "--bf16"],
    "heron+float64": ["--k", "2", "--dtype", "float64"],
}
METHODS["heron+adamw"] += ["--schedule", "linear", "--warmup", "3", "--decay-steps", "14", "--decay-steps-server", "40"]
SPREAD, FIVE = ["heron+adamw", "fsl_sage"], ["heron", "sflv2", "heron+own"]
"""SPREAD begin in one process and go on on three ranks; the others begin on three, or on five, and go on in one
process: two of three rounds before, where heads are aligned in rounds 0 and 2. Ranks are threads: those of mpirun have
the same bits, of every method, in tests/e2e/test_check.py."""


def of_kind(base: type[object]) -> list[str]:
    return [name for name in METHODS if issubclass(heron_sfl.METHODS[name.partition("+")[0]], base)]


RETURNING, UNSPLIT = of_kind(LockstepMethod), of_kind(UnsplitMethod)
"""Methods whose server returns a gradient for every mini-batch, and those whose clients hold the whole network."""
USUAL = [
    "--problem",
    "split_resnet",
    "--data",
    "digits",
    "--m",
    "5",
    "--alpha",
    "1",
    "--width",
    "2",
    "--stages",
    "1",
    "1",
    "--batch",
    "16",
]
USUAL += ["--h", "4", "--beta", "0.6", "--augment", "crop-flip", "--eval-every", "2", "--lr-server", "0.01", "--quiet"]
ROUNDS, BATCH = 3, 16
N_CLIENT, N_HEAD, N_BUFFERS, Q_S = 102, 1290, 12, 128
"""Of width 2 on 8 x 8 digits: 18 + 4 + 2 (36 + 4) parameters, 128 x 10 + 10, means and variances of 3 BatchNorms."""


def test_every_method_of_the_family_is_among_them() -> None:
    """Mutation: a method that is registered and has no runs here."""
    assert {name.partition("+")[0] for name in METHODS} == set(heron_sfl.METHODS)


def command(method: str, rounds: int, out: Path) -> list[str]:
    return ["--method", method.split("+")[0], *USUAL, *METHODS[method], "--rounds", str(rounds), "--out", str(out)]


def begun(method: str) -> int:
    """Ranks of the first rounds of a run that goes on elsewhere."""
    return 1 if method in SPREAD else 5 if method in FIVE else 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """results(method): in this process, or with spread=True on three ranks and in one process."""
    commands = {name: (FAMILY, command(name, ROUNDS, Path())[:-2]) for name in METHODS}
    runs = Runs(tmp_path_factory.mktemp("heron"), commands)

    def found(method: str, spread: bool = False) -> Path:
        if not spread:
            return runs(method, 0)
        return runs.continued(method, *((0, 3) if method in SPREAD else (begun(method), 0)), (2, ROUNDS))

    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_was_interrupted_goes_on_on_other_ranks_to_the_bit(
    results: Callable[..., Path], method: str
) -> None:
    """BatchNorm, crops, participants, uploads; Adam's moments of clients and server, momenta of replicas, running
    statistics, heads, buffers, scalars, steps. Mutations: a generator of a rank; moments or modules of a neighbour; one
    of them in no checkpoint; counted from 0 again."""
    alone, spread = records.load(results(method)), records.load(results(method, spread=True))
    assert compared(alone, spread) == []
    sessions = [session["ranks"] for session in json.loads(spread.attrs["sessions"])]
    assert sessions == [begun(method), 3 if method in SPREAD else 1] and spread.attrs["status"] == "done"


def test_a_run_whose_directions_were_drawn_otherwise_is_not_continued(capsys: Capsys) -> None:
    """Even where its modules begin alike: the kernel tells. The exact gradient has no directions. Mutation: no name."""
    for estimate in ("one-sided", "exact"):
        out = Path(f"{estimate}.h5")
        assert here(FAMILY, *command("heron+float64", 1, out), "--estimate", estimate) == 0
        with h5py.File(out, "r+") as file:
            kernel = file.attrs["kernel"].decode()
            set_attributes(file, {"kernel": "torch cpu"})
        if estimate == "exact":
            assert kernel == "torch cpu"
            continue
        capsys.readouterr()
        assert here(FAMILY, "--resume", out, "--rounds", "2", "--quiet") == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "its kernel was torch cpu, here it is torch cpu, directions from whole" in told
        assert "use the run's version of zofl_mpi" in told


@pytest.mark.parametrize("method", METHODS)
def test_every_method_moves_and_reports_what_it_describes(results: Callable[..., Path], method: str) -> None:
    found = records.load(results(method))
    assert [name for name in found.rounds if not (found.units[name] and found.descriptions[name])] == []
    for name in ("test_loss", "test_accuracy", *(["server_loss"] if method not in UNSPLIT else [])):
        assert np.isfinite(found.rounds[name][[0, -1]]).all(), name
    assert np.isnan(found.rounds["local_loss"]).all() == (method in RETURNING)
    assert found.rounds["test_loss"][-1] != found.rounds["test_loss"][0]
    assert found.final["theta"].shape == (N_CLIENT + N_HEAD * (method not in UNSPLIT),)
    assert "scalars" not in found.final and found.final["buffers"].shape == (N_BUFFERS,)
    if method == "fsl_sage":
        assert np.isfinite(found.rounds["alignment_loss"]).tolist() == [True, False, True]


N_P = {
    "heron+seeds": 2,
    "heron+adamw": 1,
    "decomfl": 2,
    "hiso": 2,
    "ho_sfl+seeds": 2,
    "heron+head": 2,
    "ho_sfl+exact": 1,
}
"""Directions of the methods that send h n_p scalars up."""


def uploads(method: str) -> int:
    """Of the four local steps of a client."""
    return 0 if method in UNSPLIT else 4 if method in (*RETURNING, "heron+adamw", "cse_fsl+merge") else 2


@pytest.mark.parametrize("method", METHODS)
def test_bytes_are_those_of_the_formulas(results: Callable[..., Path], method: str) -> None:
    """Those of [C] Table I, V-B1 (p q and twice the model), for each client and round; labels apart. With the model
    travel BatchNorm's statistics, 8 bytes for r down, 8 for a local loss up, and Adam's averaged moments: two numbers
    of each that trains, and 8 for the number of steps. FSL-SAGE's Algorithm 1 sends aligned heads down; with seeds
    h n_p differences of losses come up in the model's place. DeComFL has nothing but these, down those of all
    rounds since the client's last, and the statistics of both parts; FedKSeed K numbers down and up, with weights of
    the seeds 2 K down and 3 K up. bfloat16 halves what goes up. Mutations: labels in bytes_up; the head in SplitFed's
    or FSL-SAGE's messages; a gradient sent back by HERON; 4 bytes for any precision."""
    found = records.load(results(method, spread=True))
    down, up = (np.asarray(found.clients[name]).sum(axis=1) for name in ("bytes_down", "bytes_up"))
    took = up > 0
    assert (took.sum(axis=1) == 3).all() and np.array_equal(took, down > 0) and not np.array_equal(took[0], took[1])
    b = 8 if method.endswith("float64") else 4
    model = b * (N_CLIENT + N_BUFFERS + (N_HEAD if method.startswith(("heron", "cse_fsl")) else 0))
    model += 2 * 4 * N_CLIENT + 8 if method == "heron+average" else 0
    scalars = 8 * 4 * N_P.get(method, 0)
    if method in UNSPLIT:
        model = 4 * (N_BUFFERS + len(found.final["buffers_s"]))
    model = 0 if method.endswith("+own") else model
    returned = model + (3 * 4 * 20 if method == "fedkseed" else 0)
    if scalars:
        returned = scalars + (model if method in ("decomfl", "hiso") else 4 * N_BUFFERS)
        returned += 4 * {"heron+head": N_HEAD, "ho_sfl+exact": 36 + 4}.get(method, 0)  # a convolution and its norm
    smashed = uploads(method) * BATCH * (2 if method.endswith("bf16") else b) * Q_S
    back = smashed if method in RETURNING else 0
    aligned = 4 * N_HEAD if method == "fsl_sage" else 0
    back = 2 * 4 * 20 if method == "fedkseed" else back
    rounds = np.arange(ROUNDS)[:, None]
    if method in ("decomfl", "hiso"):
        before = [[np.flatnonzero(took[:r, i]) for i in range(5)] for r in range(ROUNDS)]
        last = np.array([[max(own, default=0) for own in each] for each in before])
        assert (rounds - last)[took].max() > 1
        back = scalars * (rounds - last)
    loss = 8 * (method not in RETURNING)  # whose clients compute none
    assert np.array_equal(up, took * (returned + loss + smashed))
    assert np.array_equal(down, took * (model + 8 + back + aligned * (rounds % 2 == 0)))
    assert found.rounds["label_bytes"].tolist() == [3 * uploads(method) * BATCH * 8] * ROUNDS
    merged = {"fsl_sage": 2, "sflv2+merge": 2, "cse_fsl+merge": 1}  # steps on the q-th uploads of three clients
    assert found.rounds["server_steps"].tolist() == [merged.get(method, 3) * uploads(method)] * ROUNDS


@pytest.mark.parametrize("method", METHODS)
def test_a_run_costs_what_the_dry_run_announced(results: Callable[..., Path], method: str, capsys: Capsys) -> None:
    """Bytes of all rounds, with partial participation and unequal clients; a step's costs, which the result keeps.
    Mutations: all clients in every round; the model up, of seeds; costs of a step of one sample."""
    found = records.load(results(method))
    capsys.readouterr()
    assert here(FAMILY, *command(method, ROUNDS, Path("none.h5")), "--dry-run") == 0
    out = capsys.readouterr().out.splitlines()
    told = {name.strip(): value for name, value in (line.rsplit(maxsplit=1) for line in out if line[:5] == "bytes")}
    at = 0 if method in UNSPLIT else 1  # before scalars of rounds before; without heads
    down, up = (np.asarray(found.clients[name]) for name in ("bytes_down", "bytes_up"))
    assert number(told["bytes down and up, all clients, a round"]) == down[at].sum() + up[at].sum()
    assert number(told["bytes of labels, all clients, a round"]) == found.rounds["label_bytes"][0]
    client = int(np.flatnonzero(up[at].sum(axis=0))[0])
    for way, counted in (("down", down), ("up", up)):
        assert number(told[f"bytes {way}, client 0, a round"]) == counted[at].sum(axis=0)[client]
    head, sizes = f"GiB in {ROUNDS} rounds: ", [line.rsplit(" (", 1) for line in out if line.startswith("GiB")]
    shares = {name.rsplit(maxsplit=1)[0].strip().removeprefix(head): float(end.split()[0]) for name, end in sizes}
    totals = {name: share * ROUNDS * 2**30 for name, share in shares.items()}
    assert totals["all but labels"] == pytest.approx(down.sum() + up.sum(), rel=1e-4)
    assert totals["labels"] == pytest.approx(found.rounds["label_bytes"].sum(), rel=1e-4)
    parts = [size for name, size in totals.items() if "[C]" not in name]
    numbers = 3 * 16 * ROUNDS  # of the three participants of a round, which are no part's
    assert sum(parts[:-2]) + numbers == pytest.approx(parts[-1], rel=2e-3)
    kept = json.loads(found.attrs["costs"])
    assert {n: number(line.removeprefix(n)) for line in out for n in kept if line.startswith(f"{n} ")} == kept
    assert kept[STEP_BYTES] > 0 and kept[STEP_MACS] > 0 and not Path("none.h5").exists()


def number(text: str) -> int:
    return int(text.replace(",", ""))


OWN = """
import torch
from torch import nn


class Own:
    def __init__(self, shape, classes):
        self.client = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 6), nn.Tanh())
        self.auxiliary = nn.Linear(6, classes)
        self.server = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, classes))


"""
CHANGED = {
    "Flat": "super().__init__((1, 1, *shape), classes)",
    "Lacking": "self.client = self.server = nn.Flatten()",
    "Function": "super().__init__(shape, classes); self.server = lambda smashed: smashed",
    "Lazy": "super().__init__(shape, classes); self.auxiliary = nn.LazyLinear(classes)",
    "Frozen": "super().__init__(shape, classes); self.client.requires_grad_(False)",
}
for name, body in CHANGED.items():
    OWN += f"class {name}(Own):\n    def __init__(self, shape, classes):\n        {body}\n\n\n"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    """The name of a module with OWN's classes in the current folder."""
    name = "own_split_parts"
    sys.modules.pop(name, None)
    (tmp_path / f"{name}.py").write_text(OWN)
    yield name
    sys.modules.pop(name, None)


TINY = ["--data", "digits", "--m", "3", "--batch", "64", "--rounds", "1", "--quiet", "--out", "a.h5"]


@pytest.mark.parametrize(
    ("method", "cls"),
    [("heron", "Own"), *((method, "Frozen") for method in sorted({name.split("+")[0] for name in METHODS}))],
)
def test_an_own_split_of_three_parts_runs(own: str, method: str, cls: str) -> None:
    """Mutation: parts that nothing trains end in a traceback of autograd's."""
    assert here(FAMILY, *TINY, "--method", method, "--problem", f"{own}:{cls}", "--h", 3, "--lr-server", 0.01) == 0
    final = records.load("a.h5").final
    head = 0 if method in ("decomfl", "hiso", "fedkseed") else 70  # clients that hold the whole network have none
    assert final["theta"].shape == ((390 if cls == "Own" else 0) + head,) and final["theta_s"].shape == (95,)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        ("Lacking", "must have client, auxiliary and server: 'Lacking' object has no attribute 'auxi"),
        ("Function", "the server part is a function; it must be a torch module"),
        ("Lazy", "the auxiliary part has lazy modules: give each its sizes"),
        ("Nothing", "has no attribute 'Nothing'; it must be MODULE:CLASS"),
    ],
)
def test_an_own_split_that_does_not_do_is_told_in_a_sentence(own: str, capsys: Capsys, cls: str, words: str) -> None:
    assert words in refused(capsys, FAMILY, *TINY, "--problem", f"{own}:{cls}")


def test_features_that_are_no_images_are_taken_and_not_cropped(own: str, capsys: Capsys) -> None:
    data = ["--data", "synthetic", "--synthetic-features", 50, "--synthetic-samples", 400]
    assert here(FAMILY, *TINY, *data, "--problem", f"{own}:Flat") == 0
    assert records.load("a.h5").final["theta"].shape == (50 * 6 + 6 + 70,)
    Path("a.h5").unlink()
    told = refused(capsys, FAMILY, *TINY, *data, "--problem", f"{own}:Flat", "--augment", "crop-flip")
    assert "--augment crop-flip: inputs of shape (50,) are no images" in told
