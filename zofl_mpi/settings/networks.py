"""Torch modules as problems: `TorchProblem`, the MLP, the CNN, and the user's classes, modules and problems."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from zofl_mpi.data import Federation, features
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems.split_images import demand_images
from zofl_mpi.run.command.family import Choice, Site
from zofl_mpi.run.command.flags import Groups
from zofl_mpi.settings.calls import Constructor, flag_group, is_module_class
from zofl_mpi.settings.given import GIVEN, HIERARCHY, base_of, given_to, lacking, on_samples, terms_of
from zofl_mpi.settings.samples import Samples, setting_on

if TYPE_CHECKING:
    from torch import nn

    from zofl_mpi.problems.network import Network

ROLES: Mapping[str, Groups] = {"Hierarchical": HIERARCHY, "Smooth": {}, "Lipschitz": {}}
"""Roles of `Network`; listed here, since its file imports torch."""
Factory = Callable[[Site, tuple[int, ...], int], "nn.Module"]
"""Torch module from flags, input shape and number of classes."""
EXAMPLES = 8
"""Client samples for a trial of module and loss before a run."""


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
    """Flags for computing a network's local steps.

    Attributes:
        kernel: code of the local steps: serial (one client after another), torch (many clients at once, on --device),
            auto (torch on a GPU, if the module allows it).
        client_memory: activations held for a backward pass: none (all of them); checkpoint (the inputs of each layer
            with parameters; the layer and those that follow are recomputed); accumulate:PARTS (one part of the
            mini-batch at a time; the parts' gradients add up to the same, to rounding).
    """

    kernel: Literal["auto", "serial", "torch"] = "auto"
    client_memory: str = "none"


@final
@dataclass(frozen=True)
class TorchProblem:
    """A problem from a torch module and a loss, on any data.

        net = TorchProblem(lambda width=16: Net(width), nn.BCEWithLogitsLoss(), metrics={"macro_f1": f1})

    `net(width=32)` is a copy with another width. x is the flat vector of the module's trainable parameters.

    Attributes:
        module: a torch module, or a class or function that creates one. Its arguments `shape` (of an input) and
            `classes` come from the data; arguments with a number, a text or a tuple of these as default are flags.
        loss: a torch loss, or a function (outputs (B, ...), targets (B, ...)) -> scalar tensor, a mean over samples;
            None: cross-entropy.
        metrics: {name: function (outputs (N, ...), targets (N, ...)) -> number}: columns test_NAME, validation_NAME
            and, for personal models, personal_NAME. Accuracy is automatic with cross-entropy on classes.
        augment: function (inputs, generator) -> inputs of the same shape, in training steps only; it must draw from
            that NumPy generator.
        weight: function (inputs, targets) -> (B,) factors of the samples' losses.
        bound: {argument of the module: value}.
    """

    module: Any
    loss: Any = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    augment: Callable[..., Any] | None = None
    weight: Callable[..., Any] | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **arguments: Any) -> TorchProblem:
        """A copy with these arguments of the module; UserError for an unknown argument."""
        return replace(self, bound=self._constructor.bind(arguments).bound)

    def choice(self, samples: type[Any] = Samples) -> Choice:
        """The problem for a run; `samples` are the flags of data that are not in memory."""
        make = self._constructor
        return network_on(lambda site, *sizes: make(site.values, *sizes), flag_group([make]), samples, self)

    @property
    def _constructor(self) -> Constructor:
        return Constructor(self.module, self.bound)


CLASSIFIER = TorchProblem(None)


def network_on(
    factory: Factory, flags: type[Any] | None = None, samples: type[Any] = Samples, given: TorchProblem = CLASSIFIER
) -> Choice:
    """A torch module as a problem with the loss, metrics and so on of `given`; flags of module and data set."""
    own = {"problem": flags} if flags else {}
    return Choice({"data": samples, **own, "local steps": Kernel}, partial(_setting, factory, given), ROLES, gpu=True)


def _setting(factory: Factory, given: TorchProblem, site: Site) -> Setting[Network]:
    from zofl_mpi.problems.network import Network, seeded  # imports torch

    federation = site.samples(Samples, classifies=given.loss is None)
    shape, classes, dtype = shape_of(federation), federation.test.classes, np.dtype(site.dtype)
    module = seeded(lambda: factory(site, shape, classes), site.streams(Purpose.MODULE))
    steps = site.group(Kernel)
    problem = Network(
        module,
        shape,
        classes,
        site.device,
        steps.kernel,
        steps.client_memory,
        examples=examples_of(federation, dtype),
        loss_function=given.loss,
        metrics=given.metrics,
        weight=given.weight,
        augment=given.augment,
        streams=site.streams,
        weights=federation.weights,
        terms=terms_of(site),
        dtype=dtype,
    )
    problem.check_metrics(federation.test)
    return setting_on(site, problem, federation, ", ".join([fingerprint_of(module), *_names(given)]))


def examples_of(federation: Federation, dtype: Any) -> tuple[Any, Any]:
    """Inputs (k, p) and targets (k, ...) of the first client's samples."""
    first = federation.clients[0]
    some = np.linspace(0, len(first) - 1, min(EXAMPLES, len(first))).astype(np.int64)
    return first.take(some, dtype)[0], first.answers(some, dtype)


def _names(given: TorchProblem) -> list[str]:
    """Properties of a problem, beside its module, that determine its steps; the same text on every rank."""
    from zofl_mpi.problems.objective import called

    own = {"loss": given.loss, "augment": given.augment, "weight": given.weight}
    return [f"{name} {called(value)}" for name, value in own.items() if value is not None]


def fingerprint_of(module: nn.Module) -> str:
    """Checksum of a network's layers and initial values, which must agree on all ranks."""
    checksum = zlib.crc32(repr(module).encode())
    for value in module.state_dict().values():  # one after another: a language model is large
        checksum = zlib.crc32(value.detach().cpu().contiguous().numpy().reshape(-1).view(np.uint8), checksum)
    return f"network crc32 {checksum:08x}"


def shape_of(federation: Federation) -> tuple[int, ...]:
    """Input shape from the data; else (channels, height, width) of a square image, or (features,)."""
    if federation.shape:
        return federation.shape
    try:
        return features.image_shape(federation.server.features, federation.channels)
    except UserError:
        return (federation.server.features,)


def _mlp(site: Site, shape: tuple[int, ...], classes: int) -> nn.Module:
    from zofl_mpi.problems.models import MLP

    return MLP(math.prod(shape), classes, site.group(Widths).hidden)


def _cnn(site: Site, shape: tuple[int, ...], classes: int) -> nn.Module:
    from zofl_mpi.problems.models import CNN

    demand_images(shape, "cnn")
    return CNN((shape[0], shape[1], shape[2]), classes)


def own_problem(name: str, cls: Any, samples: type[Any] = Samples) -> Choice:
    """The user's own class, --problem module:Class, as a problem (UserError: unsuitable class).

    Accepted: a torch module with arguments as for `TorchProblem.module`; a `TorchProblem`; or a dataclass that inherits
    `zofl_mpi.Problem` or `BilevelProblem`, with a field `federation` (`zofl_mpi.Federation`) or injected fields
    (`settings.given.GIVEN`). Its other fields are flags; it offers the roles whose members it has.
    """
    if isinstance(cls, TorchProblem):
        return cls.choice(samples)
    if is_module_class(cls):
        return TorchProblem(cls).choice(samples)
    called = name.partition(":")[2]
    if not isinstance(cls, type) or not is_dataclass(cls) or not given_to(cls):
        allowed = "a torch module, or a dataclass with a field named federation (its data)"
        raise UserError(f"--problem {name}: {called} must be {allowed}")
    unknown = [field for field in given_to(cls) if field not in GIVEN]
    if unknown:
        fault = f"the run cannot give {cls.__name__} the field {unknown[0]}"
        raise UserError(f"--problem {name}: {fault}; it gives {', '.join(GIVEN)}")
    base = base_of(cls)
    if base not in cls.__mro__:
        fault = f"{called} is no problem, it lacks the base class, as in class {cls.__name__}(zofl_mpi.{base.__name__})"
        raise UserError(f"--problem {name}: {fault}")
    return replace(on_samples(cls, samples, classifies=False), lacks=lacking(cls))


MLP = network_on(_mlp, Widths)
CNN = network_on(_cnn)
