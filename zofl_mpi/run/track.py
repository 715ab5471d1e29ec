"""--track: what writes a run's columns elsewhere while it goes on."""

import math
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Protocol, final

from zofl_mpi.errors import UserError


class Run(Protocol):
    """What a callback sees of a run, from Python or from the command line."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """The resolved configuration, {flag: value}."""

    def stop(self, reason: str) -> None:
        """Ends the run after the round whose row was just given."""


@final
class TensorBoard:
    """Writes all columns as TensorBoard's scalars; `tensorboard --logdir FOLDER` shows them. Needs torch."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = folder

    def on_start(self, run: Run) -> None:
        """Opens the folder's event file (UserError: tensorboard or torch is not installed)."""
        _check_installed()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(os.fspath(self._folder))
        self._writer.add_text("plan", "\n".join(f"    {k} = {v}" for k, v in run.plan.items()))

    def on_round(self, run: Run, row: Mapping[str, float]) -> None:
        """Writes a row; the step is the round."""
        for name, value in row.items():
            if name != "round" and not math.isnan(value):
                self._writer.add_scalar(name, value, int(row["round"]))

    def on_end(self, run: Run) -> None:
        """Closes the file."""
        self._writer.close()


def tracked(text: str) -> TensorBoard | None:
    """What --track names: tensorboard or tensorboard:FOLDER; None for "" (UserError: anything else)."""
    name, _, folder = text.partition(":")
    if not text:
        return None
    if name != "tensorboard":
        raise UserError(f"--track {text}: must be tensorboard, or tensorboard:FOLDER")
    _check_installed()
    return TensorBoard(folder or "runs")


def _check_installed() -> None:
    for name in ("torch", "tensorboard"):
        if find_spec(name) is None:
            raise UserError(f"TensorBoard needs {name}: pip install 'zofl_mpi[torch,tensorboard]'")
