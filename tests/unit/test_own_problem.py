"""A problem or a torch module of a user's own, --problem module:Class: run with its flags, or refused in a sentence."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import launch
from tests.conftest import Capsys, Patch
from tests.threads import run_module
from tests.unit.made import complaint
from zofl_mpi import zo_hfl
from zofl_mpi.errors import UserError
from zofl_mpi.problems.terms import ProximalTerms
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.run.command.plan import parse_plan, problem_of

HEAD = '''
"""Least squares on one-hot labels."""

from dataclasses import dataclass

import numpy as np

from zofl_mpi import Problem
from zofl_mpi.data import Federation


@dataclass(frozen=True)
class Squares(Problem):
    """Linear regression of the classes.

    Attributes:
        federation: who holds which samples.
        ridge: weight of |x|^2 / 2.
        steepness: what the local steps are multiplied by.
    """

    federation: Federation
    ridge: float = 0.25
    steepness: tuple[float, ...] = (1.0,)

    @property
    def n(self):
        return self.federation.server.classes * self.federation.server.features

    def errors(self, x, data, batch):
        inputs, labels = data.take(np.arange(len(data)) if batch is None else batch, x.dtype)
        outputs = inputs @ x.reshape(self.federation.server.classes, -1).T
        outputs[np.arange(len(labels)), labels] -= 1
        return inputs, outputs

    def value(self, x, data):
        return float((self.errors(x, data, None)[1] ** 2).sum(axis=1).mean() / 2 + self.ridge * (x @ x) / 2)

    def slope(self, x, data, batch=None):
        inputs, outputs = self.errors(x, data, batch)
        return (outputs.T @ inputs / len(inputs)).ravel() + x.dtype.type(self.ridge) * x

    def score(self, x, data, mix=None):
        return {"loss": self.value(x, data)}

    def kernel_name(self, batch_size):
        return "mine"

    def flops(self, batch_size):
        return 4.0 * batch_size * self.n
'''
SMOOTH = """
    def initial(self, generator):
        return np.full(self.n, 0.5)

    def loss(self, x, data):
        return self.value(x, data)

    def gradient(self, x, data, batch=None):
        return self.slope(x, data, batch)

    def descend(self, data, y, batches, stepsizes, *, mu=0.0, shift=None):
        x = y
        for batch, gamma in zip(batches, stepsizes):
            g = self.slope(y, data, batch) + mu * (y - x) + (0 if shift is None else shift)
            y = (y - gamma * self.steepness[0] * g).astype(y.dtype)
        return y
"""
HIERARCHICAL = """
    def f1(self, x, data):
        return self.value(x, data)

    def gradient_f1(self, x, data, batch):
        return self.slope(x, data, batch)

    def f2(self, i, x, y):
        return float(np.sum((x.astype(float) - y) ** 2) / 2)

    def solve_client(self, i, data, x, y, batches, stepsizes):
        for batch, gamma in zip(batches, stepsizes):
            g = np.stack([self.slope(row, data, batch) for row in y]) + y - x
            y = (y - gamma * self.steepness[0] * g).astype(y.dtype)
        return y

    def project(self, i, x, y):
        return y

    def solution(self, i, data, x):
        return None
