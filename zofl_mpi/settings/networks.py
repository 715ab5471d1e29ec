"""Torch modules as problems: the MLP, the CNN, and a user's own class, module or problem."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from zofl_mpi.data import Array, Federation, features
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, mistake
from zofl_mpi.problems.split_images import demand_images
from zofl_mpi.run.family import Choice, Site
from zofl_mpi.run.flags import Groups
from zofl_mpi.settings.given import GIVEN, HIERARCHY, adapted, given_to, lacking, on_samples, terms_of
from zofl_mpi.settings.samples import Samples, setting_on

if TYPE_CHECKING:
    from torch import nn

    from zofl_mpi.problems.network import Network

ROLES: Mapping[str, Groups] = {"Hierarchical": HIERARCHY, "Smooth": {}, "Lipschitz": {}}
"""The roles of `Network`; written out, since its file imports torch."""
Factory = Callable[[Site, tuple[int, ...], int], "nn.Module"]
"""A torch module from the flags, the shape of an input and the number of classes."""


@final
@dataclass(frozen=True)
class Widths:
    """A multilayer perceptron (ReLU), a torch module.

    Attributes:
        hidden: widths of the hidden layers.
    """

    hidden: tuple[int, ...] = at_least(1, (200,), "whole numbers")


@final
@dataclass(frozen=True)
class Kernel:
    """The flags of how a network's local steps are computed.

    Attributes:
        kernel: code that computes the local steps: serial (one client after the other), torch (many clients at once, on
            --device), auto (torch on a GPU, if the module can be computed so).
        client_memory: activations that a backward pass holds: none (all of them), checkpoint (of each layer with
            parameters its inputs, and it is computed once more with those that follow), or accumulate:PARTS (those of
            one part of the mini-batch at a time, and the parts' gradients are added up: the same, to rounding).
    """

    kernel: Literal["auto", "serial", "torch"] = "auto"
    client_memory: str = "none"


def classifier(factory: Factory, flags: type[Any] | None = None, samples: type[Any] = Samples) -> Choice:
    """A torch module that classifies, as a problem; `flags` are the module's, `samples` the data set's."""
    own = {"problem": flags} if flags else {}
    return Choice({"data": samples, **own, "local steps": Kernel}, partial(_setting, factory), ROLES, gpu=True)


def _setting(factory: Factory, site: Site) -> Setting[Network]:
    from zofl_mpi.problems.network import Network, seeded  # imports torch

    federation = site.samples(Samples)
    shape, classes = shape_of(federation), federation.server.classes
    module = seeded(lambda: factory(site, shape, classes), site.streams(Purpose.MODULE))
    own: dict[str, Any] = {"weights": federation.weights, "terms": terms_of(site), "dtype": np.dtype(site.dtype)}
    steps = site.group(Kernel)
    own["examples"] = first_samples(federation, site.dtype)
    problem = Network(module, shape, classes, site.device, steps.kernel, steps.client_memory, **own)
    return setting_on(site, problem, federation, fingerprint_of(module))


def first_samples(federation: Federation, dtype: str) -> Array:
    """(k, p) up to four inputs of the first client."""
    first = federation.clients[0]
    return first.take(np.arange(min(4, len(first))), np.dtype(dtype))[0]


def fingerprint_of(module: nn.Module) -> str:
    """Checksum of a network's layers and first values, which must be the same on every rank."""
    checksum = zlib.crc32(repr(module).encode())
    for value in module.state_dict().values():  # one after the other: a language model is large
        checksum = zlib.crc32(value.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8), checksum)
    return f"network crc32 {checksum:08x}"


def shape_of(federation: Federation) -> tuple[int, ...]:
    """(channels, height, width) where the inputs are images, else (features,)."""
    try:
        return features.image_shape(federation.server.features, federation.channels, federation.shape)
    except UserError:
        return (federation.server.features,)


def _mlp(site: Site, shape: tuple[int, ...], classes: int) -> nn.Module:
    from zofl_mpi.problems.models import MLP

    return MLP(math.prod(shape), classes, site.group(Widths).hidden)


def _cnn(site: Site, shape: tuple[int, ...], classes: int) -> nn.Module:
    from zofl_mpi.problems.models import CNN

    demand_images(shape, "cnn")
    return CNN((shape[0], shape[1], shape[2]), classes)


def own_problem(name: str, cls: type[Any], samples: type[Any] = Samples) -> Choice:
    """A user's own class, --problem module:Class, as a problem (UserError: it is of neither kind).

    Either a torch module, which is called with the shape of an input, (channels, height, width) or (features,), and the
    number of classes. Or a dataclass with a field `federation` (`zofl_mpi.data.Federation`) or with fields that the run
    gives (`settings.given.GIVEN`); its other fields are flags, and it offers the roles whose members it has.
    """
    if any(base.__name__ == "Module" and base.__module__.startswith("torch.nn") for base in cls.__mro__):
        return classifier(partial(_own_module, name, cls), samples=samples)
    if not is_dataclass(cls) or not given_to(cls):
        raise UserError(
            f"--problem {name}: {cls.__name__} must be a torch module, or a dataclass with a field named federation "
            "(its data)"
        )
    unknown = [field for field in given_to(cls) if field not in GIVEN]
    if unknown:
        fault = f"the run cannot give {cls.__name__} the field {unknown[0]}"
        raise UserError(f"--problem {name}: {fault}; it gives {', '.join(GIVEN)}")
    return replace(on_samples(adapted(cls), samples, classifies=False), lacks=lacking(cls))


def _own_module(name: str, cls: type[Any], site: Site, shape: tuple[int, ...], classes: int) -> nn.Module:
    try:
        return cls(shape, classes)  # type: ignore[no-any-return]
    except Exception as exc:  # the user's code
        call = f"{cls.__name__}({shape}, {classes})"
        raise UserError(f"--problem {name}: {call} failed: {mistake(exc)}") from exc


MLP = classifier(_mlp, Widths)
CNN = classifier(_cnn)
