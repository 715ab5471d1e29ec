"""Builds the data, the problem and the method of a result again, from the configuration in its file."""

from collections.abc import Sequence
from typing import Any

from zofl_mpi.engine import device
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.errors import UserError
from zofl_mpi.report.facts import resumed_by
from zofl_mpi.run import records
from zofl_mpi.run.command import build, flags, plan, stored
from zofl_mpi.run.command.family import family_of

OWN: dict[str, Any] = {
    "action": "append",
    "default": [],
    "metavar": "NAME",
    "help": "a class (module:Class), file or folder of your own that a result names; used only if named here",
}
"""A script's flag --own, as argparse takes it."""


def setting_of(
    run: records.Run, family: str, where: str = "cpu", own: Sequence[str] = (), **other: Any
) -> tuple[Setting[Any], Any]:
    """The setting of a result, made anew from its configuration in one process, and its method.

    Args:
        family: the module that it was run with, such as zofl_mpi.heron_sfl.
        where: the device.
        own: classes, files and folders of the caller's own; of others a result's are not used.
        other: flags that shall have other values than the run's, where it has them; None leaves a flag as it was.

    Raises:
        UserError: its configuration is not understood, it names something of somebody's own that is not in `own`, or
            data or network are no longer those.
    """
    module = family_of(family)
    given = {name: value for name, value in other.items() if value is not None and name in run.config}
    named = given | {name: run.config[name] for name in run.config if str(run.config[name]) in own}
    config = stored.safe_config(run.config, named, str(run.path), "--own") | {"device": where} | given
    groups = plan.groups_of(module, config["method"], config["problem"])
    known = flags.flags_of(groups)
    words = flags.to_arguments(config, known, str(run.path))
    understood = plan.parse_plan(module, words)
    setting = build.build_setting(SingleProcess(), module, understood, device.select(where))
    if setting.fingerprint != run.attrs.get("data"):
        told = f"({run.attrs.get('data')} then, {setting.fingerprint} now)"
        raise UserError(f"{run.path}: data or network are not those that the run was made with {told}")
    return setting, flags.instantiate(plan.method_of(module, config["method"]), understood.values, setting=setting)


def unfinished(run: records.Run) -> UserError:
    """The refusal of a result without a last model, with the command that continues it, if one does."""
    more = f"; this continues it: {command}" if (command := resumed_by(run)) else ""
    return UserError(f"{run.path} holds no last model: the run is not finished{more}")
