"""Problems that are one dataclass, built-in or a user's own: its fields are flags, or given by the run.

What the class offers, and so which methods can run on it, are the protocols whose functions it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from zofl_mpi.data import Federation
from zofl_mpi.engine.fields import is_flag
from zofl_mpi.engine.setting import Setting
from zofl_mpi.problems import Bilevel, Hierarchical, Lipschitz, SecondOrder, Smooth
from zofl_mpi.problems.terms import Terms
from zofl_mpi.run.flags import Groups, made
from zofl_mpi.settings.choice import Choice, Site
from zofl_mpi.settings.samples import Samples

P = TypeVar("P")
PROTOCOLS = (Hierarchical, Smooth, Lipschitz, Bilevel, SecondOrder)
HIERARCHY: Groups = {"hierarchy": Terms}
"""Flags that a method needs which takes a loss with `Terms` as a `Hierarchical` problem."""
Make = Callable[[Site, Federation], Any]


def terms_of(site: Site) -> Terms:
    """[A]'s terms, as the flags have them; the usual ones where the method has no use for them, nor flags."""
    return site.group(Terms) if all(f.name in site.values for f in fields(Terms)) else Terms()


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
"""{field: what the run gives to a problem that has it, and marks it by `zofl_mpi.given()`}."""


def given_to(cls: type[Any]) -> list[str]:
    """Names of the fields that the run gives to a problem of this class."""
    return [f.name for f in fields(cls) if f.init and not is_flag(f)]


def problem_on(cls: type[P], site: Site, federation: Federation) -> P:
    """A problem of this class on these data, from its flags and from what the run gives."""
    return cast(P, made(cls, site.values, **{name: GIVEN[name](site, federation) for name in given_to(cls)}))


def lacking(cls: type[Any]) -> dict[str, list[str]]:
    """{protocol: the functions and properties of it that a class has not}."""
    has = {f.name for f in fields(cls)} | set(dir(cls))
    return {p.__name__: [name for name in parts_of(p) if name not in has] for p in PROTOCOLS}


def parts_of(protocol: type[Any]) -> Sequence[str]:
    """Names of a protocol's functions and properties, those of a protocol that it extends first."""
    kin = [cls for cls in reversed(protocol.__mro__) if getattr(cls, "_is_protocol", False)]
    return [name for cls in kin for name in vars(cls) if not name.startswith("_")]


def roles_of(cls: type[Any]) -> dict[str, Groups]:
    """{protocol that a class offers: the flags of its role in methods that need it}."""
    offered = [protocol for protocol, missing in lacking(cls).items() if not missing]
    has_terms = "terms" in given_to(cls)
    return {protocol: HIERARCHY if protocol == "Hierarchical" and has_terms else {} for protocol in offered}


def alike(group: type[Any], cls: type[Any]) -> Choice:
    """A problem whose clients are all alike and hold nothing that it looks at, in float64.

    Args:
        group: dataclass of its flags, with fields `m`, how many clients, and `problem`, of the class `cls`.
    """

    def setting(site: Site) -> Setting[Any]:
        flags = site.group(group)
        nothing = range(1)  # a sample for everybody
        data = (nothing,) * flags.m
        return Setting(flags.problem, site.streams, data, nothing, nothing, None, np.dtype(np.float64))

    return Choice({"problem": group}, setting, roles_of(cls))


def on_samples(
    cls: type[Any], samples: type[Any] = Samples, make: Make | None = None, *, classifies: bool = True
) -> Choice:
    """A dataclass as a problem on the samples of a data set; one that is given the `device` may run on a GPU.

    Args:
        samples: the flags of the data set, with a family's defaults.
        make: makes the problem; None: `problem_on` these data.
        classifies: refuse the data of a regression.
    """

    def setting(site: Site) -> Setting[Any]:
        federation = site.group(Samples).federation(site.world, site.streams, classifies=classifies)
        problem = make(site, federation) if make else problem_on(cls, site, federation)
        return site.setting(problem, federation)

    return Choice({"data": samples, "problem": cls}, setting, roles_of(cls), gpu="device" in given_to(cls))
