"""The model of a finished result of split_gpt2 as a folder of `transformers`, which --model takes.

    python analysis/export.py results/pretrain.h5 models/tiny

LoRA is added into the weights. After --train all the unembedding is a matrix of its own, and the folder's config.json
says so (tie_word_embeddings). It also says on which texts the model was trained.
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
from zofl_mpi.settings.split_gpt2 import TRAINED_ON

FAMILY = "zofl_mpi.heron_sfl"


def model_of(result: Path, data_dir: str | None = None, own: Sequence[str] = ()) -> tuple[records.Run, Any]:
    """A finished result, and its last model: the complete GPT2LMHeadModel of transformers, LoRA added in.

    Raises:
        UserError: the result is not finished or of another problem, it has diverged, or its data are no longer those.
    """
    import torch

    run = records.load(result)
    if run.config.get("problem") != "split_gpt2":
        raise UserError(f"{result} is no result of --problem split_gpt2")
    if "theta_s" not in run.final:
        raise UserError(f"{result} holds no last model: the run is not finished (--resume {result} continues it)")
    setting, method = setting_of(run, FAMILY, own=own, data_dir=data_dir)
    state = method.start()
    theta, theta_s = (torch.from_numpy(run.final[key]).to(state.theta) for key in ("theta", "theta_s"))
    if not (bool(theta.isfinite().all()) and bool(theta_s.isfinite().all())):
        raise UserError(f"{result}: its last model has diverged, it is not finite")
    return run, setting.problem.joined(theta, theta_s)


def export(result: Path, folder: Path, data_dir: str | None = None, own: Sequence[str] = ()) -> None:
    """Writes the last model of a result into a new folder.

    Raises:
        UserError: as `model_of`; or the folder is there already, or cannot be made.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: name another folder")
    run, model = model_of(result, data_dir, own)
    model.config.trained_on = {name: run.config[name] for name in TRAINED_ON}
    try:
        model.save_pretrained(folder)
    except OSError as exc:
        raise UserError(f"{folder} cannot be written ({exc.strerror or exc})") from exc


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, or 2 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="export", description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="a finished result of --problem split_gpt2")
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    parser.add_argument("--data-dir", help="the folder with the data set's files")
    parser.add_argument("--own", action="append", default=[], metavar="NAME", help=OWN)
    given = parser.parse_args(arguments)
    try:
        export(given.result, given.folder, given.data_dir, given.own)
    except UserError as error:
        return refused(error)
    print(f"{given.folder} holds the model of {given.result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
