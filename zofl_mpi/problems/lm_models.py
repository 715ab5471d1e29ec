"""Causal language models of `transformers`: read from a folder, or made with random weights.

An activation that `transformers` computes by six operations is one here, the same but for rounding, which keeps one map
for a backward pass: six would flatter the memory of methods without one. Dropout is off: the passes of a zeroth-order
estimate must see one function.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

from zofl_mpi.errors import UserError, demand
from zofl_mpi.paths import user_path
from zofl_mpi.problems.adapters import missing

SIZES = {
    "tiny": {"n_layer": 4, "n_embd": 192, "n_head": 6, "n_positions": 256},
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024},
    "medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "n_positions": 1024},
}
"""GPT-2s with random weights; small and medium are its own sizes."""
ALLOWED = f"{', '.join(f'random:{name}' for name in SIZES)}, random:FOLDER, a folder, or a name on the hub as gpt2"
LOCK = Lock()


def random_config(name: str) -> Any:
    """The configuration of one of `SIZES`, or of a folder with a config.json; a UserError for others."""
    transformers, place = _transformers(), user_path(name, "--model random:")
    if name in SIZES:
        return _without_dropout(transformers.GPT2Config(**SIZES[name]))
    demand(os.path.isdir(place), "model", f"random:{name}", ALLOWED)
    with _reading(f"random:{name}", True):
        return _without_dropout(transformers.AutoConfig.from_pretrained(str(place), local_files_only=True))


def random_model(config: Any, vocabulary: int, end: int) -> Any:
    """A model of this configuration with random weights, drawn by torch's generator, of `vocabulary` tokens, of which
    `end` ends a text.
    """
    config.vocab_size, config.bos_token_id, config.eos_token_id, config.pad_token_id = vocabulary, end, end, None
    return _one_operation(_transformers().AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def stored_model(name: str) -> Any:
    """The causal model of a folder, or of a name on the hub, in float32 (UserError: none that can be read).

    Weights that are stored in float32 stay where the file is mapped; see `frozen.once_a_node`.
    """
    place = user_path(name, "--model")
    folder = os.path.isdir(place)  # Path.is_dir raises for a name that is too long
    if not folder and (place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise UserError(f"--model {name}: there is no such folder; allowed are {ALLOWED}")
    transformers, where = _transformers(), str(place) if folder else name
    with _reading(name, folder), LOCK:  # meanwhile transformers replaces functions of its own, for all threads
        config = _without_dropout(transformers.AutoConfig.from_pretrained(where, local_files_only=folder))
        own: dict[str, Any] = {"config": config, "local_files_only": folder, "dtype": torch.float32}
        return _one_operation(transformers.AutoModelForCausalLM.from_pretrained(where, **own))


def context_of(config: Any) -> int | None:
    """Number of tokens that a model of this configuration looks at; None where it has no bound."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


@contextmanager
def _reading(name: str, folder: bool) -> Iterator[None]:
    """Context manager: turns the exceptions of three libraries that read a folder or the hub into a UserError."""
    try:
        yield
    except Exception as exc:  # no file, no network, a damaged file, other shapes, no causal model
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        if folder:
            fault = f"--model {name}: the folder holds no causal language model that transformers reads"
            raise UserError(f"{fault}: {reason}") from exc
        raise UserError(
            f"--model {name}: no such folder, and the hub does not give it ({reason}); where there is a network, "
            f"`hf download {name} --local-dir FOLDER` makes a folder to give here"
        ) from exc


def _transformers() -> Any:
    """The package, whose import takes seconds; a UserError where it is not installed."""
    try:
        import transformers
        from huggingface_hub.utils import logging as of_hub
        from transformers.utils import logging
    except ModuleNotFoundError as exc:
        raise missing(exc) from exc
    said: tuple[Any, Any] = logging, of_hub
    said[0].disable_progress_bar()
    said[1].set_verbosity_error()  # each of its retries without a network is a warning; the last is refused above
    return transformers


def _without_dropout(config: Any) -> Any:
    """The configuration, all of its probabilities of leaving something out 0."""
    for each in (config, config.get_text_config()):
        for name, value in each.to_dict().items():
            if isinstance(value, float) and "drop" in name:
                setattr(each, name, 0.0)
    return config


def _one_operation(model: Any) -> Any:
    """The model, its GELU by tanh a single operation."""
    from transformers.activations import ACT2FN

    slow, fast = type(ACT2FN["gelu_new"]), ACT2FN["gelu_pytorch_tanh"]
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is slow:
                setattr(module, name, copy.copy(fast))
    return model.eval()
