"""What a result was made with, made again: its data, its problem, its method."""

from __future__ import annotations

from typing import Any

from zofl_mpi.engine import device
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError
from zofl_mpi.run import cli, flags, plan, records
from zofl_mpi.run.family import family_of


def setting_of(run: records.Run, family: str, where: str = "cpu", **other: Any) -> tuple[Setting[Any], Any]:
    """The setting of a result, made anew from its configuration in one process, and its method.

    Args:
        family: the module that it was run with, such as zofl_mpi.heron_sfl.
        where: the device.
        other: flags that shall have other values than the run's, where it has them; None leaves a flag as it was.

    Raises:
        UserError: its configuration is not understood, or data or network are no longer those.
    """
    module = family_of(family)
    config = flags.current(run.config) | {"device": where}
    config |= {name: value for name, value in other.items() if value is not None and name in run.config}
    groups = plan.groups_of(module, config["method"], config["problem"])
    words = flags.to_arguments(config, flags.flags_of(groups), str(run.path))
    understood = plan.understand(module, words)
    setting = cli.build_setting(SingleProcess(), module, understood, device.select(where))
    if setting.fingerprint != run.attrs.get("data"):
        told = f"({run.attrs.get('data')} then, {setting.fingerprint} now)"
        raise UserError(f"{run.path}: data or network are not those that the run was made with {told}")
    return setting, flags.made(plan.method_of(module, config["method"]), understood.values, setting=setting)
