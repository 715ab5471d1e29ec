"""Colours that a figure shows side by side are told apart by colour-blind readers, too.

Deuteranopia and protanopia by the matrices of Machado, Oliveira and Fernandes (2009) at full severity, on linear RGB;
distances are Euclidean in CIE L*a*b*, where 2 is just seen and 10 is seen at a glance.
"""

from itertools import combinations

import numpy as np
import pytest

from zofl_mpi.report import palette

SEEN_AS = {
    "all": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
TOGETHER = {
    "lines": palette.COLOURS,
    "seconds": tuple(palette.SECONDS.values()),
    "bytes": tuple(palette.BYTES.values()),
    "maps": (palette.SKY, palette.GREY, palette.ORANGE, palette.YELLOW, palette.GREEN),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, matrix: np.ndarray) -> np.ndarray:
    """L*, a* and b* of a colour as it is seen."""
    srgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(matrix @ linear, 0, 1) / (XYZ @ np.ones(3)) + 1e-12)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours: tuple[str, ...], seen: str) -> float:
    """The least distance between two of them."""
    seen_as = [lab(colour, SEEN_AS[seen]) for colour in colours]
    return min(float(np.linalg.norm(one - other)) for one, other in combinations(seen_as, 2))


@pytest.mark.parametrize("seen", SEEN_AS)
@pytest.mark.parametrize("of", TOGETHER)
def test_colours_side_by_side_are_told_apart(of: str, seen: str) -> None:
    """Mutation: waiting in orange beside sending; two greens in a map."""
    assert nearest(TOGETHER[of], seen) > 10
