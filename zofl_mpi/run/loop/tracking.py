"""TensorBoard files of a run: a callback in Python, --track on the command line."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, final

from zofl_mpi.errors import UserError
from zofl_mpi.paths import user_path


@final
class TensorBoard:
    """Writes a run's columns as scalars for TensorBoard; a continued run replaces earlier values of its rounds."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """`folder`: the argument of `tensorboard --logdir`; one per run."""
        library("tensorboard", "TensorBoard")
        self._make = library("torch.utils.tensorboard", "TensorBoard", "tensorboard").SummaryWriter
        self.folder = os.fspath(folder)
        self._writer: Any = None

    def on_round(self, run: Any, row: Mapping[str, float]) -> None:
        """Write the round's columns to the file; UserError if that fails."""
        r = int(row["round"])
        with self._writing():
            if self._writer is None:
                self._writer = self._make(self.folder, purge_step=r)
            for name, value in row.items():
                if name != "round" and not math.isnan(value):
                    self._writer.add_scalar(name, value, r)
            self._writer.flush()

    def on_end(self, run: Any) -> None:
        """Close the file, however the run ended; UserError if that fails."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with self._writing():
                writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the file into a message."""
        try:
            yield
        except OSError as exc:
            raise UserError(f"TensorBoard: {self.folder} cannot be written: {exc.strerror or exc}") from exc


def tracker(track: str, result: Path | None) -> TensorBoard | None:
    """The tracker for --track; None if unused (UserError: invalid).

    `result`: the file beside which the default folder lies; None: only check.
    """
    if not track:
        return None
    name, _, folder = track.partition(":")
    if name != "tensorboard" or track.endswith(":"):
        raise UserError(f"--track {track}: must be tensorboard or tensorboard:FOLDER")
    named = user_path(folder, "--track") if folder else None
    if named is not None and named.exists() and not named.is_dir():
        raise UserError(f"--track {track}: {named} is a file; name a folder")
    return TensorBoard(named or (Path("tensorboard") if result is None else result.with_suffix(".tensorboard")))


def library(module: str, who: str, extra: str = "") -> Any:
    """Import a library of an extra; UserError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as exc:
        extra = extra or module
        raise UserError(f"{who} needs {extra}, which is not installed: pip install 'zofl_mpi[{extra}]'") from exc