"""
PARTS = (HEAD + SMOOTH).replace(
    "    federation: Federation\n", "    features: int = injected()\n    classes: int = injected()\n"
)
"""Asks the run for no more than it needs."""
PARTS = PARTS.replace("self.federation.server.", "self.").replace("import Federation", "import Dataset")
PARTS = PARTS.replace("import numpy as np\n", "import numpy as np\n\nfrom zofl_mpi import injected\n", 1)
KINDS = {"smooth": HEAD + SMOOTH, "hierarchical": HEAD + HIERARCHICAL, "both": HEAD + SMOOTH + HIERARCHICAL}
TINY = ["--data", "synthetic", "--synthetic-samples", "200", "--synthetic-features", "6", "--synthetic-classes", "3"]
TINY += ["--m", "3"]
RUN = [*TINY, "--rounds", "3", "--tau", "2", "--gamma", "0.1", "--quiet"]
Written = Callable[..., str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    return tmp_path


FAMILY = "zofl_mpi.zo_hfl"
done_here = functools.partial(launch.here, FAMILY)


def refused(capsys: Capsys, *arguments: object) -> str:
    """The one sentence that a run ends in."""
    return launch.refused(capsys, FAMILY, *RUN, *arguments)


@pytest.mark.parametrize(("kind", "method"), [("smooth", "fedavg"), ("both", "scaffold"), ("hierarchical", "zo_hfl")])
def test_a_users_problem_runs_with_its_own_flags(here: Path, written: Written, kind: str, method: str) -> None:
    """On any number of ranks. Mutations: flags of the class not passed on; only what it needs is looked for; the folder
    is not searched."""
    problem = f"{written(KINDS[kind])}:Squares"
    own = ["--problem", problem, "--method", method, "--ridge", "0.5", "--steepness", "0.75"]
    assert run_module(3, "zofl_mpi.zo_hfl", *RUN, *own, "--out", "a.h5") == 0
    found = records.load(here / "a.h5")
    config = json.loads(found.attrs["config"]) if isinstance(found.attrs["config"], str) else found.attrs["config"]
    assert (config["problem"], config["ridge"], config["steepness"]) == (problem, 0.5, [0.75])
    assert (config["m"], config["data"], "lam" in config) == (3, "synthetic", False)
    assert found.attrs["kernel"] == "mine" and found.length == 3
    assert np.isfinite(found.rounds["objective"][[0, 2]]).all()
    assert found.rounds["test_loss"][2] < found.rounds["test_loss"][0]
    assert np.isnan(found.rounds["test_accuracy"]).all()
    assert done_here(*RUN, *own, "--out", "b.h5") == 0
    assert differences(here / "a.h5", here / "b.h5") == []
    assert done_here(*RUN, *own[:-4], "--out", "c.h5") == 0
    assert "final/x" in differences(here / "a.h5", here / "c.h5")


def test_a_problem_may_be_given_parts_of_its_data(here: Path, written: Written) -> None:
    """The same numbers as with the whole federation. Mutations: the features for the classes; a flag for a part."""
    for name, source in (("whole.h5", KINDS["smooth"]), ("parts.h5", PARTS)):
        own = ["--method", "fedavg", "--problem", f"{written(source)}:Squares", "--out", name]
        assert done_here(*RUN, *own) == 0
    assert differences("whole.h5", "parts.h5") == []


def test_a_loss_with_terms_has_their_flags_where_they_serve(written: Written) -> None:
    """Mutations: the flags for every method; none of them."""
    terms = "    terms: ProximalTerms = injected(ProximalTerms())\n"
    head = KINDS["both"].replace("    federation: Federation\n", "    federation: Federation\n" + terms)
    imports = "from zofl_mpi import injected\nfrom zofl_mpi.problems.terms import ProximalTerms\n"
    name = f"{written(head.replace('from dataclasses', imports + 'from dataclasses'))}:Squares"
    assert problem_of(zo_hfl, name).roles == {"Hierarchical": {"hierarchy": ProximalTerms}, "Smooth": {}}
    for kind, roles in (("smooth", ["Smooth"]), ("hierarchical", ["Hierarchical"])):
        choice = problem_of(zo_hfl, f"{written(KINDS[kind])}:Squares")
        assert [*choice.roles] == roles and not choice.gpu and not any(choice.roles.values())
    device = '    device: str = __import__("zofl_mpi").injected("cpu")\n'
    source = KINDS["smooth"].replace("    federation: Federation\n", "    federation: Federation\n" + device)
    assert problem_of(zo_hfl, f"{written(source)}:Squares").gpu  # may run on one
    values = parse_plan(zo_hfl, ["--problem", name, "--mu", "0.5", "2"]).values
    assert (values["lam"], values["mu"]) == (1.0, (0.5, 2.0))
    with pytest.raises(UserError, match="--lam is no flag of this method"):
        parse_plan(zo_hfl, ["--problem", name, "--method", "fedavg", "--lam", "0.5"])


@pytest.mark.parametrize(("kind", "method"), [("smooth", "fedavg"), ("hierarchical", "zo_hfl")])
def test_a_problem_of_one_kind_starts_at_random(here: Path, written: Written, kind: str, method: str) -> None:
    """Not every role has `initial`."""
    own = ["--method", method, "--problem", f"{written(KINDS[kind])}:Squares", "--out", "a.h5"]
    own += ["--x0", "random", "--gamma-local", "0"]
    assert done_here(*RUN[:-1], *own, "--quiet", "--gamma", "0") == 0
    x = records.load(here / "a.h5").final["x"]
    assert np.isfinite(x).all() and np.abs(x).max() > 0.001
    if kind == "smooth":
        assert (x == 0.5).all()


def test_a_run_on_a_users_problem_goes_on(here: Path, written: Written, capsys: Capsys) -> None:
    """--resume takes the module that is named again, and refuses another value of its flags."""
    problem = ["--problem", f"{written(KINDS['smooth'])}:Squares"]
    own = ["--method", "scaffold", *problem, "--ridge", "0.5"]
    assert done_here(*RUN, *own, "--eval-every", 3, "--out", "part.h5") == 0
    assert done_here(*RUN, *own, "--eval-every", 3, "--rounds", 6, "--out", "whole.h5") == 0
    capsys.readouterr()
    assert done_here("--resume", "part.h5", *problem, "--ridge", "0.1", "--rounds", 6, "--quiet") == 2
    assert "--ridge" in capsys.readouterr().err
    assert done_here("--resume", "part.h5", *problem, "--rounds", 6, "--quiet") == 0
    assert differences("whole.h5", "part.h5") == []


def test_its_flags_are_in_the_help_and_the_plan(written: Written, capsys: Capsys) -> None:
    own = ["--method", "fedavg", "--problem", f"{written(KINDS['both'])}:Squares"]
    assert done_here(*own, "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--ridge" in told and "weight of |x|^2 / 2" in told and "--federation" not in told
    assert done_here(*TINY, *own, "--ridge", "0.125", "--dry-run") == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert lines["ridge"] == ["0.125"] and lines["steepness"] == ["1.0"] and lines["kernel"] == ["mine"]


def without(kind: str, *functions: str) -> str:
    source = KINDS[kind]
    for function in functions:
        source = source.replace(f"def {function}(", f"def _{function}(")
    return source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (KINDS["both"].replace("@dataclass(frozen=True)\n", ""), "a dataclass with a field named federation"),
        (KINDS["both"] + "\n\ndef squares(): ...\n\n\nSquares = squares\n", "is a function; it must be a class"),
        (
            KINDS["both"].replace("ridge: float = 0.25", "ridge: float = __import__('zofl_mpi').injected()"),
            "the run cannot give Squares the field ridge; it gives federation, features, classes",
        ),
        (KINDS["both"].replace("class Squares", "class Square"), "has no attribute 'Squares'"),
        (KINDS["both"].replace("(Problem)", ""), "lacks the base class, as in class Squares(zofl_mpi.Problem)"),
        ("import nowhere_at_all\n" + KINDS["both"], "No module named 'nowhere_at_all'"),
    ],
)
def test_what_is_no_problem_is_refused_by_name(written: Written, capsys: Capsys, source: str, words: str) -> None:
    name = f"{written(source)}:Squares"
    sentence = refused(capsys, "--problem", name)
    assert sentence.startswith(f"--problem {name}: ") and words in sentence


@pytest.mark.parametrize("flag", ["--problem", "--method"])
@pytest.mark.parametrize("name", ["nowhere.at.all:Squares", ":Squares", "math:", "math:pi", "softmx"])
def test_a_name_of_no_class_is_refused(flag: str, name: str) -> None:
    sentence = complaint(parse_plan, zo_hfl, [flag, name])
    known = ", ".join(zo_hfl.METHODS if flag == "--method" else zo_hfl.PROBLEMS)
    words = f"must be one of {known}, or module:Class" if name == "softmx" else "must be"
    assert sentence.startswith(f"{flag} {name}: ") and words in sentence


SILENT = '''
"""A method that does not say what it needs."""

from dataclasses import dataclass

from zofl_mpi import Method


@dataclass(frozen=True)
class Silent(Method):
    """Nothing."""

    setting: object

    def start(self): ...

    def round(self, state, r, clients): ...

    def evaluate(self, state, r, clients): ...
'''
UPPER = "f1, gradient_f1, f2, solve_client, project, solution"
OFFERS = " and offers Smooth; --method fedavg takes it"


@pytest.mark.parametrize(
    ("kind", "function", "lacks"),
    [
        ("smooth", "", UPPER + OFFERS),
        ("smooth", "gradient", UPPER),
        ("hierarchical", "f2", "f2"),
        ("both", "f2", "f2" + OFFERS),
        ("both", "score", "score"),
    ],
)
def test_a_problem_that_lacks_a_member_hears_what_its_method_needs(
    written: Written, capsys: Capsys, kind: str, function: str, lacks: str
) -> None:
    """Mutations: what every protocol lacks; a method that does not take it, either; nothing where none fits."""
    name = f"--problem {written(without(kind, function))}:Squares"
    flags = name.split()
    told = f"--method zo_hfl needs a Hierarchical problem; {name} lacks {lacks}"
    assert refused(capsys, *flags, "--method", "zo_hfl") == told
    if function == "gradient":
        told = f"--method fedavg needs a Smooth problem; {name} lacks gradient"
        assert refused(capsys, *flags, "--method", "fedavg") == told
        told = f"{name}: to be a Smooth problem, the nearest, it lacks gradient"
        assert refused(capsys, *flags, "--method", f"{written(SILENT)}:Silent") == told


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold"])
def test_local_steps_follow_from_the_gradient(here: Path, written: Written, method: str) -> None:
    """Mutations: a problem without `descend` is refused; no shift, no mu; float64 on the way."""
    for name, source in (("own.h5", KINDS["smooth"]), ("left.h5", without("smooth", "descend"))):
        own = ["--method", method, "--problem", f"{written(source)}:Squares", "--gamma-local", "0.05", "--out", name]
        assert done_here(*RUN, *own) == 0
    own, left = (records.load(name).final["x"] for name in ("own.h5", "left.h5"))
    assert left.dtype == own.dtype == np.float32
    np.testing.assert_allclose(left, own, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("field", "method"), [("mu", "fedprox"), ("m", "fedavg"), ("seed", "fedavg")])
def test_a_flag_that_exists_already_is_refused(written: Written, capsys: Capsys, field: str, method: str) -> None:
    name = written(KINDS["both"].replace("ridge", field))
    sentence = refused(capsys, "--method", method, "--problem", f"{name}:Squares")
    assert f"--{field} is a flag of " in sentence and "Squares (problem)" in sentence
    assert "give the field of your own class another name" in sentence


NET = """
import math

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), 8)
        self.head = nn.Linear(8, classes)
        FURTHER

    def forward(self, inputs):
        return self.head(torch.tanh(self.layer(inputs.flatten(1))))
