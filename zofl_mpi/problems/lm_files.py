"""Folders of `transformers` as strangers send them: data, of which nothing is run, followed, fetched or guessed."""

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
"""Files of which a folder with a tokeniser has one."""
MOST_BLOCKS = 10_000  # more are no model but a way to fill the memory
NOT_CODE = {"trust_remote_code": False, "local_files_only": True}
"""Arguments of every call of `transformers`: no code of a folder runs, no question, no network."""


def packages() -> Any:
    """`transformers`, whose import takes seconds; a UserError where it is not installed."""
    try:
        import transformers
        from huggingface_hub.utils import logging as of_hub
        from transformers.utils import logging
    except ModuleNotFoundError as exc:
        raise missing(exc) from exc
    said: tuple[Any, Any] = logging, of_hub
    said[0].disable_progress_bar()
    said[0].set_verbosity_error()  # what is missing is refused by name
    said[1].set_verbosity_error()
    return transformers


def folder_of(name: str) -> Path:
    """The folder of a model: named, or of a name on the hub in its cache (UserError: it is not there, or no data)."""
    place = user_path(name, "--model")
    if not os.path.isdir(place):  # Path.is_dir raises for a name that is too long
        if place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
            raise UserError(f"--model {name}: there is no such folder; allowed are {ALLOWED}")
        packages()
        from huggingface_hub import snapshot_download

        try:
            place = Path(snapshot_download(name, local_files_only=True))
        except Exception as exc:  # no such name, or nothing in the cache
            raise UserError(
                f"--model {name}: no such folder, and the hub's cache on this machine has no such model; where there "
                f"is a network, `hf download {name}` fetches it, with --local-dir FOLDER into a folder to give here"
            ) from exc
    with in_one_sentence(f"--model {name}: the folder cannot be read"):
        _check(name, place)
    return place


def _check(name: str, place: Path) -> None:
    """Refuses pipes and devices, whose reading never ends; adapters, which name another model; pickled weights, which
    are code; and shards that lie elsewhere.
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
    """The configuration of a folder (UserError: it is none of a causal model, or stands for code)."""
    transformers = packages()
    with in_one_sentence(f"--model {name}: the folder holds no causal language model that transformers reads"):
        config = transformers.AutoConfig.from_pretrained(str(place), **NOT_CODE)
        text = config.get_text_config()
        for each in {id(config): config, id(text): text}.values():
            if getattr(each, "quantization_config", None):
                raise UserError(f"--model {name}: its weights are quantised, here they must be floats; take those")
        if not (type(text.vocab_size) is int and text.vocab_size > 0):
            raise UserError(f"--model {name}: its config.json has vocab_size {text.vocab_size!r}, no number of tokens")
        blocks = text.num_hidden_layers
        if not (type(blocks) is int and 0 < blocks <= MOST_BLOCKS):
            raise UserError(f"--model {name}: its config.json has {blocks!r} blocks; allowed are 1 to {MOST_BLOCKS}")
    return config


def context_of(config: Any) -> int | None:
    """Number of tokens that a model of this configuration looks at; None where it has no bound."""
    found = (getattr(config.get_text_config(), name, None) for name in CONTEXTS)
    return next((value for value in found if type(value) is int and value > 0), None)


CONTEXTS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_seq_length", "max_sequence_length"),
    *("seq_length", "seq_len", "context_length", "max_context_length", "model_max_length"),
)
"""Names in configurations for the length of a model's context."""


def vocabulary_of(name: str, config: Any) -> Vocabulary | None:
    """The own tokens of a model, a folder or a name on the hub; None where it has no tokeniser.

    A tokenizer.json is taken as it stands: the class of a family may read its words alone and do otherwise with them.

    Raises:
        UserError: it cannot be read, is not one of `tokenizers`, or no token ends a text.
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
        raise UserError(f"{fault}; take a model with a tokenizer.json")
    if not tokenizer.get_vocab(with_added_tokens=False):
        raise UserError(f"{where} has no tokens: its files are missing or of another family; take a tokenizer.json")
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
    """Refuses weights of another shape than the configuration's by name, as far as they have the model's names."""
    import torch
    from safetensors import safe_open

    with in_one_sentence(f"--model {name}: its weights cannot be read"):
        with torch.device("meta"):
            model = packages().AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        expected = {key: list(value.shape) for key, value in model.state_dict().items()}
        for file in sorted(place.glob("*.safetensors")):
            with safe_open(file, "pt") as stored:
                for key in stored.keys():  # noqa: SIM118  (it is no dictionary)
                    shape = stored.get_slice(key).get_shape()
                    if shape != expected.get(key, shape):
                        fault = f"the weights {key} have shape {shape}, by its config.json {expected[key]}"
                        raise UserError(f"--model {name}: {fault}; download the folder again")


def check_loaded(name: str, model: Any, told: dict[str, Any]) -> None:
    """Refuses a model of whose weights some were not there, or are not finite (they would be random numbers)."""
    import torch

    if keys := sorted(map(str, told["missing_keys"])):
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        raise UserError(f"--model {name}: the folder lacks the weights {keys[0]}{more}; download it again")
    for key, p in model.named_parameters():
        if not bool(torch.isfinite(p).all()):
            raise UserError(f"--model {name}: the weights {key} are not all finite; download the folder again")
