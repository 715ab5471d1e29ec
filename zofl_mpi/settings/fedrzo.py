"""Problems of [B] for the command line. By default all data belong to the clients, as in [B]."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.engine.fields import at_least
from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled, Saddle
from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
from zofl_mpi.problems.fair import Fair, FairSoftmax
from zofl_mpi.problems.hyperparameter import Hyperparameter
from zofl_mpi.problems.relu_net import ReLUNet
from zofl_mpi.run.command.family import Site
from zofl_mpi.run.command.flags import leaves
from zofl_mpi.settings.given import on_samples, random_problem, without_data
from zofl_mpi.settings.networks import CNN, MLP
from zofl_mpi.settings.samples import ClientSamples


@final
@dataclass(frozen=True)
class KnownSolution:
    """A random problem with known solution, in float64.

    Attributes:
        m: number of clients.
        n: length of x.
        noise: standard deviation of a sample's gradient around the mean.
    """

    m: int = at_least(1, 5)
    n: int = at_least(1, 8)
    noise: float = at_least(0, 0.0)


def _hyperparameter(site: Site, federation: Federation) -> Hyperparameter:
    own = {leaf.name: site.values[leaf.name] for leaf in leaves(Hyperparameter)}
    return Hyperparameter.of(federation.clients, dtype=np.dtype(site.dtype), **own)


DATA = {"data": ClientSamples}
HYPERPARAMETER = {"": {"eta": 0.005}, "fedrzo_bl": {"gamma": 3e-4}}  # eta: half of mu
PROBLEMS = {
    "relu_net": on_samples(ReLUNet, ClientSamples),
    "mlp": replace(MLP, groups={**MLP.groups, **DATA}),
    "cnn": replace(CNN, groups={**CNN.groups, **DATA}),
    "hyperparameter": on_samples(Hyperparameter, ClientSamples, _hyperparameter, usual=HYPERPARAMETER),
    "fair": on_samples(Fair, ClientSamples),
    "fair_softmax": on_samples(FairSoftmax, ClientSamples),
    "max_affine": random_problem(KnownSolution, MaxAffine),
    "bowls": random_problem(KnownSolution, Bowls),
    "bilevel_bowls": random_problem(KnownSolution, BilevelBowls),
    "saddle": random_problem(KnownSolution, Saddle),
    "cvar": random_problem(KnownSolution, CVaR),
    "shares": random_problem(KnownSolution, Shares),
    "coupled": without_data(Coupled),
}
