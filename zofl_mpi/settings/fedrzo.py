"""The problems of [B] that a command line can name. In [B] all data are the clients', so that is the default here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np

from zofl_mpi.errors import demand
from zofl_mpi.problems.fair import Fair
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.problems.known.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.known.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.run.flags import made, with_defaults
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Streams
from zofl_mpi.run.world import World
from zofl_mpi.settings.choice import Build, Choice, Values, of_federation
from zofl_mpi.settings.networks import CNN, MLP
from zofl_mpi.settings.samples import Samples

ClientSamples = with_defaults(Samples, m=5, server_fraction=0.0)


@final
@dataclass(frozen=True)
class ReLUModel:
    """[B] 5.1: one hidden layer of ReLU units; its smooth twin for first-order methods.

    Attributes:
        hidden: N_1, hidden units.
        lam: weight of the ridge (lam/2) |x|^2; the paper's 0.01.
        rectifier: sharpness of the smooth twin's rectifier log(1 + exp(rectifier t))/rectifier.
        loss_scale: mean over samples, or sum, as the paper prints (its gamma = 1e-5 then diverges).
    """

    hidden: int = 4
    lam: float = 0.01
    rectifier: float = 10.0
    loss_scale: Literal["mean", "sum"] = "mean"


@final
@dataclass(frozen=True)
class HyperparameterModel:
    """[B] 5.2: one regulariser of a logistic regression per client, chosen on held-out samples.

    Attributes:
        mu: least regulariser, X_i = {x >= mu}.
        held_out: share of a client's samples that the upper level is measured on.
        x_start: first value of all regularisers.
    """

    mu: float = 0.01
    held_out: float = 0.2
    x_start: float = 0.1


@final
@dataclass(frozen=True)
class FairModel:
    """[B] 5.3: the classes' weights are the maximiser.

    A mini-batch estimates class means: where a client has very few samples of a class, one of them weighs much.

    Attributes:
        lam: weight of |y|^2/2, which keeps the class weights y near each other.
        y_set: of the class weights: free (R^C, the paper's) or simplex.
    """

    lam: float = 0.1
    y_set: Literal["free", "simplex"] = "free"


@final
@dataclass(frozen=True)
class KnownModel:
    """A random problem whose solution is known, in float64.

    Attributes:
        m: number of clients.
        n: length of x.
        noise: standard deviation of a sample's gradient around the mean.
    """

    m: int = 5
    n: int = 8
    noise: float = 0.0

    def __post_init__(self) -> None:
        demand(self.m >= 1, "m", self.m, "a whole number, at least 1")
        demand(self.n >= 1, "n", self.n, "a whole number, at least 1")
        demand(self.noise >= 0, "noise", self.noise, "a number, at least 0")


@final
@dataclass(frozen=True)
class CoupledModel:
    """[B] section 4's minimax example with a coupled constraint.

    Attributes:
        m: number of clients, all alike.
        order: min-max, with the solution (0.5, -0.5), or max-min: (-1, 1).
    """

    m: int = 5
    order: Literal["min-max", "max-min"] = "min-max"

    def __post_init__(self) -> None:
        demand(self.m >= 1, "m", self.m, "a whole number, at least 1")


def _relu_net(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model, federation = made(ReLUModel, values), made(Samples, values).federation(world, streams)
    problem = ReLUNet(
        federation.test.features, model.hidden, model.lam, model.rectifier, model.loss_scale, np.dtype(dtype)
    )
    return of_federation(problem, streams, federation, dtype)


def _hyperparameter(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model, federation = made(HyperparameterModel, values), made(Samples, values).federation(world, streams)
    problem = Hyperparameter.of(
        federation.clients, mu=model.mu, held_out=model.held_out, x_start=model.x_start, dtype=np.dtype(dtype)
    )
    return of_federation(problem, streams, federation, dtype)


def _fair(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model, federation = made(FairModel, values), made(Samples, values).federation(world, streams)
    test = federation.test
    problem = Fair(test.features, test.classes, model.lam, model.y_set, np.dtype(dtype))
    return of_federation(problem, streams, federation, dtype)


def _known(random: Callable[..., Any]) -> Build:
    """Builds what `random`(streams, n, m, noise=...) makes."""

    def build(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
        model = made(KnownModel, values)
        problem, server, clients = random(streams, model.n, model.m, noise=model.noise)
        return Setting(problem, streams, clients, server, clients, None, np.dtype(np.float64))

    return build


def _coupled(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
    model = made(CoupledModel, values)
    nothing = range(1)  # a sample for everybody: the problem does not look at it
    return Setting(Coupled(model.order), streams, (nothing,) * model.m, nothing, nothing, None, np.dtype(np.float64))


DATA = {"data": ClientSamples}
KNOWN = {"problem": KnownModel}
PROBLEMS = {
    "relu_net": Choice({**DATA, "problem": ReLUModel}, _relu_net, {"Lipschitz": {}, "Smooth": {}}),
    "mlp": replace(MLP, groups={**MLP.groups, **DATA}),
    "cnn": replace(CNN, groups={**CNN.groups, **DATA}),
    "hyperparameter": Choice({**DATA, "problem": HyperparameterModel}, _hyperparameter, {"Bilevel": {}}),
    "fair": Choice({**DATA, "problem": FairModel}, _fair, {"Bilevel": {}}),
    "max_affine": Choice(KNOWN, _known(MaxAffine.random), {"Lipschitz": {}}),
    "bowls": Choice(KNOWN, _known(Bowls.random), {"Lipschitz": {}, "Smooth": {}}),
    "bilevel_bowls": Choice(KNOWN, _known(BilevelBowls.random), {"Bilevel": {}}),
    "coupled": Choice({"problem": CoupledModel}, _coupled, {"Bilevel": {}}),
}
