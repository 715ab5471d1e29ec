"""Vectors that a client of the federated methods holds, by hand, against what NumPy allocates in a real step."""

import functools
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import STREAMS, clients_of, method, run
from zofl_mpi.data import Dataset
from zofl_mpi.engine import messages
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.fednest import FedNest
from zofl_mpi.methods.fedrzo_bl import FedRZOBL
from zofl_mpi.methods.fedrzo_nn import FedRZONN
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.problems.fair import Fair, FairSoftmax
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import ProximalTerms
from zofl_mpi.run.command.flags import from_flags
from zofl_mpi.run.loop.rounds import finite_round

WIDE, CLASSES = 500, 10
CASES: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "FedAvg": (FedAvg, {}, "train", 0),
    "FedAvg, compressed": (FedAvg, {"compress": "topk:0.1"}, "train", 2),  # x and e
    "SCAFFOLD, compressed": (Scaffold, {"compress": "topk:0.1"}, "train", 5),  # and e
    "pFedMe, compressed": (PFedMe, {"compress": "topk:0.1"}, "train", 4),  # and x, e
    "FedMSPP, compressed": (FedMSPP, {"compress": "topk:0.1"}, "train", 2),  # and e
    "Ditto, compressed": (Ditto, {"compress": "topk:0.1"}, "train", 4),  # and e
    "FedAvg, clipped": (FedAvg, {"clip": 1.0, "weights": "uniform"}, "train", 1),  # x
    "FedProx": (FedProx, {"mu": 0.1}, "train", 1),  # x
    "FedMSPP": (FedMSPP, {}, "train", 1),  # x
    "SCAFFOLD": (Scaffold, {}, "train", 4),  # x, c, c_i, c - c_i
    "Ditto": (Ditto, {}, "train", 3),  # x, the first v, the pull
    "pFedMe": (PFedMe, {}, "train", 2),  # w, the last y
    "Scaffnew": (Scaffnew, {}, "train", 2),  # h, h / scale
    "ZO-HFL": (ZOHFL, {}, "solve", 3),  # x + eta v, x - eta v, one of both y
    "ZO-HFL, last y": (ZOHFL, {"y0": "last"}, "solve", 4),
    "ZO-HFL, one after the other": (ZOHFL, {"samples": "separate"}, "solve", 3),
}
"""A method, its flags, a client's step, and its vectors beside the model that it moves, its gradient and the step."""


HIDDEN, BATCH = 6, 8
TWO: dict[str, tuple[Any, str, dict[str, Any], int]] = {
    "ReLU": (FedRZONN, "relu_net", {}, 4 * HIDDEN * (WIDE + 1) + BATCH * (WIDE + HIDDEN + 1)),
    "ReLU, two directions": (FedRZONN, "relu_net", {"n_p": 2}, 5 * HIDDEN * (WIDE + 1) + BATCH * (WIDE + HIDDEN + 1)),
    "ridge": (FedRZOBL, "hyperparameter", {}, 3 * 4 + 3 * WIDE + BATCH * (WIDE + 2)),
    "ridge, FedAC": (FedRZOBL, "hyperparameter", {"lower": "fedac1"}, 3 * 4 + 5 * WIDE + BATCH * (WIDE + 2)),
    "ridge, exact": (FedRZOBL, "hyperparameter", {"lower": "exact"}, 4 * 4 + 2 * WIDE + BATCH * (WIDE + 2)),
    "fair": (FedRZOBL, "fair", {}, 4 * HIDDEN * (WIDE + 1) + 2 * CLASSES + BATCH * (WIDE + HIDDEN + 1)),
    "softmax": (FedRZOBL, "fair_softmax", {}, 4 * CLASSES * WIDE + 2 * CLASSES + BATCH * (WIDE + 2 * CLASSES)),
    "FedNest": (FedNest, "hyperparameter", {}, 4 + 6 * WIDE + BATCH * (WIDE + 2)),
}
"""A method, a problem, flags, and the numbers of its largest step. x (n,), x + eta v or x_i, the estimate, v; y, its
gradient and the step; of FedNest y at the start, its gradient there and the mean one, too."""
STEPS_OF_TWO = ("step", "lower", "inner", "hypergradient", "outer", "product")


