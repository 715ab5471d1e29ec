"""The problems of [A] that a command line can name: softmax regression, frozen features, and two toys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from zofl_mpi.data import features
from zofl_mpi.data.features import Filters
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import demand
from zofl_mpi.problems import Hierarchical, Smooth
from zofl_mpi.problems.analytic.caps import Caps
from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.settings.choice import Choice, Site
from zofl_mpi.settings.given import alike, on_samples, problem_on, roles_of
from zofl_mpi.settings.samples import Samples


@final
@dataclass(frozen=True)
class Toy:
    """Random quadratics whose solutions are known in closed form, in float64.

    Attributes:
        m: number of clients.
        n: length of x.
        lam: lambda, weight of the dissimilarity f_2.
        radius: of the ball Y_i(x) around x to which y_i is confined; inf for none.
        noise: standard deviation of a sample's gradient around the mean.
    """

    m: int = 10
    n: int = 8
    lam: float = 1.0
    radius: float = math.inf
    noise: float = 0.0

    def __post_init__(self) -> None:
        demand(self.m >= 1, "m", self.m, "a whole number, at least 1")
        demand(self.n >= 1, "n", self.n, "a whole number, at least 1")


@final
@dataclass(frozen=True)
class Corners:
    """`Corner` for several clients.

    Attributes:
        m: number of clients, all alike.
        problem: of each.
    """

    m: int = 10
    problem: Corner = part()

    def __post_init__(self) -> None:
        demand(self.m >= 1, "m", self.m, "a whole number, at least 1")


def _features(site: Site) -> Setting[Softmax]:
    samples, filters = site.group(Samples), site.group(Filters)
    demand(samples.pixels == "unit", "pixels", samples.pixels, "unit: the features are made of [0, 1] and standardised")
    images = samples.federation(site.world, site.streams, lambda stored: features.sources(stored, filters))
    federation = features.standardised(images)
    return site.setting(problem_on(Softmax, site, federation), federation)


def _toy(site: Site) -> Setting[Quadratic]:
    toy = site.group(Toy)
    problem, server, clients = Quadratic.random(
        site.streams, toy.n, toy.m, lam=toy.lam, radius=toy.radius, noise=toy.noise
    )
    return Setting(problem, site.streams, clients, server, server, None, np.dtype(np.float64))


def _caps(site: Site) -> Setting[Caps]:
    caps, nothing = site.group(Caps), range(1)
    return Setting(caps, site.streams, (nothing,) * caps.m, nothing, nothing, None, np.dtype(np.float64))


SOFTMAX = on_samples(Softmax)
FEATURES = Choice({**SOFTMAX.groups, "features": Filters}, _features, SOFTMAX.roles, SOFTMAX.gpu)
TOY = Choice({"problem": Toy}, _toy, roles_of(Quadratic))
CORNER = alike(Corners, Corner)
CAPS = Choice({"problem": Caps}, _caps, roles_of(Caps))

if TYPE_CHECKING:  # mypy: each problem has its roles
    from zofl_mpi.problems.network import Network

    hierarchical: Sequence[type[Hierarchical]] = (Softmax, Network, Quadratic, Corner, Caps)
    smooth: Sequence[type[Smooth]] = (Softmax, Network, Quadratic)
