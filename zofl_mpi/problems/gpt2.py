"""GPT-2 of `transformers`, cut after a block, with LoRA of `peft`; and the parts joined.

Radford, Wu, Child, Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners", 2019. Hu and others,
"LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022: W x becomes W x + (alpha / r) B A x, with A drawn at
random, B = 0, and W frozen; here for the queries and the values of every block's attention: 4 r d_model numbers.

Two things differ from `transformers`, in rounding only. The projection to queries, keys and values is three layers
where LoRA is added, as it is meant for two of them. And the activation is one operation, which keeps one map for a
backward pass, not six: six would flatter the memory of methods without one. Dropout is off: the passes of a
zeroth-order estimate must see one function.
"""

import copy
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.errors import UserError, demand

LOGITS = 1 << 22  # logits that are computed at once: 16 MiB in float32, 83 positions of GPT-2

SIZES = {
    "tiny": {"n_layer": 4, "n_embd": 192, "n_head": 6, "n_positions": 256},
    "small": {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024},
    "medium": {"n_layer": 24, "n_embd": 1024, "n_head": 16, "n_positions": 1024},
}
"""Models with random weights; small and medium are GPT-2's own sizes."""
SAME = {"gelu_new": "gelu_pytorch_tanh"}  # {an activation of `transformers`: the same one in a single operation}
OFF = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
Train = Literal["lora", "all"]


