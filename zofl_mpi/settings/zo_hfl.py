"""Problems of [A] for the command line: softmax regression, frozen features, networks, and toys."""

import math
from dataclasses import dataclass, replace
from typing import final

from zofl_mpi.data import features
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import UserError, demand
from zofl_mpi.problems.analytic.caps import Caps
from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.run.command.family import Site
from zofl_mpi.settings.given import on_samples, problem_on, random_problem, without_data
from zofl_mpi.settings.networks import CNN, MLP
from zofl_mpi.settings.samples import Samples, setting_on


@final
@dataclass(frozen=True)
class Toy:
    """Random quadratics with closed-form solutions, in float64.

    Attributes:
        m: number of clients.
        n: length of x.
        lam: lambda, weight of the dissimilarity f_2.
        radius: radius of the ball Y_i(x) around x that contains y_i; inf for none.
        noise: standard deviation of a sample's gradient around the mean.
    """

    m: int = at_least(1, 10)
    n: int = at_least(1, 8)
    lam: float = at_least(0, 1.0)
    radius: float = math.inf
    noise: float = at_least(0, 0.0)

    def __post_init__(self) -> None:
        demand(self.radius >= 0, "radius", self.radius, "a number, at least 0")


def _features(site: Site) -> Setting[Softmax]:
    if site.federation is not None:
        raise UserError("--problem features needs a data set of images, not data in memory")
    samples = site.group(Samples)
    demand(samples.pixels == "unit", "pixels", samples.pixels, "unit: the features are made of [0, 1] and standardised")
    images = samples.federation(site.world, site.streams, features.sources)
    federation = features.standardised(images)
    return setting_on(site, problem_on(Softmax, site, federation), federation)


PROBLEMS = {
    "softmax": on_samples(Softmax),
    "features": replace(on_samples(Softmax), make=_features),
    "mlp": MLP,
    "cnn": CNN,
    "toy": random_problem(Toy, Quadratic, tested_on_clients=False),
    "corner": without_data(Corner),
    "caps": without_data(Caps),
}
