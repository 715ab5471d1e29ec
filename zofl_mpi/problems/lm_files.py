"""Reads untrusted model folders of `transformers` as data: runs no code, follows no names, fetches nothing."""

import json
import os
from pathlib import Path
from typing import Any

from zofl_mpi.data.bpe import Vocabulary, in_one_sentence
from zofl_mpi.errors import UserError
from zofl_mpi.paths import user_path
from zofl_mpi.problems.adapters import missing

ALLOWED = "random:tiny, random:small, random:medium, random:FOLDER, a folder, or a name on the hub as gpt2"
TOKENISERS = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json")
"""A folder with a tokeniser has one of these files."""
MOST_BLOCKS = 10_000  # a larger number would only exhaust the memory
NOT_CODE = {"trust_remote_code": False, "local_files_only": True}
"""Arguments of every call of `transformers`: no code of a folder, no prompt, no network."""


def packages() -> Any:
    """Imports `transformers`, which takes seconds (UserError: not installed)."""
    try:
        import transformers
        from huggingface_hub.utils import logging as of_hub
        from transformers.utils import logging
    except ModuleNotFoundError as exc:
        raise missing(exc) from exc
    said: tuple[Any, Any] = logging, of_hub
    said[0].disable_progress_bar()
    said[0].set_verbosity_error()  # our own messages name what is missing
    said[1].set_verbosity_error()
    return transformers


def folder_of(name: str) -> Path:
    """Folder of a model, by path or by its hub name in the hub's cache (UserError: not found, or not plain data)."""
    place = user_path(name, "--model")
    if not os.path.isdir(place):  # Path.is_dir raises for a name that is too long
        if place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise UserError(f"--model {name}: there is no such folder; allowed are {ALLOWED}")
        packages()
        from huggingface_hub import snapshot_download

        try:
            place = Path(snapshot_download(name, local_files_only=True))
        except Exception as exc:  # unknown name, or not in the cache
            raise UserError(
                f"--model {name}: no such folder, and the hub's cache on this machine has no such model; where there "
                f"is a network, `hf download {name}` fetches it, with --local-dir FOLDER into a folder to give here"
            ) from exc
    with in_one_sentence(f"--model {name}: the folder cannot be read"):
        _check(name, place)
    return place


def _check(name: str, place: Path) -> None:
    """Raises UserError for a folder that is unsafe to read.

    Pipes and devices never end; adapters name another model; pickled weights are code; shards may lie elsewhere.
    """
    files = set(os.listdir(place))
    for file in sorted(files):
        if not (os.path.isfile(place / file) or os.path.isdir(place / file)):
            raise UserError(f"--model {name}: {file!r} in it is no regular file; remove it")
    if "adapter_config.json" in files:
        advice = "merge it (merge_and_unload of peft) and save the whole model"
        raise UserError(f"--model {name}: the folder holds an adapter of another model; {advice}")
    pickled = sorted(file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickled and not any(file.endswith(".safetensors") for file in files):
        advice = "make them safetensors: from_pretrained and save_pretrained of transformers, where you trust them"
        raise UserError(f"--model {name}: its weights are pickled ({pickled[0]}), which may be code; {advice}")
    for index in sorted(file for file in files if file.endswith(".safetensors.index.json")):
        for shard in sorted(set(json.loads((place / index).read_text())["weight_map"].values())):
            if shard not in files:
                raise UserError(f"--model {name}: {index} names {shard!r}, no file in the folder; download it again")


def configuration(name: str, place: Path) -> Any:
    """Reads a folder's configuration (UserError: no causal model, quantised, or one that needs code)."""
    transformers = packages()
    with in_one_sentence(f"--model {name}: the folder holds no causal language model that transformers reads"):
        config = transformers.AutoConfig.from_pretrained(str(place), **NOT_CODE)
        text = config.get_text_config()
        for each in {id(config): config, id(text): text}.values():
            if getattr(each, "quantization_config", None):
                raise UserError(f"--model {name}: its weights are quantised; they must be floats")
        if not (type(text.vocab_size) is int and text.vocab_size > 0):
            raise UserError(f"--model {name}: its config.json has vocab_size {text.vocab_size!r}, no number of tokens")
        blocks = text.num_hidden_layers
        if not (type(blocks) is int and 0 < blocks <= MOST_BLOCKS):
            raise UserError(f"--model {name}: its config.json has {blocks!r} blocks; allowed are 1 to {MOST_BLOCKS}")
    return config


def context_of(config: Any) -> int | None:
    """Context length in tokens of a model of this configuration; None: unbounded."""
    found = (getattr(config.get_text_config(), name, None) for name in CONTEXTS)
    return next((value for value in found if type(value) is int and value > 0), None)


CONTEXTS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_sequence_length"),
    *("seq_length", "seq_len", "context_length", "max_context_length", "model_max_length"),
)
"""Configuration keys for a model's context length."""