@final
class Front(nn.Module):
    """The client's part: tokens (B, T) to smashed activations (B, T, d)."""

    def __init__(self, words: nn.Embedding, places: nn.Embedding, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.words, self.places, self.blocks = words, places, nn.ModuleList(blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, d)."""
        x: Tensor = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return x


@final
class Back(nn.Module):
    """The auxiliary and the server's part: smashed activations (B, T, d) to logits of the next token.

    Attributes:
        pieces: number of pieces in which the logits are computed; 0: by `pieces_of`.
    """

    def __init__(self, blocks: Iterable[nn.Module], norm: nn.Module, unembedding: nn.Module) -> None:
        super().__init__()
        self.blocks, self.last = nn.ModuleList(blocks), Unembedding(norm, unembedding)
        self.pieces = 0

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """(k, V) the logits at the positions `at` (k,), of B T: the unembedding is multiplied with no others."""
        return self.last.logits(self._before(x, at))

    def losses(self, x: Tensor, at: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """(k,) cross-entropies at the positions `at` (k,), of B T, where `targets` (k,) come; see `Unembedding`."""
        rows = self._before(x, at)
        count = self.pieces or self.pieces_of(len(at))
        pieces = zip(rows.tensor_split(count), targets.tensor_split(count), strict=True)
        return torch.cat([self.last(*piece, smoothing) for piece in pieces])

    def pieces_of(self, positions: int) -> int:
        """Number of pieces for so many positions."""
        step = max(1, LOGITS // int(self.last.unembedding.out_features))  # its weight may be released
        return max(1, -(-positions // step))

    def _before(self, x: Tensor, at: Tensor) -> Tensor:
        """(k, d) the blocks' output for x (B, T, d), at these positions."""
        for block in self.blocks:
            x = block(x)
        return x.flatten(0, 1).index_select(0, at)


@final
class Unembedding(nn.Module):
    """The final norm and the logits, a few positions at a time.

    Logits of all positions are more than all else that a small part of the model holds; a forward pass without a graph
    needs those of one piece only, and so does one that computes them anew.
    """

    def __init__(self, norm: nn.Module, unembedding: nn.Module) -> None:
        super().__init__()
        self.norm: Any = norm
        self.unembedding: Any = unembedding

    def logits(self, x: Tensor) -> Tensor:
        """(k, V) of x (k, d)."""
        return self.unembedding(self.norm(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """(k,) cross-entropies at x (k, d), in float32 at least, labels smoothed."""
        logits = self.logits(x)
        own = logits.float() if logits.dtype == torch.bfloat16 else logits
        return cross_entropy(own, targets, label_smoothing=smoothing, reduction="none")


@final
class Projections(nn.Module):
    """c_attn of a block as three layers: LoRA on q and v."""

    def __init__(self, fused: Any) -> None:
        """`fused` is a Conv1D of `transformers`, whose weight is (d, 3 d)."""
        super().__init__()
        d = fused.weight.shape[0]
        self.q, self.k, self.v = (_columns(fused, start, d) for start in (0, d, 2 * d))

    def forward(self, x: Tensor) -> Tensor:
        """(..., 3 d) queries, keys, values."""
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)

    def merged(self) -> nn.Module:
        """The one layer that these three are, LoRA added in; its tensors are copies."""
        layers: list[Any] = [self.q, self.k, self.v]
        deltas = [layer.get_delta_weight("default") if hasattr(layer, "get_delta_weight") else 0.0 for layer in layers]
        weight = torch.cat([layer.weight + delta for layer, delta in zip(layers, deltas, strict=True)], dim=1)
        return _conv1d(type(self.k), weight, torch.cat([layer.bias for layer in layers]))


class Parts(NamedTuple):
    """GPT-2 cut in three."""

    client: Front
    auxiliary: Back
    server: Back
    config: Any
    """The whole model's `transformers` configuration."""


# --- a model


def size_of(name: str) -> dict[str, int]:
    """The numbers of a model with random weights, or a UserError."""
    demand(name in SIZES, "model", f"random:{name}", _allowed())
    return SIZES[name]


def random_model(size: str, vocabulary: int, end: int) -> Any:
    """A GPT2LMHeadModel of one of `SIZES` with random weights, drawn by torch's generator; a UserError for others.

    Args:
        vocabulary: V, its number of tokens.
        end: the token that ends a text.
    """
    shape = size_of(size)
    GPT2Config, GPT2LMHeadModel = _transformers()
    dropout = dict.fromkeys(OFF, 0.0)
    config = GPT2Config(vocab_size=vocabulary, bos_token_id=end, eos_token_id=end, **dropout, **shape)
    config.activation_function = SAME.get(config.activation_function, config.activation_function)
    return GPT2LMHeadModel(config)


def stored_model(name: str) -> Any:
    """The GPT2LMHeadModel of a folder, or of a name on the hub, in float32 (UserError: none that can be read)."""
    GPT2Config, GPT2LMHeadModel = _transformers()
    place = Path(name).expanduser()
    folder = os.path.isdir(place)  # Path.is_dir raises for a name that is too long
    if not folder and (place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1):
        raise UserError(f"--model {name}: there is no such folder; allowed are {_allowed()}")
    where = str(place) if folder else name
    try:
        config, _ = GPT2Config.get_config_dict(where, local_files_only=folder)
        if config.get("model_type", "gpt2") != "gpt2":
            raise UserError(f"--model {name} is of type {config['model_type']}; it must be gpt2")
        activation = config.get("activation_function", "gelu_new")
        changed = {**dict.fromkeys(OFF, 0.0), "activation_function": SAME.get(activation, activation)}
        model = GPT2LMHeadModel.from_pretrained(where, local_files_only=folder, **changed)
    except UserError:
        raise
    except Exception as exc:  # of three libraries: no file, no network, a damaged file, other shapes
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        if folder:
            raise UserError(f"--model {name}: the folder holds no GPT-2 that transformers reads: {reason}") from exc
        raise UserError(
            f"--model {name}: no such folder, and the hub does not give it ({reason}); where there is a network, "
            f"`hf download {name} --local-dir FOLDER` makes a folder to give here"
        ) from exc
    return model.float()


def _allowed() -> str:
    return ", ".join(f"random:{name}" for name in SIZES) + ", a folder, or a name on the hub such as gpt2"


def _transformers() -> tuple[Any, Any]:
    """GPT-2's configuration and model, whose import takes seconds; a UserError where they are not installed."""
    try:
        from huggingface_hub.utils import logging as of_hub
        from transformers.models.gpt2.configuration_gpt2 import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel
        from transformers.utils import logging
    except ModuleNotFoundError as exc:
        raise _missing(exc) from exc
    said: tuple[Any, Any] = logging, of_hub
    said[0].disable_progress_bar()
    said[1].set_verbosity_error()  # each of its retries without a network is a warning; the last is refused below
    return GPT2Config, GPT2LMHeadModel


def _missing(exc: ModuleNotFoundError) -> UserError:
    return UserError(f"--problem split_gpt2 needs {exc.name}, which is not installed: pip install 'zofl_mpi[lm]'")


# --- LoRA


def add_lora(model: Any, rank: int, alpha: float) -> None:
    """Freezes the model and adds LoRA to q and v of every block, whose A is drawn by torch's generator."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as exc:
        raise _missing(exc) from exc
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Projections(block.attn.c_attn)
    config = LoraConfig(
        r=rank,
        lora_alpha=cast(int, alpha),  # any number will do
        target_modules=["q", "v"],
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=True,
    )
    inject_adapter_in_model(config, model)


def _columns(fused: Any, start: int, count: int) -> nn.Module:
    """Some columns of a Conv1D as a layer of its own."""
    weight, bias = (values.detach()[..., start : start + count] for values in (fused.weight, fused.bias))
    return _conv1d(type(fused), weight.contiguous(), bias.contiguous())


def _conv1d(kind: Any, weight: Tensor, bias: Tensor) -> nn.Module:
    """A frozen Conv1D of `transformers` of this weight (inputs, outputs) and bias."""
    with torch.device("meta"):  # its own random numbers are not wanted
        layer = kind(weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = (nn.Parameter(values, requires_grad=False) for values in (weight, bias))
    return cast(nn.Module, layer)


# --- its parts


def cut_model(model: Any, cut: int, auxiliary_blocks: int, train: Train) -> Parts:
    """Cuts the model in three parts, which take its modules over (UserError: it has too few blocks).

    The auxiliary part is a copy of the server's first blocks, of its last norm and of the unembedding; frozen tensors
    are shared. Where all parameters train, embedding (the client's) and unembedding (the server's) are two matrices.

    Args:
        cut: blocks of the client's part.
        auxiliary_blocks: of the auxiliary part.
    """
    transformer = model.transformer
    blocks, depth = list(transformer.h), len(transformer.h)
    demand(0 < cut < depth, "cut", cut, f"from 1 to {depth - 1}: the model has {depth} blocks")
    left = depth - cut
    what = f"from 0 to {left}: after --cut {cut} of {depth} blocks the server has {left}"
    demand(0 <= auxiliary_blocks <= left, "auxiliary_blocks", auxiliary_blocks, what)
    unembedding, config = model.lm_head, model.config
    if train == "all" and unembedding.weight is transformer.wte.weight:
        unembedding = copy.deepcopy(unembedding)
        config.tie_word_embeddings = False
    client = Front(transformer.wte, transformer.wpe, blocks[:cut])
    server = Back(blocks[cut:], transformer.ln_f, unembedding)
    frozen = {id(p): p for p in server.parameters() if not p.requires_grad}
    auxiliary = copy.deepcopy(Back(blocks[cut : cut + auxiliary_blocks], transformer.ln_f, unembedding), frozen)
    return Parts(client, auxiliary, server, config)


def narrow_frozen(parts: Parts) -> None:
    """Stores the frozen weights of products in bfloat16, as autocast would round them in each pass.

    Embeddings and norms, which it computes in float32, stay as they are; the unembedding has a matrix of its own then.
    """
    narrowed: dict[nn.Parameter, nn.Parameter] = {}  # parts share frozen ones
    for module in (m for part in (parts.client, parts.auxiliary, parts.server) for m in part.modules()):
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":  # that of `transformers`
            for name, p in list(module.named_parameters(recurse=False)):
                if p.requires_grad:
                    continue
                if p not in narrowed:
                    narrowed[p] = nn.Parameter(p.bfloat16(), requires_grad=False)
                setattr(module, name, narrowed[p])


def joined(parts: Parts) -> Any:
    """The parts, bound to some vectors by `at`, as a GPT2LMHeadModel with LoRA in its weights; tensors are copies."""
    _, GPT2LMHeadModel = _transformers()
    with torch.device("meta"):
        model = GPT2LMHeadModel(copy.deepcopy(parts.config))
    transformer = model.transformer
    client, server = parts.client, parts.server
    transformer.wte, transformer.wpe, transformer.ln_f = client.words, client.places, server.last.norm
    transformer.h, model.lm_head = nn.ModuleList([*client.blocks, *server.blocks]), server.last.unembedding
    model = copy.deepcopy(model).to(client.words.weight.dtype).requires_grad_()
    for block in model.transformer.h:
        if isinstance(block.attn.c_attn, Projections):
            with torch.no_grad():
                block.attn.c_attn = block.attn.c_attn.merged().requires_grad_()
    model.tie_weights()
    return model.eval()
