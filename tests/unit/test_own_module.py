"""A torch module of a user's own, --problem module:Class, and flags that a user's classes may have."""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from tests.conftest import Completed
from zofl_mpi.run import cli, records

HEAD = """
import math

import numpy as np
import torch
from torch import nn

"""
NET = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(math.prod(shape), WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        FURTHER

    def forward(self, inputs):
        return self.head(torch.tanh(self.layer(inputs.flatten(1))))
"""
)
Written = Callable[..., str]
NAMES = itertools.count()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """written(source, WIDTH=8, ...): the name of a module with that source in the current folder."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second text of one second and length would not be read
    made: list[str] = []

    def write(source: str = NET, name: str = "", WIDTH: object = 8, FURTHER: str = "") -> str:
        name = name or f"own_module_{next(NAMES)}"
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.py").write_text(source.replace("WIDTH", str(WIDTH)).replace("FURTHER", FURTHER))
        made.append(name)
        return name

    with threadpool_limits(None):
        yield write
    for name in made:
        sys.modules.pop(name, None)
    for number, handler in kept.items():
        signal.signal(number, handler)


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main("zofl_mpi.zo_hfl", [*map(str, arguments), "--quiet", "--tau", "1", "--m", "3"])
    return int(caught.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert status(*arguments) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("zofl_mpi: ") and "\n" not in told
    return told.removeprefix("zofl_mpi: ")


@pytest.mark.parametrize("method", ["fedavg", "zo_hfl"])
def test_it_starts_where_it_was_initialised(written: Written, method: str) -> None:
    """Mutation: `initial` draws the layers' parameters anew, and trained weights are lost."""
    name = written(FURTHER="nn.init.zeros_(self.head.weight); nn.init.constant_(self.layer.weight, 0.25)")
    steps = ["--gamma-local", 0, "--gamma", 0]
    assert status("--method", method, "--problem", f"{name}:Net", "--rounds", 1, "--out", "a.h5", *steps) == 0
    x = records.load("a.h5").final["x"]
    assert np.all(x[: 8 * 64] == 0.25)
    assert np.all(x[8 * 64 + 8 : 8 * 64 + 8 + 80] == 0)
    assert len(set(x[-10:])) == 10  # what torch draws for the bias of the head


def test_its_initialisation_follows_the_seed(written: Written) -> None:
    name = written()
    for seed, out in ((1, "a.h5"), (1, "b.h5"), (2, "c.h5")):
        own = ["--method", "server_sgd", "--problem", f"{name}:Net", "--seed", seed, "--gamma", 0, "--rounds", 1]
        with pytest.raises(SystemExit):
            cli.main("zofl_mpi.zo_hfl", [*map(str, own), "--out", out, "--quiet"])
    a, b, c = (records.load(out).final["x"] for out in ("a.h5", "b.h5", "c.h5"))
    assert np.array_equal(a, b)
    assert not np.any(a == c)


@pytest.mark.parametrize("later", [{"WIDTH": 9}, {"FURTHER": "self.tail = nn.ReLU()"}])
def test_a_continuation_with_another_network_is_refused(
    written: Written, capsys: pytest.CaptureFixture[str], later: dict[str, object]
) -> None:
    name = written()
    assert status("--method", "fedavg", "--problem", f"{name}:Net", "--rounds", 2, "--out", "a.h5") == 0
    written(name=name, **later)
    sentence = refused(capsys, "--resume", "a.h5", "--method", "fedavg", "--problem", f"{name}:Net", "--rounds", 3)
    assert "data or network are not those that the run began with" in sentence
    assert "another version of zofl_mpi or torch began it otherwise" in sentence


@pytest.mark.slow
def test_constants_that_differ_between_ranks_are_refused(
    written: Written, mpirun: Callable[..., Completed], tmp_path: Path
) -> None:
    name = written(FURTHER='self.register_buffer("mix", torch.from_numpy(np.random.rand(3)))')
    command = [
        "-m",
        "zofl_mpi.zo_hfl",
        "--method",
        "fedavg",
        "--problem",
        f"{name}:Net",
        "--rounds",
        1,
        "--out",
        "a.h5",
    ]
    done = mpirun(3, *command, cwd=tmp_path)
    assert done.returncode not in (0, None)
    assert "the ranks hold different data or networks" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("further", "words"),
    [
        ("raise KeyError('width')", "failed: KeyError: 'width'"),
        ("self.head = nn.LazyLinear(classes)", "lazy"),
        ("self.forward = lambda inputs: (inputs, 1)", "it returns a tuple, not logits"),
        ("self.forward = lambda inputs: inputs.nothing", "does not take inputs of shape (1, 8, 8)"),
        ("self.head = nn.Linear(8, 3)", "to an output of shape (3,), not to 10 logits"),
    ],
)
def test_a_module_that_does_not_do_is_told_in_a_sentence(
    written: Written, capsys: pytest.CaptureFixture[str], further: str, words: str
) -> None:
    assert words in refused(capsys, "--method", "fedavg", "--problem", f"{written(FURTHER=further)}:Net")


def test_a_parametrised_module_runs(written: Written) -> None:
    name = written(FURTHER="nn.utils.parametrizations.weight_norm(self.layer)")
    assert status("--method", "fedavg", "--problem", f"{name}:Net", "--rounds", 1, "--out", "a.h5") == 0


METHOD = '''
from dataclasses import dataclass, field
from typing import Any, ClassVar

from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.run.flags import built
from zofl_mpi.problems import Smooth
from zofl_mpi.engine.setting import Setting


@dataclass(frozen=True)
class Part:
    """A group.

    Attributes:
        size: one.
    """

    size: float = 1.0


@dataclass(frozen=True)
class Report:
    pass


@dataclass(frozen=True, kw_only=True)
class Own:
    """FedAvg with flags of its own.

    Attributes:
        lam: as ZO-HFL has one.
        gain: has no default.
        part: nested.
    """

    needs: ClassVar[Any] = NEEDS
    setting: Setting
    lam: float = 0.5
    gain: float
    part: Part = field(default_factory=Part)
    tau: float = 1.0
    made: Any = field(init=False, default=None)
    FURTHER

    def __post_init__(self):
        assert (self.lam, self.gain, self.part.size) == (0.5, 2.0, 3.0)
        object.__setattr__(self, "made", built(FedAvg, self.setting))

    def start(self):
        return self.made.start()

    def round(self, state, r, clients):
        return state

    def evaluate(self, state, r, clients):
        return Report()
'''


@pytest.mark.parametrize("needs", ["Smooth", '"Smooth"'])
def test_a_method_has_the_flags_that_it_declares(
    written: Written, capsys: pytest.CaptureFixture[str], needs: str
) -> None:
    """lam although Smooth problems have none, one without a default, a nested one; no field that it makes itself."""
    own = ["--method", f"{written(METHOD.replace('NEEDS', needs))}:Own"]
    assert status(*own, "--gain", 2, "--size", 3, "--rounds", 1, "--out", "a.h5") == 0
    config = records.load("a.h5").config
    assert (config["lam"], config["gain"], config["size"]) == (0.5, 2.0, 3.0)
    assert not {"made", "part", "setting", "needs"} & set(config)
    assert refused(capsys, *own, "--size", 3).startswith("--gain")


def test_a_flag_that_occurs_twice_in_a_method_is_named(written: Written, capsys: pytest.CaptureFixture[str]) -> None:
    name = written(METHOD.replace("NEEDS", "Smooth"), FURTHER="size: int = 2")
    assert "the flag --size occurs twice in Own" in refused(capsys, "--method", f"{name}:Own", "--gain", 2)
