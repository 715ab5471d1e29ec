"""The problems of [A] that a command line can name: softmax regression, frozen features, and two toys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from zofl_mpi.data import Federation, features
from zofl_mpi.errors import demand
from zofl_mpi.problems.known.quadratic import Corner, Quadratic
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.run.flags import Groups
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Streams
from zofl_mpi.run.world import World
from zofl_mpi.settings.choice import Choice, Values, of_federation, part_of
from zofl_mpi.settings.samples import Samples


@final
@dataclass(frozen=True)
class Terms:
    """What makes a loss a hierarchical problem of [A] section IV.

    Attributes:
        lam: lambda, weight of the dissimilarity f_2 = (lambda/2) sum_i rho_i |x - y_i|^2.
        mu: weight of the proximal term (mu/2)|x - y|^2 of a client's problem; one number, or one per client.
        radius: of the ball Y_i(x) around x to which y_i is confined; inf for none; one number, or one per client.
    """

    lam: float = 1.0
    mu: tuple[float, ...] = (1.0,)
    radius: tuple[float, ...] = (math.inf,)


@final
@dataclass(frozen=True)
class SoftmaxModel:
    """Multinomial logistic regression.

    Attributes:
        bias: whether the model has a bias; [A]'s has none.
        kernel: what computes the local steps: numpy, numba (compiled, twice as fast), auto (numba if installed).
    """

    bias: bool = False
    kernel: Literal["auto", "numpy", "numba"] = "auto"


@final
@dataclass(frozen=True)
class FeaturesModel:
    """Frozen random convolutional features of the images, under softmax regression.

    Attributes:
        filters: number of random filters; an input of the regression has filters * pool^2 numbers.
        filter_size: height and width of a filter in pixels.
        pool: the filters' positive responses are averaged over pool x pool cells of an image.
        features_seed: of the filters; runs with other seeds share them.
    """

    filters: int = 256
    filter_size: int = 6
    pool: int = 2
    features_seed: int = 0


@final
@dataclass(frozen=True)
class ToyModel:
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


@final
@dataclass(frozen=True)
class CornerModel:
    """[A] equation (3), f(x) = 1/2 |x + 1 - max(x, 0)|^2: nonconvex and nonsmooth, in float64.

    Attributes:
        m: number of clients, all alike.
        n: length of x.
    """

    m: int = 10
    n: int = 8


def _softmax(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    return _regression(values, streams, part_of(Samples, values).federation(world, streams), dtype)


def _features(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    samples, model = part_of(Samples, values), part_of(FeaturesModel, values)
    demand(samples.pixels == "unit", "pixels", samples.pixels, "unit: the features are made of [0, 1] and standardised")
    filters = features.Filters(model.filters, model.filter_size, model.pool, model.features_seed)
    federation = samples.federation(world, streams, lambda stored: features.sources(stored, filters))
    return _regression(values, streams, features.standardised(federation), dtype)


def _regression(values: Values, streams: Streams, federation: Federation, dtype: str) -> Setting:
    model = part_of(SoftmaxModel, values)
    problem = Softmax(
        features=federation.server.features,
        classes=federation.server.classes,
        weights=federation.weights,
        bias=model.bias,
        dtype=np.dtype(dtype),
        kernel=model.kernel,
        **terms_of(values),
    )
    return of_federation(problem, streams, federation, dtype)


def _toy(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model = part_of(ToyModel, values)
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    problem, server, clients = Quadratic.random(
        streams, model.n, model.m, lam=model.lam, radius=model.radius, noise=model.noise
    )
    return Setting(problem, streams, clients, server, server, None, np.dtype(np.float64))


def _corner(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model = part_of(CornerModel, values)
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    nothing = range(1)  # a sample for everybody: the problem does not look at it
    return Setting(Corner(model.n), streams, (nothing,) * model.m, nothing, nothing, None, np.dtype(np.float64))


def terms_of(values: Values) -> dict[str, Any]:
    """lam, mu and radius; their defaults where the method has no use for them, nor flags."""
    terms = part_of(Terms, values) if "lam" in values else Terms()
    return {"lam": terms.lam, "mu": _one_or_each(terms.mu), "radius": _one_or_each(terms.radius)}


def _one_or_each(values: tuple[float, ...]) -> Any:
    return values[0] if len(values) == 1 else np.array(values)


BOTH: Mapping[str, Groups] = {"Hierarchical": {"hierarchy": Terms}, "Smooth": {}}
SOFTMAX = Choice({"data": Samples, "problem": SoftmaxModel}, _softmax, BOTH)
FEATURES = Choice({"data": Samples, "problem": SoftmaxModel, "features": FeaturesModel}, _features, BOTH)
TOY = Choice({"problem": ToyModel}, _toy, {"Hierarchical": {}, "Smooth": {}})
CORNER = Choice({"problem": CornerModel}, _corner, {"Hierarchical": {}})
