"""Vectors that a client of the federated methods holds, by hand, against what NumPy allocates in a real step."""

import functools
import tracemalloc

from tests.numerics.first_order import *
from zofl_mpi.engine import messages
from zofl_mpi.methods.ditto import Ditto
from zofl_mpi.methods.fedavg import FedAvg, FedProx
from zofl_mpi.methods.fedmspp import FedMSPP
from zofl_mpi.methods.pfedme import PFedMe
from zofl_mpi.methods.scaffnew import Scaffnew
from zofl_mpi.methods.scaffold import Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL

WIDE, CLASSES = 500, 10
CASES: dict[str, tuple[Any, dict[str, Any], str, int]] = {
    "FedAvg": (FedAvg, {}, "train", 0),
    "FedAvg, compressed": (FedAvg, {"compress": "topk:0.1"}, "train", 2),  # x and e
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


def federation() -> Setting:
    pixels = STREAMS(Purpose.SYNTHETIC).integers(0, 256, (60, WIDE), dtype=np.uint8)
    data = Dataset(pixels, np.arange(60) % CLASSES, CLASSES, scale=1 / 255)
    parts = [data.subset(np.arange(10 * k, 10 * k + 10)) for k in range(6)]
    problem = Softmax(WIDE, CLASSES, "numpy", weights=np.full(4, 0.25), terms=Terms(1.0), dtype=np.float64)
    counts = np.stack([part.counts() for part in parts[:4]])
    return Setting(problem, STREAMS, tuple(parts[:4]), parts[4], parts[5], counts, np.float64)


@pytest.mark.parametrize("which", CASES)
def test_vectors_are_those_that_a_step_holds(which: str) -> None:
    """No more than a real step has, its message included. NumPy's own way out of place has up to four copies more of
    each model that takes a step at once, which a device need not make: of x, y, their difference and a product.
    Mutations: no control variate; the personal model; one of both solves; the residual; the pull towards x."""
    cls, flags, step, vectors = CASES[which]
    own = federation()
    of = built(cls, own, **flags) if cls is Scaffnew else method(cls, own, **flags)
    n, batch = own.problem.n, of.effort.batch
    (needs,) = of.device_needs()
    numbers = needs.bytes / 8
    assert numbers == (3 + vectors) * n + batch * (WIDE + 2 * CLASSES)
    call, found = getattr(cls, step), list[int]()

    @functools.wraps(call)
    def measured(self: Any, client: Any, message: Any) -> Any:
        tracemalloc.start()
        before = sum(value.nbytes for value in client.memory.values() if isinstance(value, np.ndarray))
        try:
            return call(self, client, message)
        finally:
            found.append(tracemalloc.get_traced_memory()[1] + messages.size(message) + before)
            tracemalloc.stop()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, step, measured)
        state, clients = of.start(), clients_of(of)
        for r in range(2):
            state = finite_round(of, state, r, clients)
    known = max(found) / 8
    models = 2 if cls is ZOHFL and of.local.samples == "shared" else 1  # that take a step at once
    assert numbers - batch * WIDE <= known <= numbers + 4 * models * n + 4 * batch * WIDE, known / n
