"""Causal language models of `transformers`, read from a folder or with random weights.

`transformers` computes GELU by six operations; here it is one, equal up to rounding, with one saved map for the
backward pass. Six maps would overstate the memory of backward passes. Dropout is off: the passes of a zeroth-order
estimate must evaluate the same function.
"""

import copy
import os
from threading import Lock
from typing import Any

import torch

from zofl_mpi.data.bpe import in_one_sentence
from zofl_mpi.errors import UserError, demand
from zofl_mpi.paths import user_path
from zofl_mpi.problems.lm_files import ALLOWED, NOT_CODE, check_loaded, check_shapes, configuration, folder_of, packages

SIZES = {
    "tiny": {"n_layer": 4, "n_embd": 192, "n_head": 6, "n_positions": 256},
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024},
    "medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "n_positions": 1024},
}
"""GPT-2 models with random weights; small and medium have GPT-2's sizes."""
LOCK = Lock()


def random_config(name: str) -> Any:
    """Configuration of one of `SIZES`, or of a folder with a config.json (else UserError)."""
    transformers = packages()
    if name in SIZES:
        return _without_dropout(transformers.GPT2Config(**SIZES[name]))
    place = user_path(name, "--model random:")
    demand(os.path.isdir(place), "model", f"random:{name}", ALLOWED)
    return _without_dropout(configuration(f"random:{name}", folder_of(name)))


def random_model(config: Any, vocabulary: int, end: int) -> Any:
    """A model of this configuration with `vocabulary` tokens, end token `end`, and weights from torch's generator."""
    text = config.get_text_config()
    for each in (config, text):
        each.vocab_size, each.bos_token_id, each.eos_token_id, each.pad_token_id = vocabulary, end, end, None
    own = {"dtype": torch.float32, "attn_implementation": attention_of(config, "random"), "trust_remote_code": False}
    return _one_operation(packages().AutoModelForCausalLM.from_config(config, **own))


def stored_model(name: str) -> Any:
    """Reads the causal model of a folder, or of a name in the hub's cache, in float32 (UserError: cannot be read).

    Weights stored in float32 stay mapped from the file; see `frozen.once_a_node`.
    """
    place, transformers = folder_of(name), packages()
    config = _without_dropout(configuration(name, place))
    own: dict[str, Any] = {"config": config, "dtype": torch.float32, "attn_implementation": attention_of(config, name)}
    own |= NOT_CODE | {"use_safetensors": True, "output_loading_info": True}
    fault = f"--model {name}: the folder holds no causal language model that transformers reads"
    with in_one_sentence(fault), LOCK:  # transformers patches its own functions meanwhile, for all threads
        try:
            model, told = transformers.AutoModelForCausalLM.from_pretrained(str(place), **own)
        except RuntimeError:
            check_shapes(name, place, config)
            raise
    check_loaded(name, model, told)
    return _one_operation(model)


def attention_of(config: Any, name: str) -> str:
    """Attention implementation of a family; ignores the configuration's, which may name code on the hub."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        fault = f"transformers has no causal language model of type {config.model_type!r}"
        raise UserError(f"--model {name}: {fault}; use the folder of the language model only")
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return "sdpa" if family._supports_sdpa else "eager"


def _without_dropout(config: Any) -> Any:
    """The configuration with all dropout probabilities 0."""
    for each in (config, config.get_text_config()):
        for name, value in each.to_dict().items():
            if isinstance(value, float) and "drop" in name:
                setattr(each, name, 0.0)
    return config


def _one_operation(model: Any) -> Any:
    """The model with tanh-GELU as a single operation."""
    from transformers.activations import ACT2FN

    slow, fast = type(ACT2FN["gelu_new"]), ACT2FN["gelu_pytorch_tanh"]
    for module in model.modules():
        for name, child in module.named_children():
            if type(child) is slow:
                setattr(module, name, copy.copy(fast))
    return model.eval()
