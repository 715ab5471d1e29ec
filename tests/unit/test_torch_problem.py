"""`TorchProblem`: any torch loss, metrics, weights, augmentation, arguments, from the command line to columns."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zofl_mpi
from tests import launch
from tests.conftest import Capsys, Patch
from tests.threads import run_module
from zofl_mpi.data import Federation
from zofl_mpi.errors import UserError
from zofl_mpi.report.same import differences
from zofl_mpi.run import records
from zofl_mpi.settings.calls import Constructor, flag_group
from zofl_mpi.settings.networks import _names, shape_of

Written = Callable[..., str]
FAMILIES = {"fedavg": "zofl_mpi.zo_hfl", "zo_hfl": "zofl_mpi.zo_hfl", "fedrzo_nn": "zofl_mpi.fedrzo"}
NETS = '''
"""Networks with losses of their own."""

import torch
from torch import nn
from zofl_mpi import SplitProblem, TorchProblem


class Net(nn.Module):
    """Two layers.

    Args:
        width: of the hidden layer.
    """

    def __init__(self, shape, outputs: int = 1, width: int = 6):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))

    def forward(self, inputs):
        return self.layers(inputs).squeeze(1)


class Words(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 4), nn.Linear(4, classes)

    def forward(self, inputs):
        return self.head(self.embedding(inputs).mean(dim=1))


def macro_f1(outputs, targets):
    """Mean over labels of 2 TP / (2 TP + FP + FN)."""
    found, wanted = outputs > 0, targets > 0.5
    right = (found & wanted).sum(0)
    return (2 * right / (found.sum(0) + wanted.sum(0)).clamp(min=1)).mean()


def largest_error(outputs, targets):
    return (outputs - targets).abs().max()


def huber(outputs, targets):
    return nn.functional.huber_loss(outputs, targets, delta=0.5)


def heavy(inputs, targets):
    return 1 + (targets > 0).to(inputs.dtype)


def noisy(inputs, generator):
    return inputs + 0.01 * torch.from_numpy(generator.standard_normal(inputs.shape)).to(inputs)


regression = TorchProblem(Net, nn.MSELoss(), metrics={"largest_error": largest_error})
labels = TorchProblem(
    lambda shape, width=5: Net(shape, 3, width), nn.BCEWithLogitsLoss(), metrics={"macro_f1": macro_f1}
)
words = TorchProblem(Words, nn.CrossEntropyLoss(), metrics={"top": lambda o, t: float(o.max())})
weighted = TorchProblem(Net, huber, weight=heavy)
augmented = TorchProblem(Net, huber, augment=noisy)


class Parts:
    def __init__(self, shape, classes, width: int = 4):
        self.client = nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())
        self.auxiliary, self.server = Last(nn.Linear(width, 1)), Last(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))


class Last(nn.Sequential):
    def forward(self, x):
        return super().forward(x)[:, 0]


split = SplitProblem(Parts, loss=nn.MSELoss())


def three(shape, width: int = 3):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())


split_labels = SplitProblem(
    three,
    lambda width=3: nn.Linear(width, 3),
    lambda width=3: nn.Linear(width, 3),
    nn.BCEWithLogitsLoss(),
    metrics={"macro_f1": macro_f1},
)
split_words = SplitProblem(
    lambda shape: nn.Sequential(nn.Embedding(30, 4), nn.Flatten()),
    lambda shape, classes: nn.Linear(4 * shape[0], classes),
    lambda shape, classes: nn.Linear(4 * shape[0], classes),
)
'''
N = 120
GENERATOR = np.random.Generator(np.random.Philox(7))
X = GENERATOR.standard_normal((N, 5)).astype(np.float32)
TOKENS = GENERATOR.integers(0, 30, (N, 6)).astype(np.uint8)
TARGETS: dict[str, tuple[Any, Any]] = {
    "regression": (X, (X[:, 0] - X[:, 1]).astype(np.float64)),
    "labels": (X, (X[:, :3] > 0).astype(np.float64)),
    "words": (TOKENS, np.arange(N) % 3),
}
DATA = {**{name: name for name in TARGETS}, "weighted": "regression", "augmented": "regression"}
DATA |= {"split": "regression", "split_labels": "labels", "split_words": "words"}
FEW = ["--m", "3", "--min-samples", "2", "--quiet"]
STEPS = {
    "fedavg": ["--tau", "3", "--batch", "8", "--gamma-local", "0.2"],
    "zo_hfl": ["--tau", "3", "--batch", "8", "--gamma-local", "0.2", "--gamma", "0.1"],
    "fedrzo_nn": ["--H", "4", "--batch", "8", "--gamma", "0.01", "--server-fraction", "0"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Each test runs in a folder of its own, with the data sets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    for name, (x, y) in TARGETS.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return tmp_path


def arguments(module: str, name: str, method: str) -> list[str]:
    own = ["--method", method, "--problem", f"{module}:{name}", "--data", f"{DATA[name]}.npz"]
    return [*own, *FEW, *STEPS[method], "--validation", "0.1"]


@pytest.mark.parametrize("method", FAMILIES)
@pytest.mark.parametrize("name", ["regression", "labels", "words", "weighted", "augmented"])
def test_a_loss_of_ones_own_runs_and_has_its_bits_on_ranks_and_on_resume(
    written: Written, name: str, method: str
) -> None:
    """Each loss goes on with one of the methods. Mutations: a metric that is no column; random numbers of an
    augmentation by the order of calls, or by the rank; targets of other samples; a loss of floats for labels."""
    own = arguments(written(NETS), name, method)
    if method == "fedrzo_nn" and "--validation" in own:
        own = own[: own.index("--validation")]
    run = functools.partial(launch.here, FAMILIES[method], *own)
    assert run("--rounds", "4", "--out", "a.h5") == 0
    assert run_module(3, FAMILIES[method], *own, "--rounds", "4", "--out", "b.h5") == 0
    assert differences("a.h5", "b.h5") == []
    if [*FAMILIES].index(method) == [*DATA].index(name) % len(FAMILIES):
        assert run("--rounds", "2", "--out", "c.h5") == 0
        again = own[own.index("--problem") : own.index("--problem") + 2]
        data = own[own.index("--data") : own.index("--data") + 2]
        words = ["--resume", "c.h5", *again, *data, "--method", method, "--rounds", "4"]
        assert launch.here(FAMILIES[method], *words) == 0
        assert [name for name in differences("a.h5", "c.h5") if "other rounds" not in name] == []
    rounds = records.load("a.h5").rounds
    assert rounds["test_loss"][-1] < rounds["test_loss"][0] or method != "fedavg"
    for metric in {"regression": ["largest_error"], "labels": ["macro_f1"], "words": ["top", "accuracy"]}.get(name, []):
        assert np.isfinite(rounds[f"test_{metric}"][-1])
        if method != "fedrzo_nn":
            assert np.isfinite(rounds[f"validation_{metric}"][-1])
        if method == "zo_hfl":
            assert np.isfinite(rounds[f"personal_{metric}"][-1])
    assert name == "words" or np.isnan(rounds["test_accuracy"][-1])


@pytest.mark.parametrize("name", ["split", "split_labels", "split_words"])
@pytest.mark.parametrize("method", ["heron", "sflv1", "decomfl", "cse_fsl"])
def test_a_network_cut_in_two_has_any_loss(written: Written, name: str, method: str) -> None:
    """Mutations: labels of one number a sample; a cross-entropy at the head; inputs as floats for an embedding."""
    own = ["--method", method, "--problem", f"{written(NETS)}:{name}", "--data", f"{DATA[name]}.npz", *FEW]
    own += ["--batch", "8", "--h", "4", "--rounds", "6", "--lr-client", "0.01"]
    assert launch.here("zofl_mpi.heron_sfl", *own, "--out", "a.h5") == 0
    assert run_module(3, "zofl_mpi.heron_sfl", *own, "--out", "b.h5") == 0
    assert differences("a.h5", "b.h5") == []
    rounds = records.load("a.h5").rounds
    assert np.isfinite(rounds["test_loss"][-1])
    assert ("test_accuracy" in rounds) == (name == "split_words")
    assert ("test_macro_f1" in rounds) == (name == "split_labels")
    sent = {"split": 4, "split_labels": 12, "split_words": 8}[name]
    if method in ("sflv1", "cse_fsl"):
        assert rounds["label_bytes"][-1] % (8 * sent) == 0 and rounds["label_bytes"][-1] > 0


def test_arguments_of_a_constructor_are_flags_and_can_be_bound(written: Written) -> None:
    """Mutations: flags of what the data give; defaults of the class in place of what was bound."""
    name = written(NETS)
    own = ["--problem", f"{name}:Net", "--method", "fedavg", "--data", "words.npz", *FEW, "--rounds", "1", "--tau", "1"]
    assert launch.here("zofl_mpi.zo_hfl", *own, "--outputs", "3", "--width", "7", "--out", "a.h5") == 0
    config = json.loads(records.load("a.h5").attrs["config"])
    assert (config["width"], config["outputs"]) == (7, 3)
    assert len(records.load("a.h5").final["x"]) == 7 * 7 + 3 * 8

    def make(
        shape: Any, width: int = 4, name: str = "", share: float = 1, deep: tuple[int, ...] = (), other: Any = None
    ) -> Any:
        return shape, width, other

    call = Constructor(make)
    assert call.flags() == {
        "width": (int, 4), "name": (str, ""), "share": (float, 1), "deep": (tuple[int, ...], ())
    }  # fmt: skip
    bound = zofl_mpi.TorchProblem(make)(width=9, other=[1])
    assert flag_group([bound._constructor]) is not None
    assert bound._constructor({"width": 9, "name": "", "share": 1, "deep": ()}, (3,), 2) == ((3,), 9, [1])
    for wrong in ("depth", "shape"):
        with pytest.raises(
            UserError, match=f"make has no argument {wrong} to bind; it has width, name, share, deep, other"
        ):
            bound(**{wrong: 1})
    assert Constructor(lambda a, b, c=1: (a, b, c))({"c": 2}, (3,), 5) == ((3,), 5, 2)
    partial = functools.partial(make, deep=(1,))  # inspect.isroutine says yes to it since Python 3.14
    assert [Constructor(each).name for each in (make, nn.Linear, nn.Linear(1, 1), partial)] == [
        "make", "Linear", "Linear", "partial"
    ]  # fmt: skip
    with pytest.raises(UserError, match="needs c: give each a default, or bind it"):
        Constructor(lambda a, b, c: 0)({}, (3,), 5)


CASES = {
    "loss=nn.MSELoss": "MSELoss, a class: give an instance",
    "loss=3": "must be a torch loss or a function",
    "loss=nn.MSELoss(reduction='none')": "gives a tensor ",
    "loss=nn.MSELoss(reduction='sum')": "is a sum over samples; it must be their mean",
    "loss=lambda o, t: ((o - t) ** 2).mean().item()": "gives float for outputs",
    "loss=lambda o, t: ((o - t) ** 2).mean() * float('nan')": "is nan at the first model",
    "loss=lambda o, t: o @ t[:3]": "does not take outputs of shape (8,)",
    "loss=nn.CrossEntropyLoss()": "needs outputs of shape (B, C), one a class",
    "loss=None": "has targets, not classes; this problem classifies",
    "loss=nn.PReLU()": "has parameters of its own to train",
    "module=lambda: None": "the network is a NoneType; it must be a torch module, or a class or function that gives",
    "metrics=[max]": "metrics is a list; it must be {name: function",
    "metrics={'a b': max}": "'a b': <built-in function max> must be {name: function",
    "metrics={'loss': max}": "not loss",
    "metrics={'f1': 3}": "must be {name: function",
    "metrics={'f1': lambda o, t: o}": "metric f1 gives an array of shape (12,)",
    "metrics={'f1': lambda o, t: float('nan')}": "metric f1 of the first model is nan on 12 held-out samples",
    "metrics={'f1': lambda o, t: {}['x']}": "metric f1 must be a function",
    "metrics={'f1': lambda o: 1.0}": "metric f1 must be a function",
    "weight=lambda x, t: t[:, None]": "weight gives the shape (8, 1) for 8 samples",
    "weight=lambda x, t: -t.abs()": "weight gives a number that is negative",
    "weight=lambda x: 1": "weight must be a function",
    "augment=lambda x, g: x[:, :2]": "augment gives torch.float32 of shape (2, 2)",
    "augment=lambda x, g: x.add_(1)": "augment changes its inputs in place",
    "augment=lambda x, g: x + torch.randn(x.shape)": "augment draws torch's own random numbers",
    "augment=lambda x: x": "augment must be a function",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[:50])
def test_what_is_no_loss_or_metric_is_refused_in_a_sentence_before_round_1(
    written: Written, capsys: Capsys, case: str
) -> None:
    """Mutations: a traceback; a broadcast of (B, 1) against (B,) that trains; a result that is begun."""
    given = case if case.startswith("loss") else f"loss=nn.MSELoss(), {case}"
    module = "" if case.startswith("module") else "Net, "
    name = written(f"{NETS}\nwrong = TorchProblem({module}{given})\n")
    own = ["--problem", f"{name}:wrong", "--method", "fedavg", "--data", "regression.npz", *FEW, "--out", "a.h5"]
    assert CASES[case] in launch.refused(capsys, "zofl_mpi.zo_hfl", *own)
    assert not Path("a.h5").exists()


@pytest.mark.parametrize("loss", ["nn.MSELoss()", "lambda o, t: ((o - t) ** 2).mean()"])
def test_a_column_of_outputs_is_not_spread_against_targets(written: Written, capsys: Capsys, loss: str) -> None:
    """(B, 1) - (B,) is (B, B), of which torch takes the mean. Mutations: a warning; a run that trains on it."""
    name = written(f"{NETS}\nwrong = TorchProblem(lambda shape: nn.Linear(shape[0], 1), {loss})\n")
    own = ["--problem", f"{name}:wrong", "--method", "fedavg", "--data", "regression.npz", *FEW, "--out", "a.h5"]
    told = launch.refused(capsys, "zofl_mpi.zo_hfl", *own)
    assert "broadcasts outputs of shape" in told or "Using a target size" in told


def test_a_loss_without_a_gradient_serves_methods_that_need_values_alone(written: Written, capsys: Capsys) -> None:
    """Mutation: a gradient asked for in the trial."""
    name = written(f"{NETS}\nblack = TorchProblem(Net, lambda o, t: (o.detach() - t).abs().mean())\n")
    own = ["--problem", f"{name}:black", "--data", "regression.npz", *FEW, "--rounds", "2"]
    assert launch.here("zofl_mpi.fedrzo", *own, "--out", "a.h5", "--H", "2") == 0
    capsys.readouterr()
    assert launch.here("zofl_mpi.zo_hfl", *own, "--method", "fedavg", "--tau", "1", "--out", "b.h5") != 0
    told = capsys.readouterr().err
    assert "has no gradient: it leaves torch's operations; use a method that needs only values" in told


def noisy(inputs: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return inputs + torch.from_numpy(generator.standard_normal(inputs.shape)).to(inputs)


def test_another_loss_is_another_fingerprint() -> None:
    """By which a continuation is refused. Mutations: a fingerprint of the module alone; without augment or weight."""
    own = {"loss": nn.MSELoss()}, {"loss": nn.L1Loss()}, {"loss": nn.MSELoss(), "augment": noisy}
    others = [_names(zofl_mpi.TorchProblem(layers, **each)) for each in (*own, {**own[0], "weight": max}, {})]
    assert len(set(map(tuple, others))) == 5 and others[-1] == []
    assert others[2] == ["loss MSELoss", "augment noisy"]


def test_problems_in_memory_make_their_setting() -> None:
    """With a federation of arrays; the module comes back with the model in it. Mutations: flags of a data set that is
    not there; a module that the problem goes on computing with."""
    from zofl_mpi.data import Dataset
    from zofl_mpi.engine.streams import Streams
    from zofl_mpi.engine.world import SingleProcess
    from zofl_mpi.run.command.family import Site
    from zofl_mpi.run.command.flags import flags_of

    y = np.stack([X[:, 0] > 0, X[:, 1] > 0], axis=1).astype(np.float32)
    whole = Dataset(X, np.zeros(N, np.int64), 1, targets=y)
    parts = [whole.subset(np.arange(k, N, 4)) for k in range(4)]
    data = Federation(parts[0], (parts[1], parts[2]), parts[3], shape=(5,))
    assert shape_of(replace(data, shape=(1, 5, 1, 1))) == (1, 5, 1, 1) and shape_of(replace(data, shape=())) == (5,)
    net = zofl_mpi.TorchProblem(lambda shape, width=3: nn.Sequential(nn.Linear(5, width), nn.Linear(width, 2)))
    choice = zofl_mpi.TorchProblem(net.module, nn.BCEWithLogitsLoss())(width=4).choice()
    groups = {title: cls for title, cls in choice.groups.items() if title != "data"}
    values = {name: leaf.default for name, leaf in flags_of(groups).items()}
    site = Site(values, SingleProcess(), Streams(3), "float32", "cpu", federation=data)
    setting = choice.make(site)
    problem = setting.problem
    assert problem.n == 6 * 4 + 2 * 5 and "loss BCEWithLogitsLoss" in setting.fingerprint
    x = problem.initial(Streams(3)(0)) + 1
    copy = problem.module_of({"x": x})
    with torch.no_grad():
        loss = nn.BCEWithLogitsLoss()(copy(torch.from_numpy(X[parts[3].rows])), torch.from_numpy(y[parts[3].rows]))
    assert problem.loss(x, data.test) == pytest.approx(loss.item(), rel=1e-5)
    copy[0].weight.data.zero_()
    assert problem.loss(x, data.test) == pytest.approx(loss.item(), rel=1e-5)
    with pytest.raises(UserError, match="targets, but this problem classifies"):
        net.choice().make(site)


@pytest.mark.parametrize("method", FAMILIES)
def test_a_network_and_data_in_memory_are_a_run(method: str) -> None:
    """By `simulate`; the module has the final model. Mutations: the argument's default; a metric that is no column."""
    halves = {"A": slice(0, 50), "B": slice(50, 80)}
    parts = {name: (X[own], (X[own, :2] > 0).astype(np.float32)) for name, own in halves.items()}
    rest, held = (X[80:100], X[80:100, :2] > 0), (X[100:], X[100:, :2] > 0)
    data = Federation.of_clients(parts, server=rest, test=held, validation=held)
    metrics = {"right": lambda outputs, targets: ((outputs > 0) == (targets > 0.5)).double().mean()}
    net = zofl_mpi.TorchProblem(layers, nn.BCEWithLogitsLoss(), metrics=metrics)(width=7)
    found = zofl_mpi.simulate(method, net, data, rounds=2, out="a.h5", quiet=True)
    assert found.status == "done" and found.config["width"] == 7
    module = found.module()
    with torch.no_grad():
        outputs = module(torch.from_numpy(held[0]))
    right = ((outputs > 0).numpy() == held[1]).mean()
    assert found.row["test_right"] == found.row["validation_right"] == pytest.approx(right)
    assert len(found.final["x"]) == 7 * 6 + 2 * 8


def layers(shape: Any, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, 2))
