"""The split networks that a command line can name. All data are the clients' here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, mistake
from zofl_mpi.problems import Split
from zofl_mpi.problems.split_images import ConvNet, ResNet, SplitMLP
from zofl_mpi.run.family import Choice, Site
from zofl_mpi.run.flags import Groups
from zofl_mpi.settings import split_lm
from zofl_mpi.settings.adaptation import Adaptation
from zofl_mpi.settings.networks import fingerprint_of, first_samples, shape_of
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
        tf32: on a GPU, products of float32 as TF32: 10 bits of each factor, several times as fast.
    """

    bf16: bool = False
    tf32: bool = False


def _setting(factory: Factory, same: Sequence[type[Any]], site: Site) -> Setting[Any]:
    from zofl_mpi.problems.network import seeded  # imports torch
    from zofl_mpi.problems.split import SplitNetwork

    federation, adaptation = site.samples(Samples), site.group(Adaptation)
    shape, classes = shape_of(federation), federation.test.classes
    sensors = adaptation.sensors(site, shape)
    parts = seeded(lambda: factory(site, shape, classes), site.streams(Purpose.MODULE))
    adaptation.fill(site, same, parts)
    adaptation.choose(parts[0])
    fingerprint = ", ".join(map(fingerprint_of, parts))  # before the problem takes their values over
    own: dict[str, Any] = {name: bool(site.values.get(name, False)) for name in ("bf16", "tf32")}
    own["examples"] = first_samples(federation, site.dtype)
    problem: Split = SplitNetwork(*parts, shape, classes, sensors, dtype=site.dtype, device=site.device, **own)
    return setting_on(site, problem, federation, fingerprint)


def _network(cls: type[Any]) -> Choice:
    """A built-in network, whose dataclass has its flags and makes its three parts."""
    groups: Groups = {"data": ClientSamples, "problem": cls, "precision": Precision, "adaptation": Adaptation}
    setting = partial(_setting, lambda site, *sizes: site.group(cls).parts(*sizes), (ClientSamples, cls))
    return Choice(groups, setting, {"Split": {}}, gpu=True)


def own_split(name: str, cls: type[Any]) -> Choice:
    """A user's own network in parts, --problem module:Class.

    The class is called with the shape of an input, (channels, height, width) or (features,), and the number of classes;
    its instance has the attributes client, auxiliary and server, three torch modules.
    """
    groups: Groups = {"data": ClientSamples, "adaptation": Adaptation}
    return Choice(groups, partial(_setting, partial(_own, name, cls), (ClientSamples,)), {"Split": {}}, gpu=True)


def _own(name: str, cls: type[Any], site: Site, shape: tuple[int, ...], classes: int) -> tuple[Any, Any, Any]:
    from torch import nn

    try:
        found = cls(shape, classes)
        parts = {part: getattr(found, part) for part in ("client", "auxiliary", "server")}
    except Exception as exc:  # the user's code
        needed = "client, auxiliary and server"
        raise UserError(
            f"--problem {name}: {cls.__name__}({shape}, {classes}) must have {needed}: {mistake(exc)}"
        ) from exc
    for part, module in parts.items():
        which = f"--problem {name}: the {part} part"
        if not isinstance(module, nn.Module):
            raise UserError(f"{which} is a {type(module).__name__}; it must be a torch module")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
            raise UserError(f"{which} has lazy modules: give each its sizes")
    return parts["client"], parts["auxiliary"], parts["server"]


PROBLEMS = {
    "split_cnn": _network(ConvNet),
    "split_resnet": _network(ResNet),
    "split_mlp": _network(SplitMLP),
    "split_lm": Choice({"data": Texts, "problem": LM}, split_lm.build, {"Split": {}}, gpu=True),
}
