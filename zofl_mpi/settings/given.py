"""Problems from one dataclass, built-in or the user's: its fields are flags or provided by the run.

A class offers each role whose members it has; the roles determine the methods that can run on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.engine.fields import NOTHING, is_flag
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Bilevel, Hierarchical, Lipschitz, SecondOrder, Smooth
from zofl_mpi.problems.base import BilevelProblem, Problem
from zofl_mpi.problems.terms import ProximalTerms
from zofl_mpi.run.command.family import Choice, Site
from zofl_mpi.run.command.flags import Groups, instantiate
from zofl_mpi.settings.samples import Samples, setting_on

P = TypeVar("P")
ROLES = (Hierarchical, Smooth, Lipschitz, Bilevel, SecondOrder)
"""Roles that a class has by its members; a `Split` problem is built from torch modules."""
BASES = {base for role in ROLES for base in role.__mro__}
HIERARCHY: Groups = {"hierarchy": ProximalTerms}
"""Flags of a loss with `ProximalTerms` in the role `Hierarchical`."""
Make = Callable[[Site, Federation], Any]


def terms_of(site: Site) -> ProximalTerms:
    """[A]'s terms from the flags; defaults if the method does not use them."""
    return site.group(ProximalTerms) if all(f.name in site.values for f in fields(ProximalTerms)) else ProximalTerms()


GIVEN: Mapping[str, Make] = {
    "federation": lambda site, federation: federation,
    "features": lambda site, federation: federation.server.features,
    "classes": lambda site, federation: federation.server.classes,
    "weights": lambda site, federation: federation.weights,
    "counts": lambda site, federation: federation.counts,
    "terms": lambda site, federation: terms_of(site),
    "dtype": lambda site, federation: np.dtype(site.dtype),
    "device": lambda site, federation: site.device,
}
"""{field: its value in a problem that marks it by `zofl_mpi.injected()`}."""


def given_to(cls: type[Any]) -> list[str]:
    """Fields that the run sets in a problem of this class."""
    return [f.name for f in fields(cls) if f.init and not is_flag(f)]


def problem_on(cls: type[P], site: Site, federation: Federation) -> P:
    """A problem of this class on these data, from its flags and injected fields."""
    return cast(P, instantiate(cls, site.values, **{name: GIVEN[name](site, federation) for name in given_to(cls)}))


def lacking(cls: type[Any]) -> dict[str, list[str]]:
    """{role: members that a class lacks}; defaults of base classes do not count."""
    own = [base for base in cls.__mro__ if base not in BASES]
    has = {f.name for f in fields(cls)}.union(*map(vars, own))
    return {role.__name__: [name for name in needed(role) if name not in has] for role in ROLES}


def needed(role: type[Any]) -> list[str]:
    """Members that a role needs, those of extended roles first."""
    kin = [base for base in reversed(role.__mro__) if base in ROLES]
    return ["n", *(name for base in kin for name in vars(base) if not name.startswith("_"))]


def base_of(cls: type[Any]) -> type[Any]:
    """The base class to inherit for a problem with these members."""
    return Problem if lacking(cls)["Bilevel"] else BilevelProblem


def roles_of(cls: type[Any]) -> dict[str, Groups]:
    """{role of a class: flags of that role in methods that need it}."""
    offered = [role for role, missing in lacking(cls).items() if not missing]
    has_terms = "terms" in given_to(cls)
    return {role: HIERARCHY if role == "Hierarchical" and has_terms else {} for role in offered}


def without_data(cls: type[Any]) -> Choice:
    """A problem without data, in float64; its field `m` is the number of clients."""

    def setting(site: Site) -> Setting[Any]:
        problem, nothing = site.group(cls), range(1)  # a dummy sample
        return Setting(problem, site.streams, (nothing,) * problem.m, nothing, nothing, dtype=np.dtype(np.float64))

    return Choice({"problem": cls}, setting, roles_of(cls))


def random_problem(flags: type[Any], cls: type[Any], *, tested_on_clients: bool = True) -> Choice:
    """A random problem in float64 with known solution.

    Args:
        flags: dataclass of the arguments of `cls.random`, which returns a problem, the data of server and clients.
        tested_on_clients: True if reports use the clients' data, not the server's.
    """

    def setting(site: Site) -> Setting[Any]:
        problem, server, clients = cls.random(site.streams, **vars(site.group(flags)))
        test = clients if tested_on_clients else server
        return Setting(problem, site.streams, clients, server, test, dtype=np.dtype(np.float64))

    return Choice({"problem": flags}, setting, roles_of(cls))


def on_samples(
    cls: type[Any],
    samples: type[Any] = Samples,
    make: Make | None = None,
    *,
    classifies: bool = True,
    usual: Mapping[str, Mapping[str, Any]] = NOTHING,
) -> Choice:
    """A dataclass as a problem on a data set's samples; if `device` is injected, it may run on a GPU.

    Args:
        samples: flags of the data set, with a family's defaults.
        make: creates the problem; None: `problem_on` these data.
        classifies: refuse regression data.
        usual: as in `Choice`.
    """

    def setting(site: Site) -> Setting[Any]:
        federation = site.samples(Samples, classifies=classifies)
        problem = make(site, federation) if make else problem_on(cls, site, federation)
        return setting_on(site, problem, federation)

    return Choice({"data": samples, "problem": cls}, setting, roles_of(cls), "device" in given_to(cls), usual)