def vocabulary_of(name: str, config: Any) -> Vocabulary | None:
    """The vocabulary of a model's own tokeniser; None if it has none. `name`: a folder or a hub name.

    Uses a tokenizer.json unchanged: a family's class may read only its words and tokenise differently.

    Raises:
        UserError: the tokeniser cannot be read, is not one of `tokenizers`, or has no end token.
    """
    place, where = folder_of(name), f"--model {name}: its tokeniser"
    if not any(os.path.isfile(place / file) for file in TOKENISERS):
        return None
    transformers = packages()
    with in_one_sentence(f"{where} cannot be read"):
        is_whole = os.path.isfile(place / "tokenizer.json")
        kind = transformers.PreTrainedTokenizerFast if is_whole else transformers.AutoTokenizer
        found = kind.from_pretrained(str(place), **NOT_CODE)
    tokenizer = getattr(found, "backend_tokenizer", None)
    if tokenizer is None:
        fault = f"{where}, a {type(found).__name__}, does not say where in a text a token lies"
        raise UserError(f"{fault}; use a model with a tokenizer.json")
    if not tokenizer.get_vocab(with_added_tokens=False):
        raise UserError(f"{where} has no tokens: its files are missing or of another family; add a tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    size = config.get_text_config().vocab_size
    named = config.get_text_config().eos_token_id
    ends = [*(named if isinstance(named, list) else [named]), found.eos_token_id]
    end = next((value for value in ends if type(value) is int and 0 <= value < size), None)
    if end is None:
        raise UserError(
            f"{where} and its config.json name no token that ends a text; write eos_token_id into the latter"
        )
    shown = f"{tokenizer.get_vocab_size()} tokens of the own tokeniser of --model {name}"
    return Vocabulary(size=size, end=end, own=tokenizer, name=shown)


def check_shapes(name: str, place: Path, config: Any) -> None:
    """Raises UserError for the first named weights whose shape differs from the configuration's."""
    import torch
    from safetensors import safe_open

    with in_one_sentence(f"--model {name}: its weights cannot be read"):
        with torch.device("meta"):
            model = packages().AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        expected = {key: list(value.shape) for key, value in model.state_dict().items()}
        for file in sorted(place.glob("*.safetensors")):
            with safe_open(file, "pt") as stored:
                for key in stored.keys():  # noqa: SIM118  (not a dictionary)
                    shape = stored.get_slice(key).get_shape()
                    if shape != expected.get(key, shape):
                        fault = f"the weights {key} have shape {shape}, by its config.json {expected[key]}"
                        raise UserError(f"--model {name}: {fault}; download the folder again")


def check_loaded(name: str, model: Any, told: dict[str, Any]) -> None:
    """Raises UserError if weights are missing, which would be random numbers, or not finite."""
    import torch

    if keys := sorted(map(str, told["missing_keys"])):
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        raise UserError(f"--model {name}: the folder lacks the weights {keys[0]}{more}; download it again")
    for key, p in model.named_parameters():
        if not bool(torch.isfinite(p).all()):
            raise UserError(f"--model {name}: the weights {key} are not all finite; download the folder again")
