"""Adaptation of a pretrained network by clients with different sensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from zofl_mpi.engine.lazy import torch
from zofl_mpi.errors import UserError
from zofl_mpi.paths import user_path
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.family import Site
from zofl_mpi.settings.samples import Samples

if TYPE_CHECKING:
    from torch import Tensor, nn

DIVISION = {"m", "alpha", "partition", "min_samples", "data_dir"}
"""Flags of the data that may differ from the pretraining run: they do not change the held-out samples."""


@final
@dataclass(frozen=True)
class Adaptation:
    """Sensor shift of the clients, and trained parameters of a pretrained network.

    Attributes:
        shift: sensors, assigned to clients in turn, through which they see training and evaluation samples: clean,
            invert, gain, tint, contrast or blur; formulas in `problems/sensors.py`.
        pretrained: result file (.h5) of an earlier run; its last model is the initial one. Default: random weights.
        trainable: trained part of the client's network, which also travels: all, norm (scales and shifts of
            normalisations) or first (the first module with parameters); the rest is frozen.
    """

    shift: tuple[Literal["clean", "invert", "gain", "tint", "contrast", "blur"], ...] = ("clean",)
    pretrained: str = ""
    trainable: Literal["all", "norm", "first"] = "all"

    def sensors(self, site: Site, shape: Sequence[int]) -> tuple[str, ...]:
        """Sensors for inputs of this shape; () if all are clean. UserError: no images with pixels in [0, 1]."""
        if set(self.shift) == {"clean"}:
            return ()
        name = f"--shift {' '.join(self.shift)}"
        if site.federation is not None:
            raise UserError(f"{name} applies to images of a data set, not to data in memory; transform these yourself")
        samples = site.group(Samples)
        if samples.data == "synthetic" or (len(shape) != 3 and samples.features == "all"):
            columns = math.prod(shape)  # networks see square synthetic inputs as images, but these have no pixels
            raise UserError(f"{name}: sensors see images, and --data {samples.data} is a table of {columns} columns")
        if samples.features != "all" or samples.pixels != "unit":
            raise UserError(f"{name}: sensors see images with pixels in [0, 1]; take --pixels unit and --features all")
        if "tint" in self.shift and shape[0] != 3:
            raise UserError(f"{name}: images of {shape[0]} channel cannot be tinted; take other sensors")
        return self.shift

    def fill(self, site: Site, groups: Sequence[type[Any]], parts: Sequence[nn.Module]) -> None:
        """Set the client's, auxiliary and server part to the pretrained model, if there is one.

        `groups` are the dataclasses of the flags of data and network. UserError: the result has no last model, another
        network, or other test and validation samples.
        """
        if not self.pretrained:
            return
        if site.federation is not None:
            raise UserError("--pretrained compares data sets by their flags; with data in memory give your own module")
        from zofl_mpi.run import records  # HDF5

        path = user_path(self.pretrained, "--pretrained")
        name, run = f"--pretrained {self.pretrained}", records.load(path)
        same = {f.name for group in groups for f in fields(group)} - DIVISION
        now = {flag: site.values[flag] for flag in sorted(same & site.values.keys())} | {"seed": site.streams.seed}
        other = [flag for flag in now if flags.shown(run.config.get(flag)) != flags.shown(now[flag])]
        if other:
            differing = flags.changes(other, run.config, now)
            raise UserError(f"{name}: network and held-out samples must be those of that run: {differing}")
        held = np.size(run.final.get("theta", []))
        headless = held == sum(p.numel() for p in parts[0].parameters())  # a method without heads
        for modules, suffix in ((parts[:2], ""), (parts[2:], "_s")):
            parameters = [p for module in modules[: 1 if headless else 2] for p in module.parameters()]
            statistics = [b for module in modules for b in module.buffers() if b.is_floating_point()]
            _copy(name, run.final, f"theta{suffix}", parameters)
            _copy(name, run.final, f"buffers{suffix}", statistics)

    def choose(self, client: nn.Module) -> None:
        """Freeze the client's untrained parameters; UserError if none would train."""
        from zofl_mpi.problems.layers import first_module, normalisations

        if self.trainable == "all":
            return
        chosen = first_module(client) if self.trainable == "first" else normalisations(client)
        if not chosen:
            raise UserError(f"--trainable {self.trainable}: the client's part has no such parameters; take all")
        for p in client.parameters():
            p.requires_grad_(any(p is own for own in chosen))


def _copy(name: str, final: Mapping[str, Any], field: str, tensors: Sequence[Tensor]) -> None:
    """Copy a vector of the pretrained model into tensors of the network."""
    found, sizes = np.asarray(final.get(field, [])), [t.numel() for t in tensors]
    if found.shape != (size := sum(sizes),) or not np.isfinite(found).all():
        held = "numbers that are not finite" if found.shape == (size,) else f"{found.size} numbers"
        raise UserError(f"{name}: its last model has {held} in {field}, this network takes {size}; name a finished run")
    with torch.no_grad():
        for t, part in zip(tensors, torch.from_numpy(found).split_with_sizes(sizes), strict=True):
            t.copy_(part.view(t.shape))
