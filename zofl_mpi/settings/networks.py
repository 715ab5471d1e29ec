"""Torch modules as problems: the MLP, the CNN, and a user's own class, module or problem."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal, final

import numpy as np

from zofl_mpi.data import Federation, features
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Bilevel, Hierarchical, Lipschitz, Smooth
from zofl_mpi.run.flags import Groups, made
from zofl_mpi.run.setting import Setting
from zofl_mpi.run.streams import Purpose, Streams
from zofl_mpi.run.world import World
from zofl_mpi.settings.choice import Build, Choice, Values, of_federation, part_of, parts_of
from zofl_mpi.settings.samples import Samples
from zofl_mpi.settings.zo_hfl import BOTH, terms_of


@final
@dataclass(frozen=True)
class MLPModel:
    """A multilayer perceptron (ReLU), a torch module.

    Attributes:
        hidden: widths of the hidden layers.
    """

    hidden: tuple[int, ...] = (200,)


@final
@dataclass(frozen=True)
class ConvolutionModel:
    """A torch module that may convolve.

    Attributes:
        convolution: auto (on a CPU by Fourier transforms where that is faster) or direct (always torch's own).
    """

    convolution: Literal["auto", "direct"] = "auto"


Factory = Callable[[Values, tuple[int, ...], int], Any]
"""A torch module from the flags, the shape of an input and the number of classes."""


def _network(factory: Factory) -> Build:
    """Builds a problem of what `factory` makes."""

    def build(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
        from zofl_mpi.problems.network import Network, seeded  # imports torch

        federation = part_of(Samples, values).federation(world, streams)
        shape, classes = shape_of(federation), federation.server.classes
        module = seeded(lambda: factory(values, shape, classes), streams(Purpose.MODULE))
        problem = Network(
            module,
            shape,
            classes,
            federation.weights,
            dtype=np.dtype(dtype),
            device=device,
            convolution=values.get("convolution", "auto"),
            **terms_of(values),
        )
        setting = of_federation(problem, streams, federation, dtype)
        return replace(setting, fingerprint=f"{setting.fingerprint}, {fingerprint_of(module)}")

    return build


def fingerprint_of(module: Any) -> str:
    """Tells networks apart by their layers and their values as they were made: the same on every rank, or refused."""
    values = b"".join(value.detach().cpu().numpy().tobytes() for value in module.state_dict().values())
    return f"network crc32 {zlib.crc32(repr(module).encode() + values):08x}"


def shape_of(federation: Federation) -> tuple[int, ...]:
    """(channels, height, width) where the inputs are square images, else (features,)."""
    try:
        return features.image_shape(federation.server.features, federation.channels)
    except UserError:
        return (federation.server.features,)


def _mlp(values: Values, shape: tuple[int, ...], classes: int) -> Any:
    from zofl_mpi.problems.models import MLP

    return MLP(math.prod(shape), classes, values["hidden"])


def _cnn(values: Values, shape: tuple[int, ...], classes: int) -> Any:
    from zofl_mpi.problems.models import CNN

    if len(shape) != 3:
        raise UserError(f"--problem cnn: inputs of {shape[0]} numbers are no square images; take mlp or softmax")
    return CNN((shape[0], shape[1], shape[2]), classes)


def own_problem(name: str, cls: type[Any], samples: type[Any] = Samples) -> Choice:
    """A user's own class, --problem module:Class, as a problem.

    Either a torch module, which is called with the shape of an input, (channels, height, width) or (features,), and the
    number of classes. Or a dataclass with a field `federation` (`zofl_mpi.data.Federation`: who holds which samples);
    its other fields are flags, its docstring's "Attributes:" their help, and what it offers are the protocols whose
    functions it has.

    Raises:
        UserError: it is no such class.
    """
    if any(base.__name__ == "Module" and base.__module__.startswith("torch.nn") for base in cls.__mro__):
        groups = {"data": samples, "problem": ConvolutionModel}
        return Choice(groups, _network(partial(_own_module, name, cls)), NETWORK, gpu=True)
    if not is_dataclass(cls) or "federation" not in (f.name for f in fields(cls)):
        raise UserError(
            f"--problem {name}: {cls.__name__} must be a torch module, or a dataclass with a field named federation "
            "(its data)"
        )
    has = {f.name for f in fields(cls)} | set(dir(cls))
    protocols = (Hierarchical, Smooth, Lipschitz, Bilevel)
    lacking = {p.__name__: [part for part in parts_of(p) if part not in has] for p in protocols}
    roles: dict[str, Groups] = {role: {} for role, missing in lacking.items() if not missing}
    if not roles:
        told = "; ".join(f"a {role} problem lacks {', '.join(missing)}" for role, missing in lacking.items())
        raise UserError(f"--problem {name}: {cls.__name__} is no problem: {told}")

    def build(values: Values, world: World, streams: Streams, dtype: str, device: str) -> Setting:
        federation = part_of(Samples, values).federation(world, streams, classifies=False)
        return of_federation(made(cls, values, federation=federation), streams, federation, dtype)

    return Choice({"data": samples, "problem": cls}, build, roles)


def _own_module(name: str, cls: type[Any], values: Values, shape: tuple[int, ...], classes: int) -> Any:
    try:
        return cls(shape, classes)
    except Exception as exc:  # the user's code
        raise UserError(
            f"--problem {name}: {cls.__name__}({shape}, {classes}) failed: {type(exc).__name__}: {exc}"
        ) from exc


NETWORK: Mapping[str, Groups] = {**BOTH, "Lipschitz": {}}
MLP = Choice({"data": Samples, "problem": MLPModel}, _network(_mlp), NETWORK, gpu=True)
CNN = Choice({"data": Samples, "problem": ConvolutionModel}, _network(_cnn), NETWORK, gpu=True)
