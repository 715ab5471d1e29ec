"""Parts of a language model that train: LoRA by `peft`, or the normalisations' scales and shifts.

Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W x becomes W x + (alpha / r) B A x,
with A drawn at random, B = 0, and W frozen. `peft` knows the layers of each family. In GPT-2 they are the queries and
values of every block. `peft` has one layer for queries, keys and values; here there are three, and two of them get
LoRA, each with its own A.
"""

import warnings
from collections.abc import Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from zofl_mpi.errors import UserError


def missing(exc: ModuleNotFoundError) -> UserError:
    """Error message for a missing package."""
    return UserError(f"--problem split_lm needs {exc.name}, which is not installed: pip install 'zofl_mpi[lm]'")


def only_norms(model: Any) -> None:
    """Freezes all but the scales and shifts of normalisations."""
    model.requires_grad_(False)
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            for p in module.parameters(recurse=False):
                p.requires_grad_()


def add_lora(model: Any, rank: int, alpha: float, targets: Sequence[str] = ()) -> None:
    """Freeze the model and add LoRA with A drawn by torch's generator; UserError: peft is not installed.

    Args:
        targets: ends of the names of the layers that are adapted; () for those of the family. A UserError if there are
            no such layers, or none are known for it.
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
        lora_alpha=cast(int, alpha),  # any number will do
        target_modules=list(targets) or None,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where a family has layers of both layouts
            inject_adapter_in_model(config, model)
    except ValueError as exc:  # peft's words would name its own arguments
        known = (m for m in model.named_modules() if isinstance(m[1], nn.Linear) or type(m[1]).__name__ == "Conv1D")
        layers = ", ".join(sorted({name.rpartition(".")[2] for name, _ in known}))
        fault = f" {' '.join(targets)}: must be" if targets else ": peft knows none for it; name"
        raise UserError(f"--lora-targets{fault} some of the layers of a {type(model).__name__}: {layers}") from exc
    _check_sharing(model)


def _check_sharing(model: Any) -> None:
    """Refuse LoRA on layers with shared weights: no folder could hold both.

    Embedding and unembedding may share theirs, of which the configuration says whether they are one.
    """
    words = [_bare(layer) for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    holders: dict[int, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for p in module.parameters(recurse=False):
            holders.setdefault(id(p), []).append((path, module))
    for path, module in model.named_modules():
        if _bare(module) is module:
            continue
        for p in _bare(module).parameters(recurse=False):
            own = [(other, layer) for other, layer in holders[id(p)] if other != f"{path}.base_layer"]
            for other, layer in own:
                if not any(layer is word for word in words) or not any(_bare(module) is word for word in words):
                    fault = f"--lora-targets: {path} shares its weights with {other.removesuffix('.base_layer')}"
                    raise UserError(f"{fault}, which no stored model could tell from its own; name other layers")


def _bare(layer: Any) -> Any:
    """A layer without LoRA."""
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def mark_untied(model: Any) -> None:
    """Record in the configuration that embedding and unembedding are two matrices."""
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def merge(model: Any) -> None:
    """Adds LoRA into the weights of a model, which then has the layers of its family.

    An embedding and an unembedding that share a matrix become two where either has LoRA.
    """
    words = model.get_input_embeddings(), model.get_output_embeddings()
    if any(_bare(word) is not word for word in words):
        for layer in map(_bare, words):
            layer.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
        mark_untied(model)
    for module in reversed(list(model.modules())):  # children before what holds them
        for name, child in list(module.named_children()):
            if hasattr(child, "get_base_layer"):
                child.merge()
                setattr(module, name, child.get_base_layer())
            elif isinstance(child, Projections):
                setattr(module, name, child.merged())


@final
class Projections(nn.Module):
    """c_attn of a block of GPT-2 as three layers: LoRA on q and v."""

    def __init__(self, fused: Any) -> None:
        """`fused` is a Conv1D of `transformers`, whose weight is (d, 3 d)."""
        super().__init__()
        parts = zip(fused.weight.detach().chunk(3, dim=1), fused.bias.detach().chunk(3), strict=True)
        self.q, self.k, self.v = (_conv1d(type(fused), weight.contiguous(), bias) for weight, bias in parts)

    def forward(self, x: Tensor) -> Tensor:
        """(..., 3 d) queries, keys, values."""
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)

    def merged(self) -> nn.Module:
        """The one layer that these three are, where they are without LoRA; its tensors are copies."""
        layers: list[Any] = [self.q, self.k, self.v]
        weight, bias = torch.cat([own.weight for own in layers], dim=1), torch.cat([own.bias for own in layers])
        return _conv1d(type(self.k), weight, bias)


def _conv1d(kind: Any, weight: Tensor, bias: Tensor) -> nn.Module:
    """A frozen Conv1D of `transformers` of this weight (inputs, outputs) and bias."""
    with torch.device("meta"):  # its own random numbers are not wanted
        layer = kind(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = (nn.Parameter(values, requires_grad=False) for values in (weight, bias))
    return cast(nn.Module, layer)
