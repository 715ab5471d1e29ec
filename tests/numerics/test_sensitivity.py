"""By how much one client moves what is published, derived by hand: which norm is clipped, and which noise is added."""

import math
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import method, n, point, toy
from zofl_mpi.clients.privacy import Privacy
from zofl_mpi.engine.between import answering
from zofl_mpi.engine.clients import Client
from zofl_mpi.methods.fedavg import FedAvg
from zofl_mpi.methods.scaffold import Controlled, Scaffold
from zofl_mpi.methods.zo_hfl import ZOHFL
from zofl_mpi.rounds.report import GlobalModel

WIDE = 1 - 4 * float(np.finfo(np.float64).eps)


@pytest.mark.parametrize(
    ("mechanism", "scalars", "norm"),
    [("gaussian", True, 5.0), ("gaussian", False, 5.0), ("laplace", True, 7.0), ("laplace", False, 5.0)],
)
def test_which_norm_of_3_and_4_is_clipped(mechanism: Any, scalars: bool, norm: float) -> None:
    """l1 of scalars under Laplace noise, l2 of all else: the K-norm mechanism's body is the ball. Mutations: l1 for
    vectors, too; for scalars under Gaussian noise; l2 for all."""
    values = np.array([3.0, -4.0])
    for C in (norm * 1.01, norm * 0.5):
        sent = Privacy(toy(), clip=C, mechanism=mechanism).clipped(0, values, 0, scalars=scalars)
        np.testing.assert_allclose(sent.change, values * min(1.0, C / norm), rtol=1e-12)
        assert sent.was_clipped == float(norm > C)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("cls", [FedAvg, Scaffold])
def test_methods_that_send_vectors_clip_them_in_l2(cls: Any, mechanism: str) -> None:
    """Of a reply twice as long as C in l2, half; one between C in l2 and in l1 stays. Mutations: vectors that count as
    scalars; SCAFFOLD's two parts, each by itself."""
    x, own = point(toy()), toy()
    zero = np.zeros(n)
    message = Controlled(x, zero, 0) if cls is Scaffold else GlobalModel(x, 0)

    def sent_with(C: float) -> Any:
        of = method(cls, own, clip=C, mechanism=mechanism, weights="uniform")
        return answering(of, of.train)(Client(0, own.data[0]), message)

    free = sent_with(1e9).change
    l2, l1 = float(np.linalg.norm(free)), float(np.abs(free).sum())
    assert l1 > 1.2 * l2
    for C, factor in ((l2 / 2, 0.5), ((l1 + l2) / 2, 1.0)):
        np.testing.assert_allclose(sent_with(C).change, factor * free, rtol=1e-12)


def test_a_scalar_of_zo_hfl_is_cut_to_C() -> None:
    """One number: l1 and l2 are the same. Mutations: the two values by themselves; the estimate in place of them."""
    own = toy()
    for mechanism in ("gaussian", "laplace"):
        methods = (
            method(ZOHFL, own, clip=C, mechanism=mechanism, divide="participants", tau=(3.0,)) for C in (1e9, 1e-6)
        )
        asked = Client(0, own.data[0]), GlobalModel(point(own), 0)
        free, cut = (answering(of, of.solve)(*asked) for of in methods)
        assert not free.was_clipped and cut.was_clipped
        np.testing.assert_allclose(cut.change, np.sign(free.change) * 1e-6, rtol=1e-12)


@pytest.mark.parametrize(("mechanism", "scalars"), [("gaussian", False), ("laplace", True), ("laplace", False)])
def test_noise_is_z_times_C_whatever_is_published(mechanism: Any, scalars: bool) -> None:
    """Root mean squares of 4,000 numbers: z C, sqrt(2) z C, and of n numbers with radius Gamma(n, z C) about
    sqrt(n + 1) z C. Mutations: no C; no z; Laplace's noise for vectors; the Gaussian's for scalars."""
    C, z, count = 3.0, 0.5, 4000
    privacy = Privacy(toy(), clip=C, noise_multiplier=z, mechanism=mechanism)
    noise = privacy.add_noise(np.zeros(count), 0.0, 1, 0, scalars=scalars)
    wanted = {"gaussian": z * C, "laplace": z * C * math.sqrt(2 if scalars else count + 1)}[mechanism]
    assert float(np.sqrt(np.mean(noise**2))) == pytest.approx(wanted, rel=0.1)  # 4.5 sigma of the widest, Laplace's
    np.testing.assert_allclose(privacy.add_noise(np.ones(count), 0.0, 1, 0, scalars=scalars, unit=2.0), 1 + 2 * noise)
