"""Split networks for the command line. All data belong to the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

import numpy as np

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems.split_images import ConvNet, ResNet, SplitMLP
from zofl_mpi.run.command.family import Choice, Site
from zofl_mpi.run.command.flags import Groups
from zofl_mpi.settings import split_lm
from zofl_mpi.settings.adaptation import Adaptation
from zofl_mpi.settings.calls import Constructor, flag_group
from zofl_mpi.settings.networks import examples_of, fingerprint_of, shape_of
from zofl_mpi.settings.samples import ClientSamples, Samples, setting_on
from zofl_mpi.settings.split_lm import LM
from zofl_mpi.settings.texts import Texts

Factory = Callable[[Site, tuple[int, ...], int], tuple[Any, Any, Any]]
"""Client, auxiliary and server modules from the flags, the shape of an input and the number of classes."""


@final
@dataclass(frozen=True)
class Precision:
    """Arithmetic of a network.

    Attributes:
        bf16: compute forward passes in bfloat16; losses and their differences in float32 or better.
        tf32: on a GPU, products of float32 as TF32: 10 bits of mantissa, several times as fast.
    """

    bf16: bool = False
    tf32: bool = False


def _setting(factory: Factory, same: Sequence[type[Any]], given: SplitProblem | None, site: Site) -> Setting[Any]:
    from zofl_mpi.problems.network import seeded  # imports torch
    from zofl_mpi.problems.objective import called
    from zofl_mpi.problems.split import SplitNetwork

    loss, metrics = (given.loss, given.metrics) if given is not None else (None, {})
    federation, adaptation = site.samples(Samples, classifies=loss is None), site.group(Adaptation)
    shape, classes = shape_of(federation), federation.test.classes
    sensors = adaptation.sensors(site, shape)
    parts = seeded(lambda: factory(site, shape, classes), site.streams(Purpose.MODULE))
    adaptation.fill(site, same, parts)
    adaptation.choose(parts[0])
    named = [f"loss {called(loss)}"] if loss is not None else []
    fingerprint = ", ".join([*map(fingerprint_of, parts), *named])  # before the problem copies their values
    own: dict[str, Any] = {name: bool(site.values.get(name, False)) for name in ("bf16", "tf32")}
    own |= {"dtype": site.dtype, "device": site.device, "examples": examples_of(federation, np.dtype(site.dtype))}
    problem = SplitNetwork(*parts, shape, classes, loss, metrics, sensors=sensors, **own)
    problem.check_metrics(federation.test)
    return setting_on(site, problem, federation, fingerprint)


def _network(cls: type[Any]) -> Choice:
    """A built-in network; its dataclass has the flags and creates the three parts."""
    groups: Groups = {"data": ClientSamples, "problem": cls, "precision": Precision, "adaptation": Adaptation}
    setting = partial(_setting, lambda site, *sizes: site.group(cls).parts(*sizes), (ClientSamples, cls), None)
    return Choice(groups, setting, {"Split": {}}, gpu=True)


@final
@dataclass(frozen=True)
class SplitProblem:
    """A split network in three parts with a loss, as a problem of split learning; see `problems.Split`.

        net = SplitProblem(client, auxiliary, server, nn.MSELoss())

    Attributes:
        client: a torch module, or a class or function that creates one, as for `TorchProblem.module`. If given alone: a
            class whose instances have the attributes client, auxiliary and server.
        auxiliary: the client's head, likewise.
        server: the server's part, likewise.
        loss: loss of either output, as for `TorchProblem.loss`; None: cross-entropy.
        metrics: metrics of the server part's outputs, as for `TorchProblem.metrics`: columns test_NAME,
            validation_NAME.
        bound: {argument of a part: value}.
    """

    client: Any
    auxiliary: Any = None
    server: Any = None
    loss: Any = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    bound: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, **arguments: Any) -> SplitProblem:
        """A copy with these arguments of its parts; UserError if no part has such an argument."""
        for name, value in arguments.items():
            takers = [call for call in self._constructors() if name in call.arguments]
            (takers or self._constructors())[0].bind({name: value})
        return replace(self, bound={**self.bound, **arguments})

    def choice(self, samples: type[Any] = ClientSamples) -> Choice:
        """The problem for a run; `samples` are the flags of data that are not in memory."""
        flags = flag_group(self._constructors())
        groups: Groups = {"data": samples, **({"problem": flags} if flags else {}), "adaptation": Adaptation}
        same = (samples, flags) if flags else (samples,)
        return Choice(groups, partial(_setting, self._parts, same, self), {"Split": {}}, gpu=True)

    def _constructors(self) -> list[Constructor]:
        parts = [part for part in (self.client, self.auxiliary, self.server) if part is not None]
        calls = [Constructor(part) for part in parts]
        return [call.bind({k: v for k, v in self.bound.items() if k in call.arguments}) for call in calls]

    def _parts(self, site: Site, *sizes: Any) -> tuple[Any, Any, Any]:
        """Client, auxiliary and server (UserError: one is missing, or no torch module)."""
        from torch import nn

        made = [call(site.values, *sizes) for call in self._constructors()]
        name, needed = self._constructors()[0].name, "client, auxiliary and server"
        if len(made) == 1:
            try:
                made = [getattr(made[0], part) for part in ("client", "auxiliary", "server")]
            except AttributeError as exc:
                raise UserError(f"--problem {name}: an instance must have {needed}: {exc}") from exc
        if len(made) < 3:
            raise UserError(f"a SplitProblem has {needed}, or a class alone whose instances have these")
        for part, module in zip(("client", "auxiliary", "server"), made, strict=True):
            which = f"--problem {name}: the {part} part"
            if not isinstance(module, nn.Module):
                raise UserError(f"{which} is a {type(module).__name__}; it must be a torch module")
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
                raise UserError(f"{which} has lazy modules: give each its sizes")
        return made[0], made[1], made[2]


def own_split(name: str, cls: Any) -> Choice:
    """The user's split network: --problem module:Class, or a `SplitProblem`."""
    return (cls if isinstance(cls, SplitProblem) else SplitProblem(cls)).choice()


PROBLEMS = {
    "split_cnn": _network(ConvNet),
    "split_resnet": _network(ResNet),
    "split_mlp": _network(SplitMLP),
    "split_lm": Choice({"data": Texts, "problem": LM}, split_lm.build, {"Split": {}}, gpu=True),
}
