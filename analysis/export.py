"""The model of a finished result of split_lm as a folder of `transformers`, which --model takes.

    python analysis/export.py results/pretrain.h5 models/tiny

LoRA is added into the weights; with --adapter it is written alone, as peft loads it onto the model of the run. After
--train all the unembedding is a matrix of its own, and the folder's config.json says so (tie_word_embeddings). It also
says on which texts the model was trained.
"""

import argparse
import copy
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.restore import OWN, setting_of, unfinished

from zofl_mpi.errors import UserError, refused
from zofl_mpi.problems.lm_files import TOKENISERS
from zofl_mpi.run import records
from zofl_mpi.settings.split_lm import TRAINED_ON

FAMILY = "zofl_mpi.heron_sfl"
TOKENISER_FILES = (*TOKENISERS, "merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json")


def model_of(result: Path, data_dir: str | None = None, own: Sequence[str] = ()) -> tuple[records.Run, Any]:
    """A finished result, and its last model: the complete one of transformers, LoRA added in.

    Raises:
        UserError: as `last_of`.
    """
    run, problem, vectors = last_of(result, data_dir, own)
    return run, problem.full_model(*vectors)


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
        raise UserError(unfinished(run))
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
            return save_adapter(problem, *vectors, folder, base)
        model = problem.full_model(*vectors)
        model.config.trained_on = {name: run.config[name] for name in TRAINED_ON}
        model.save_pretrained(folder)
        for file in TOKENISER_FILES:
            if os.path.isfile(own_tokens := Path(base.removeprefix("random:")).expanduser() / file):
                shutil.copy(own_tokens, folder)
    except OSError as exc:
        raise UserError(f"{folder} cannot be written ({exc.strerror or exc})") from exc


def save_adapter(problem: Any, theta: Any, theta_s: Any, folder: Path, base: str) -> None:
    """Writes LoRA's matrices at theta and theta_s into a new folder as an adapter of `peft` for the model `base`.

    Those of q and v of GPT-2 become one pair of twice the rank for its one layer.
    """
    import torch
    from peft import LoraConfig
    from safetensors.torch import save_file

    from zofl_mpi.problems.adapters import Projections

    tensors, targets, rank, scaling = dict[str, Any](), set[str](), 0, 1.0
    with (
        problem.client_side.bound_to(problem.to_device(theta)),
        problem.server_side.bound_to(problem.to_device(theta_s)),
    ):
        model = copy.deepcopy(problem.parts.model)
    for path, module in model.named_modules():
        whole = isinstance(module, Projections)
        if not (whole or hasattr(module, "lora_A")) or path.rpartition(".")[0] in targets:
            continue
        own = [module.q, module.v] if whole else [module]
        a, b = ([getattr(layer, name)["default"].weight.detach() for layer in own] for name in ("lora_A", "lora_B"))
        up = torch.block_diag(*b)  # type: ignore[no-untyped-call]
        if whole:  # nothing is added to the keys, which lie between
            up = torch.cat([up[: len(b[0])], torch.zeros_like(up[: len(b[0])]), up[len(b[0]) :]])
        matrices = {"lora_A": torch.cat(a), "lora_B": up}
        tensors |= {f"base_model.model.{path}.{key}.weight": value.contiguous() for key, value in matrices.items()}
        targets.add(path)
        rank, scaling = len(matrices["lora_A"]), own[0].scaling["default"]
    config = LoraConfig(
        r=rank,
        lora_alpha=scaling * rank,  # type: ignore[arg-type]  # any number will do
        target_modules=sorted(targets),
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(str(folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, or 2 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="export", description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="a finished result of --problem split_lm")
    parser.add_argument("folder", type=Path, help="a folder that is not there yet")
    parser.add_argument("--data-dir", help="the folder with the data set's files")
    parser.add_argument("--adapter", action="store_true", help="write LoRA alone, as peft's adapter")
    parser.add_argument("--own", **OWN)
    given = parser.parse_args(arguments)
    try:
        export(given.result, given.folder, given.data_dir, given.own, given.adapter)
    except UserError as error:
        return refused(error)
    print(f"{given.folder} holds the model of {given.result}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