"""
ONE = ["--m", 3, "--tau", 1, "--rounds", 1, "--out", "a.h5"]


@pytest.mark.parametrize("method", ["fedavg", "zo_hfl"])
def test_a_module_starts_where_it_was_initialised(written: Written, method: str) -> None:
    """By the seed; parametrised modules, too. Mutation: `initial` draws the layers' parameters anew, and trained
    weights are lost."""
    further = "nn.init.zeros_(self.head.weight); nn.init.constant_(self.layer.weight, 0.25)"
    still = [*ONE, "--gamma-local", 0, "--gamma", 0, "--quiet", "--force", "--method", method]
    assert launch.here(FAMILY, *still, "--problem", f"{written(NET.replace('FURTHER', further))}:Net") == 0
    x = records.load("a.h5").final["x"]
    assert np.all(x[: 8 * 64] == 0.25) and np.all(x[8 * 64 + 8 : 8 * 64 + 8 + 80] == 0)
    assert len(set(x[-10:])) == 10  # what torch draws for the bias of the head
    further, drawn = "nn.utils.parametrizations.weight_norm(self.layer)", []
    name = written(NET.replace("FURTHER", further))
    for seed in (1, 1, 2):
        assert launch.here(FAMILY, *still, "--problem", f"{name}:Net", "--seed", seed) == 0
        drawn.append(records.load("a.h5").final["x"])
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


@pytest.mark.parametrize("later", ["self.layer.bias = None", "self.tail = nn.ReLU()"])
def test_a_continuation_with_another_network_is_refused(
    here: Path, written: Written, capsys: Capsys, later: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second text of one second and length would not be read
    name = written(NET.replace("FURTHER", ""))
    own = ["--method", "fedavg", "--problem", f"{name}:Net"]
    assert launch.here(FAMILY, *ONE, *own, "--quiet") == 0
    (here / f"{name}.py").write_text(NET.replace("FURTHER", later))
    del sys.modules[name]
    sentence = launch.refused(capsys, FAMILY, "--resume", "a.h5", *own, "--rounds", 3)
    assert "data or network are not those that the run began with" in sentence
    assert "another version of zofl_mpi or torch initialised it" in sentence


def test_constants_that_differ_between_ranks_are_refused(written: Written, capsys: Capsys) -> None:
    name = written(NET.replace("FURTHER", 'self.register_buffer("mix", torch.from_numpy(np.random.rand(3)))'))
    assert run_module(3, FAMILY, *ONE, "--method", "fedavg", "--problem", f"{name}:Net") == 2
    told = capsys.readouterr().err
    assert "the ranks hold different data or networks" in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ("raise KeyError('width')", "failed: KeyError: 'width'"),
        ("self.head = nn.LazyLinear(classes)", "lazy"),
        ("self.forward = lambda inputs: (inputs, 1)", "it returns a tuple, not one tensor"),
        ("self.forward = lambda inputs: inputs.nothing", "does not take inputs of shape (1, 8, 8)"),
        ("self.head = nn.Linear(8, 3)", "to an output of shape (3,), not to 10 logits"),
    ],
)
def test_a_module_that_does_not_do_is_told_in_a_sentence(
    written: Written, capsys: Capsys, further: str, words: str
) -> None:
    name = written(NET.replace("FURTHER", further))
    assert words in launch.refused(capsys, FAMILY, *ONE, "--method", "fedavg", "--problem", f"{name}:Net")


WORDS = """
from torch import nn


