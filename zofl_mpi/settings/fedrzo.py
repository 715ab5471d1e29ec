"""The problems of [B] that a command line can name. In [B] all data are the clients', so that is the default here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.engine.fields import part
from zofl_mpi.engine.setting import Setting
from zofl_mpi.errors import demand
from zofl_mpi.problems import Bilevel, Lipschitz, SecondOrder, Smooth
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled
from zofl_mpi.problems.analytic.cvar import CVaR
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.analytic.saddle import Saddle
from zofl_mpi.problems.analytic.shares import Shares
from zofl_mpi.problems.fair import Fair, FairSoftmax
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.run.flags import fields_of, with_defaults
from zofl_mpi.settings.choice import Choice, Site
from zofl_mpi.settings.given import alike, on_samples, roles_of
from zofl_mpi.settings.networks import CNN, MLP
from zofl_mpi.settings.samples import Samples

ClientSamples = with_defaults(Samples, m=5, server_fraction=0.0)


@final
@dataclass(frozen=True)
class Known:
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
class Pairs:
    """`Coupled` for several clients.

    Attributes:
        m: number of clients, all alike.
        problem: of each.
    """

    m: int = 5
    problem: Coupled = part()

    def __post_init__(self) -> None:
        demand(self.m >= 1, "m", self.m, "a whole number, at least 1")


def _hyperparameter(site: Site, federation: Federation) -> Hyperparameter:
    own = {name: site.values[name] for name in fields_of(Hyperparameter)}
    return Hyperparameter.of(federation.clients, dtype=np.dtype(site.dtype), **own)


def _known(cls: Any) -> Choice:
    """A class whose `random`(streams, n, m, noise=...) makes a problem, the server's data and each client's."""

    def setting(site: Site) -> Setting[Any]:
        known = site.group(Known)
        problem, server, clients = cls.random(site.streams, known.n, known.m, noise=known.noise)
        return Setting(problem, site.streams, clients, server, clients, None, np.dtype(np.float64))

    return Choice({"problem": Known}, setting, roles_of(cls))


DATA = {"data": ClientSamples}
PROBLEMS = {
    "relu_net": on_samples(ReLUNet, ClientSamples),
    "mlp": replace(MLP, groups={**MLP.groups, **DATA}),
    "cnn": replace(CNN, groups={**CNN.groups, **DATA}),
    "hyperparameter": on_samples(Hyperparameter, ClientSamples, _hyperparameter),
    "fair": on_samples(Fair, ClientSamples),
    "fair_softmax": on_samples(FairSoftmax, ClientSamples),
    "max_affine": _known(MaxAffine),
    "bowls": _known(Bowls),
    "bilevel_bowls": _known(BilevelBowls),
    "saddle": _known(Saddle),
    "cvar": _known(CVaR),
    "shares": _known(Shares),
    "coupled": alike(Pairs, Coupled),
}

if TYPE_CHECKING:  # mypy: each problem has its roles
    from zofl_mpi.problems.network import Network

    lipschitz: Sequence[type[Lipschitz]] = (ReLUNet, Network, MaxAffine, Bowls)
    smooth: Sequence[type[Smooth]] = (ReLUNet, Network, Bowls)
    bilevel: Sequence[type[Bilevel]] = (Hyperparameter, Fair, FairSoftmax, BilevelBowls, Coupled, Saddle, CVaR, Shares)
    second_order: Sequence[type[SecondOrder]] = (Hyperparameter, BilevelBowls, Saddle)
