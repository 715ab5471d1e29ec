"""The model of a finished result of split_lm as a folder of `transformers`, which --model takes.

    python analysis/export.py results/pretrain.h5 models/tiny

LoRA is added into the weights; with --adapter it is written alone, as peft loads it onto the model of the run. After
--train all the unembedding is a matrix of its own, and the folder's config.json says so (tie_word_embeddings). It also
says on which texts the model was trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.restore import OWN, setting_of

from zofl_mpi.errors import UserError, refused
from zofl_mpi.run import records
from zofl_mpi.settings.split_lm import TRAINED_ON

FAMILY = "zofl_mpi.heron_sfl"


def model_of(result: Path, data_dir: str | None = None, own: Sequence[str] = ()) -> tuple[records.Run, Any]:
    """A finished result, and its last model: the complete one of transformers, LoRA added in.

    Raises:
        UserError: as `last_of`.
    """
    run, problem, vectors = last_of(result, data_dir, own)
    return run, problem.joined(*vectors)


def last_of(result: Path, data_dir: str | None, own: Sequence[str]) -> tuple[records.Run, Any, tuple[Any, Any]]:
    """A finished result, its problem, and the last theta and theta_s.

    Raises:
        UserError: the result is not finished or of another problem, it has diverged, or its data are no longer those.
    """
    import torch

    run = records.load(result)
    if run.config.get("problem") != "split_lm":
        raise UserError(f"{result} is no result of --problem split_lm")
    if "theta_s" not in run.final:
        raise UserError(f"{result} holds no last model: the run is not finished (--resume {result} continues it)")
    setting, method = setting_of(run, FAMILY, own=own, data_dir=data_dir)
    state = method.start()
    theta, theta_s = (torch.from_numpy(run.final[key]).to(state.theta) for key in ("theta", "theta_s"))
    if not (bool(theta.isfinite().all()) and bool(theta_s.isfinite().all())):
        raise UserError(f"{result}: its last model has diverged, it is not finite")
    return run, setting.problem, (theta, theta_s)


def export(
    result: Path, folder: Path, data_dir: str | None = None, own: Sequence[str] = (), adapter: bool = False
) -> None:
    """Writes the last model of a result into a new folder, or its LoRA alone.

    Raises:
        UserError: as `last_of`; or the folder is there already, or cannot be made; or there is no LoRA, or none to add
            it to again.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: name another folder")
    run, problem, vectors = last_of(result, data_dir, own)
    base = run.config["model"]
    if adapter and (run.config["train"] != "lora" or base.startswith("random:")):
        trained = f"--train {run.config['train']} of --model {base}"
        raise UserError(f"--adapter: {result} has {trained}, no LoRA of a stored model; export the whole model")
    try:
        if adapter:
            return problem.save_adapter(*vectors, folder, base)  # type: ignore[no-any-return]
        model = problem.joined(*vectors)
        model.config.trained_on = {name: run.config[name] for name in TRAINED_ON}
        model.save_pretrained(folder)
    except OSError as exc:
        raise UserError(f"{folder} cannot be written ({exc.strerror or exc})") from exc


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, or 2 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="export", description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="a finished result of --problem split_lm")
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    parser.add_argument("--data-dir", help="the folder with the data set's files")
    parser.add_argument("--adapter", action="store_true", help="write LoRA alone, as peft's adapter")
    parser.add_argument("--own", action="append", default=[], metavar="NAME", help=OWN)
    given = parser.parse_args(arguments)
    try:
        export(given.result, given.folder, given.data_dir, given.own, given.adapter)
    except UserError as error:
        return refused(error)
    print(f"{given.folder} holds the model of {given.result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