class Words(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embedding = nn.Embedding(90, 4)
        self.head = nn.Linear(4, classes)

    def forward(self, inputs):
        return self.head(self.embedding(CALL).mean(dim=1))
"""


@pytest.mark.parametrize("call", ["inputs", "inputs.long()"])
@pytest.mark.parametrize(("kernel", "dtype"), [("serial", np.uint8), ("torch", np.float32)])
def test_a_module_may_take_whole_numbers(here: Path, written: Written, call: str, kernel: str, dtype: type) -> None:
    """Token numbers of a table, which a trial with numbers from -1 to 1 would refuse. Mutations: bytes that are divided
    by 255; a trial of an embedding with floats alone; integers that reach the trial and no step."""
    y = np.arange(60) % 3
    np.savez("words.npz", x=(30 * y[:, None] + np.arange(5)).astype(dtype), y=y)
    own = ["--problem", f"{written(WORDS.replace('CALL', call))}:Words", "--data", "words.npz", "--kernel", kernel]
    learn = ["--m", 2, "--tau", 20, "--rounds", 3, "--gamma-local", 0.5, "--min-samples", 2, "--out", "a.h5", "--quiet"]
    assert launch.here(FAMILY, *own, *learn, "--method", "fedavg", "--force") == 0
    assert records.load("a.h5").rounds["test_accuracy"][-1] == 1.0


def test_a_module_that_takes_no_such_numbers_is_refused(here: Path, written: Written, capsys: Capsys) -> None:
    """Mutation: integers for a module that refuses them, too, and its sentence about those."""
    np.savez("words.npz", x=np.full((60, 5), 91, np.uint8), y=np.arange(60) % 3)
    own = ["--problem", f"{written(WORDS.replace('CALL', 'inputs.long()'))}:Words", "--data", "words.npz"]
    told = launch.refused(capsys, FAMILY, *ONE, *own, "--method", "fedavg", "--min-samples", 2)
    assert "does not take inputs of shape (5,): index out of range" in told
