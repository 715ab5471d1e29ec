"""From flags to a `Setting`: the problems that a command line can name, with their data.

Every rank builds the same setting by itself; the data set lies once on each node (`data.cache`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from zofl_mpi.data import Federation, cache, images, partition
from zofl_mpi.data.synthetic import Synthetic
from zofl_mpi.errors import demand
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.toy import Corner, Quadratic
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Streams
from zofl_mpi.run.world import World, together


@final
@dataclass(frozen=True)
class Samples:
    """A data set and who holds which part of it.

    Attributes:
        data: digits, mnist, fashion-mnist, cifar10, synthetic, or the path of a .npz file with x and y.
        data_dir: the folder with the data set's files; else $ZOFL_DATA, else the user's cache.
        pixels: unit ([0, 1]), raw (as stored) or standardize (mean 0, variance 1 over the training part).
        m: number of clients.
        alpha: Dirichlet concentration of the clients' classes, above 0; inf for iid.
        partition: by_class (each class is spread over the clients) or by_client (each draws its classes; equal sizes).
        balance: by_class: a client that holds its fair share gets nothing of the later classes.
        min_samples: every client holds at least so many; the partition is redrawn until it is so.
        split: random (10 % of all samples, --test-fraction, are the test set) or official (the data set's own).
        test_fraction: share of all samples that is held out from all.
        server_fraction: share of the training part that is the server's own.
        synthetic_samples: --data synthetic: number of samples.
        synthetic_features: --data synthetic: length of an input.
        synthetic_classes: --data synthetic: number of classes.
        synthetic_noise: --data synthetic: probability that a label is drawn at random.
    """

    data: str = "digits"
    data_dir: str = ""
    pixels: Literal["unit", "raw", "standardize"] = "unit"
    m: int = 10
    alpha: float = math.inf
    partition: Literal["by_class", "by_client"] = "by_class"
    balance: bool = False
    min_samples: int = 10
    split: Literal["random", "official"] = "random"
    test_fraction: float = 0.1
    server_fraction: float = 0.3
    synthetic_samples: int = 10_000
    synthetic_features: int = 64
    synthetic_classes: int = 10
    synthetic_noise: float = 0.0

    def federation(self, world: World, streams: Streams) -> Federation:
        """The parts of server, clients and nobody.

        Raises:
            UserError: on every rank, if a file is missing or damaged on one, or a flag is out of range.
        """
        data_dir = Path(self.data_dir).expanduser() if self.data_dir else None
        sources = together(world, lambda: images.sources(self.data, data_dir, streams, self._synthetic()))
        place, _ = world.neighbours(None)
        together(world, lambda: cache.prepare(sources) if place == 0 else None)
        raw = together(world, lambda: cache.open(sources))
        return together(
            world,
            lambda: partition.split(
                raw,
                streams,
                m=self.m,
                alpha=self.alpha,
                partition=self.partition,
                test_fraction=self.test_fraction,
                server_fraction=self.server_fraction,
                official_split=self.split == "official",
                min_samples=self.min_samples,
                balance=self.balance,
                pixels=self.pixels,
            ),
        )

    def _synthetic(self) -> Synthetic:
        return Synthetic(self.synthetic_samples, self.synthetic_features, self.synthetic_classes, self.synthetic_noise)


@final
@dataclass(frozen=True)
class SoftmaxModel:
    """Multinomial logistic regression with a personal proximal term ([A] section IV).

    Attributes:
        lam: lambda, weight of the dissimilarity f_2 = (lambda/2) sum_i rho_i |x - y_i|^2.
        mu: weight of the proximal term (mu/2)|x - y|^2 of a client's problem; one number, or one per client.
        radius: of the ball Y_i(x) around x to which y_i is confined; inf for none; one number, or one per client.
        bias: whether the model has a bias; the paper's has none.
        kernel: auto, numpy or numba (a compiled loop, for small batches): what computes the local solves.
    """

    lam: float = 1.0
    mu: tuple[float, ...] = (1.0,)
    radius: tuple[float, ...] = (math.inf,)
    bias: bool = False
    kernel: Literal["auto", "numpy", "numba"] = "auto"


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


@final
@dataclass(frozen=True)
class Choice:
    """A problem that a command line can name.

    Attributes:
        groups: {title: dataclass of its flags}.
        build: from the groups' values, on every rank alike.
        gpu: whether it can run on one.
    """

    groups: dict[str, type[Any]]
    build: Callable[[dict[str, Any], World, Streams, str], Setting]
    gpu: bool = False


def _softmax(values: dict[str, Any], world: World, streams: Streams, dtype: str) -> Setting:
    samples: Samples = values["data"]
    model: SoftmaxModel = values["problem"]
    federation = samples.federation(world, streams)
    problem = Softmax(
        features=federation.server.features,
        classes=federation.server.classes,
        weights=federation.weights,
        lam=model.lam,
        mu=_one_or_each(model.mu),
        radius=_one_or_each(model.radius),
        bias=model.bias,
        dtype=np.dtype(dtype),
        kernel=model.kernel,
    )
    return Setting(
        problem,
        streams,
        federation.clients,
        federation.server,
        federation.test,
        federation.counts,
        np.dtype(dtype),
        federation.server.fingerprint(),
    )


def _toy(values: dict[str, Any], world: World, streams: Streams, dtype: str) -> Setting:
    model: ToyModel = values["problem"]
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    problem, server, clients = Quadratic.random(
        streams, model.n, model.m, lam=model.lam, radius=model.radius, noise=model.noise
    )
    return Setting(problem, streams, clients, server, server, None, np.dtype(np.float64))


def _corner(values: dict[str, Any], world: World, streams: Streams, dtype: str) -> Setting:
    model: CornerModel = values["problem"]
    demand(model.m >= 1, "m", model.m, "a whole number, at least 1")
    demand(model.n >= 1, "n", model.n, "a whole number, at least 1")
    nothing = range(1)  # a sample for everybody: the problem does not look at it
    return Setting(Corner(model.n), streams, (nothing,) * model.m, nothing, nothing, None, np.dtype(np.float64))


def _one_or_each(values: tuple[float, ...]) -> Any:
    return values[0] if len(values) == 1 else np.array(values)


SOFTMAX = Choice({"data": Samples, "problem": SoftmaxModel}, _softmax)
TOY = Choice({"problem": ToyModel}, _toy)
CORNER = Choice({"problem": CornerModel}, _corner)
