"""What a liar sends, derived by hand for each attack and each family of replies."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tests.numerics.first_order import toy
from zofl_mpi.clients.robust import Robust
from zofl_mpi.methods.scaffold import ControlUpdate
from zofl_mpi.methods.zo_hfl import Values
from zofl_mpi.rounds.local_sgd import LocalModel
from zofl_mpi.rounds.report import GlobalModel
from zofl_mpi.rounds.split.unsplit import Uploaded

D1, D2 = np.full(900, 0.5), np.full(900, 20.0)
"""Two parts of a reply, of norms 15 and 600."""
X = np.linspace(-1, 1, 900)
FAMILIES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "local model": (LocalModel(X + D1), {"y": X}, {"y": D1}),
    "SCAFFOLD": (ControlUpdate(D1, D2), {"dy": 0.0, "dc": 0.0}, {"dy": D1, "dc": D2}),
    "scalars": (
        Uploaded(differences=D1[:10], buffers=torch.from_numpy(X), loss=None),
        {"differences": 0.0},
        {"differences": D1[:10]},
    ),
    "ZO-HFL": (Values(3.0, 0.0), {"plus": 0.0}, {"plus": np.array(3.0)}),
}
"""A reply, from where its D is counted, and D by part."""


SPAN = 2.0
"""The unit of DeComFL's scalars, in which a norm to clip by is counted."""


@dataclass(frozen=True)
class Message(GlobalModel):
    span: float


def told(family: str, attack: Any, aggregate: str = "mean", r: int = 0) -> dict[str, Any]:
    """{part: the D that a liar reports}."""
    reply, at, D = FAMILIES[family]
    robust = Robust(toy(noise=1.0), aggregate, 0.4, attack)
    message = Message(X, r, SPAN)
    lie = robust.read(min(robust.liars), message, reply)
    return {part: getattr(lie, part) - np.asarray(at[part]) for part in D}


def length(D: Any) -> float:
    return math.sqrt(sum(float(np.square(d).sum()) for d in D.values()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("attack", "factor"), [("sign", -1.0), ("scale", 10.0)])
def test_signs_and_scales(family: str, attack: str, factor: float) -> None:
    """Mutations: one part alone; the model in place of its change; 10 in place of -1; a norm in another unit."""
    D = FAMILIES[family][2]
    for part, found in told(family, attack).items():
        np.testing.assert_allclose(found, factor * D[part], rtol=1e-12, atol=1e-12)
    C = length(D) / 4 / (SPAN if family == "scalars" else 1)
    for part, found in told(family, attack, f"clip:{C!r}").items():
        np.testing.assert_allclose(found, math.copysign(0.25, factor) * D[part], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_is_one_vector_as_long_as_the_whole_reply(family: str) -> None:
    """Of independent numbers with one deviation: of SCAFFOLD's liar each part has half of the square, whatever the
    honest parts are, to 5 deviations of a mean of 900 squares. Mutations: each part as long as the whole reply; each
    part as long as its own honest one; the norm of one part; the same noise in all rounds."""
    D, found = FAMILIES[family][2], told(family, "noise")
    assert length(found) == pytest.approx(length(D), rel=1e-12)
    if family == "SCAFFOLD":
        shares = [float(np.square(d).sum()) / length(D) ** 2 for d in found.values()]
        assert shares == pytest.approx([0.5, 0.5], abs=5 * math.sqrt(2 / 900) / 2)
    again = told(family, "noise", r=1)
    assert family == "ZO-HFL" or all(np.abs(found[part] - again[part]).max() > 0 for part in found)
