"""Trainable parts of a language model: LoRA by `peft`, or the normalisations' scales and shifts.

Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W x becomes W x + (alpha / r) B A x,
with random A, initial B = 0, and W frozen. `peft` knows the layers of each model family. GPT-2's layer for queries,
keys and values becomes three here; queries and values get LoRA, with an A each.
"""

import warnings
from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from zofl_mpi.errors import UserError


def missing(exc: ModuleNotFoundError) -> UserError:
    """UserError for a package that is not installed."""
    return UserError(f"--problem split_lm needs {exc.name}, which is not installed: pip install 'zofl_mpi[lm]'")


def only_norms(model: Any) -> None:
    """Freezes all but the scales and shifts of normalisations."""
    model.requires_grad_(False)
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            for p in module.parameters(recurse=False):
                p.requires_grad_()


def add_lora(model: Any, rank: int, alpha: float, targets: Sequence[str] = ()) -> None:
    """Freezes the model and adds LoRA, with A drawn from torch's generator.

    Args:
        targets: suffixes of the names of layers to adapt; (): the family's defaults.

    Raises:
        UserError: peft is not installed, `targets` match no layer, or the family has no defaults.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as exc:
        raise missing(exc) from exc
    model.requires_grad_(False)
    if model.config.model_type == "gpt2" and not targets:
        targets = ["q", "v"]
        for block in model.transformer.h:
            block.attn.c_attn = Projections(block.attn.c_attn)
    config = LoraConfig(
        r=rank,
        lora_alpha=cast(int, alpha),  # peft accepts floats, too
        target_modules=list(targets) or None,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft warns if a family mixes Linear and Conv1D
            inject_adapter_in_model(config, model)
    except ValueError as exc:  # peft's message names its own arguments
        known = (m for m in model.named_modules() if isinstance(m[1], nn.Linear) or type(m[1]).__name__ == "Conv1D")
        layers = ", ".join(sorted({name.rpartition(".")[2] for name, _ in known}))
        fault = f" {' '.join(targets)}: must be" if targets else ": peft knows none for it; name"
        raise UserError(f"--lora-targets{fault} some of the layers of a {type(model).__name__}: {layers}") from exc
    _check_sharing(model)


def _check_sharing(model: Any) -> None:
    """Raises UserError for LoRA on layers with shared weights, which no stored model could represent.

    Embedding and unembedding may share theirs: the configuration records whether they are tied.
    """
    words = {id(_bare(layer)) for layer in (model.get_input_embeddings(), model.get_output_embeddings())}
    holders: dict[int, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for p in module.parameters(recurse=False):
            holders.setdefault(id(p), []).append((path, module))
    adapted = [(path, _bare(module)) for path, module in model.named_modules() if _bare(module) is not module]
    for path, module in adapted:
        for p in module.parameters(recurse=False):
            for other, layer in holders[id(p)]:
                if other != f"{path}.base_layer" and not {id(layer), id(module)} <= words:
                    fault = f"--lora-targets: {path} shares its weights with {other.removesuffix('.base_layer')}"
                    raise UserError(f"{fault}, which a stored model cannot represent; name other layers")


def _bare(layer: Any) -> Any:
    """A layer without LoRA."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def mark_untied(model: Any) -> None:
    """Records in the configuration that embedding and unembedding are two matrices, for reading the folder again."""
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def merge(model: Any) -> None:
    """Merges LoRA into the weights and restores the family's layers.

    If embedding and unembedding share a matrix and either has LoRA, they become two matrices.
    """
    words = model.get_input_embeddings(), model.get_output_embeddings()
    if any(_bare(word) is not word for word in words):
        for layer in map(_bare, words):
            layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        mark_untied(model)
    for module in reversed(list(model.modules())):  # children before parents
        for name, child in list(module.named_children()):
            if hasattr(child, "get_base_layer"):
                child.merge()
                setattr(module, name, child.get_base_layer())
            elif isinstance(child, Projections):
                setattr(module, name, child.merged())


@final
class Projections(nn.Module):
    """GPT-2's c_attn as three layers q, k and v, so that LoRA can adapt q and v."""

    def __init__(self, fused: Any) -> None:
        """`fused` is a Conv1D of `transformers`, whose weight is (d, 3 d)."""
        super().__init__()
        parts = zip(fused.weight.detach().chunk(3, dim=1), fused.bias.detach().chunk(3), strict=True)
        self.q, self.k, self.v = (_conv1d(type(fused), weight.contiguous(), bias) for weight, bias in parts)

    def forward(self, x: Tensor) -> Tensor:
        """Queries, keys and values (..., 3 d)."""
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)

    def merged(self) -> nn.Module:
        """The fused layer, after LoRA is merged; its tensors are copies."""
        layers: list[Any] = [self.q, self.k, self.v]
        weight, bias = torch.cat([own.weight for own in layers], dim=1), torch.cat([own.bias for own in layers])
        return _conv1d(type(self.k), weight, bias)


def _conv1d(kind: Any, weight: Tensor, bias: Tensor) -> nn.Module:
    """A frozen Conv1D of `transformers` with this weight (inputs, outputs) and bias."""
    with torch.device("meta"):  # skips its random initialisation
        layer = kind(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = (nn.Parameter(values, requires_grad=False) for values in (weight, bias))
    return cast(nn.Module, layer)