def problem_of(name: str, own: Setting) -> Any:
    return {
        "relu_net": lambda: ReLUNet(WIDE, HIDDEN, dtype=np.float64),
        "hyperparameter": lambda: Hyperparameter.of(own.data, dtype=np.float64),
        "fair": lambda: Fair(WIDE, own.counts, hidden=HIDDEN, dtype=np.float64),
        "fair_softmax": lambda: FairSoftmax(WIDE, own.counts, dtype=np.float64),
    }[name]()


def federation() -> Setting:
    pixels = STREAMS(Purpose.SYNTHETIC).integers(0, 256, (60, WIDE), dtype=np.uint8)
    data = Dataset(pixels, np.arange(60) % CLASSES, CLASSES, scale=1 / 255)
    parts = [data.subset(np.arange(10 * k, 10 * k + 10)) for k in range(6)]
    problem = Softmax(WIDE, CLASSES, "numpy", weights=np.full(4, 0.25), terms=ProximalTerms(1.0), dtype=np.float64)
    counts = np.stack([part.counts() for part in parts[:4]])
    return Setting(problem, STREAMS, tuple(parts[:4]), parts[4], parts[5], counts, np.float64)


def held_by(cls: Any, steps: Iterable[str], work: Callable[[], object]) -> float:
    """The most numbers in NumPy's memory during one of these steps, with its message and what its client keeps."""
    found = list[int]()

    def watched(call: Any) -> Any:
        @functools.wraps(call)
        def measured(self: Any, client: Any, message: Any) -> Any:
            before = sum(value.nbytes for value in client.memory.values() if isinstance(value, np.ndarray))
            tracemalloc.start()
            try:
                return call(self, client, message)
            finally:
                found.append(tracemalloc.get_traced_memory()[1] + messages.size(message) + before)
                tracemalloc.stop()

        return measured

    with pytest.MonkeyPatch.context() as patched:
        for step in steps:
            patched.setattr(cls, step, watched(getattr(cls, step)))
        work()
    return max(found) / 8


@pytest.mark.parametrize("which", CASES)
def test_vectors_are_those_that_a_step_holds(which: str) -> None:
    """No more than a real step has, its message included. NumPy's own way out of place has up to four copies more of
    each model that takes a step at once, which a device need not make: of x, y, their difference and a product.
    Mutations: no control variate; the personal model; one of both solves; the residual; the pull towards x."""
    cls, flags, step, vectors = CASES[which]
    own = federation()
    of = from_flags(cls, own, **flags) if cls is Scaffnew else method(cls, own, **flags)
    n, batch = own.problem.n, of.round_cost.batch
    (needs,) = of.device_needs()
    numbers = needs.bytes / 8
    assert numbers == (3 + vectors) * n + batch * (WIDE + 2 * CLASSES)
    known = held_by(cls, [step], lambda: run(of, 2, of.start().x))
    models = 2 if cls is ZOHFL and of.local.samples == "shared" else 1  # that take a step at once
    assert numbers - batch * WIDE <= known <= numbers + 4 * models * n + 4 * batch * WIDE, known / n


@pytest.mark.parametrize("which", TWO)
def test_a_step_on_two_levels_holds_its_vectors_of_both(which: str) -> None:
    """By hand; no more than the largest real step has, and at most NumPy's copies of points and of a batch below it.
    Mutations: not known; the smaller of both levels; x_r or v left out; one of both y; FedAC's second sequence."""
    cls, name, flags, numbers = TWO[which]
    own = federation()
    own = replace(own, problem=problem_of(name, own))
    lower = {} if cls is FedRZONN else {"batch_lower": BATCH, "exact": False}
    eta = {} if cls is FedNest else {"eta": 0.005, "gamma": 1e-4}
    T = {"T_lower": "3"} if cls is FedRZOBL else {}
    of = from_flags(cls, own, batch=BATCH, **lower, **eta, **T, **flags)
    (needs,) = of.device_needs()
    assert needs.bytes == 8 * numbers
    steps = [step for step in STEPS_OF_TWO if hasattr(cls, step)]
    known = held_by(cls, steps, lambda: finite_round(of, of.start(), 0, clients_of(of)))
    n = max(of.problem.n, getattr(of.problem, "n_lower", 0))
    copies = 4 * flags.get("n_p", 1)
    assert numbers - BATCH * WIDE <= known <= numbers + copies * n + BATCH * WIDE, known
