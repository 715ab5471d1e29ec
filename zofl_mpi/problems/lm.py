"""Cuts causal language models of `transformers` after a block.

One way for all families, independent of their code. The model's own forward pass runs with recorders instead of blocks:
it embeds the tokens and reveals each block's arguments, such as masks and rotary positions. Each part then calls its
own blocks with them (`Segment`). `outline` finds a model's blocks and its last layers by a pass on a few tokens.
`lm_checks` compares the two halves with the model as read.

Attention goes without a mask if plain causality suffices: building a mask makes the host wait for the GPU.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from zofl_mpi.errors import UserError, demand
from zofl_mpi.problems.adapters import mark_untied
from zofl_mpi.problems.lm_checks import Own, why_not_equal
from zofl_mpi.problems.split import widened

TOKEN_BLOCK = 1 << 12  # vocabulary tokens per block of logits in passes without a graph
LOGITS = 1 << 22  # logits computed at once: 16 MiB in float32, 83 positions of GPT-2
TRACED_TOKENS = 8  # tokens of the pass that finds a model's layers
EXACT = 1e-6  # largest error of the halves' logits in it, relative to the largest logit
CAUSAL = "causal"  # name under which attention without masks is registered in `transformers`


# --- layers of a model


class Outline(NamedTuple):
    """Names of a model's layers."""

    body: str  # path of the module whose forward pass runs the blocks
    blocks: str  # name of its list of blocks
    before: tuple[str, ...]  # its layers with parameters before the blocks
    behind: tuple[str, ...]  # its layers after the blocks, in order, without the unembedding
    returns: int  # length of the tuple that a block returns; 0: a tensor

    def of(self, model: Any) -> list[nn.Module]:
        """The model's blocks."""
        return list(getattr(model.get_submodule(self.body), self.blocks))


def outline(model: Any, name: str = "") -> Outline:
    """Finds the layers of a model on the CPU (UserError: it cannot be cut; the message calls it `name`)."""
    where = f"--model {name or model.config.name_or_path}: a {type(model).__name__} cannot be cut after a block"
    try:
        found = _traced(model)
        tokens = torch.arange(2 * TRACED_TOKENS).view(2, -1) % model.config.get_text_config().vocab_size
        with torch.no_grad():
            whole = model(tokens, use_cache=False).logits.flatten(0, 1)
            client, back = Segment(model, found, 0, 1), LastBlocks(model, found, 1, len(found.of(model)))
            parts = back(client(tokens), torch.arange(len(whole)))
    except UserError as exc:
        raise UserError(f"{where}: {exc}") from exc
    except Exception as exc:  # the model's code may not support this way of calling
        kind = str(model.dtype).removeprefix("torch.")
        advice = "; use --dtype float32" if kind == "float64" else ""
        told = f"{type(exc).__name__}: {exc}".splitlines()[0][:300]
        raise UserError(f"{where}: in {kind} its forward pass does not run in parts ({told}){advice}") from exc
    if not float((parts - whole).abs().max()) <= EXACT * float(whole.abs().max()):
        raise UserError(f"{where}: the halves do not give its logits, which are no plain product after its last layers")
    return found


def _traced(model: Any) -> Outline:
    """Finds the layers by a pass on a few tokens."""
    depth = model.config.get_text_config().num_hidden_layers
    lists = (
        (path, name, module)
        for path, module in model.named_modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == depth
    )
    path, blocks, body = next(lists, ("", "", None))
    if body is None or depth < 2:
        raise UserError(f"it has no list of {depth} blocks" if body is None else "it has a single block")
    called = list[tuple[str, Any]]()  # (layer, output) in order of calls; the last block as ""
    layers = dict(body.named_children()) | {"": getattr(body, blocks)[-1]}
    del layers[blocks]
    hooks = [
        layer.register_forward_hook(lambda *told, name=name: called.append((name, told[-1])))
        for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            model(torch.arange(TRACED_TOKENS)[None] % model.config.get_text_config().vocab_size, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    names = [name for name, _ in called]
    if names.count("") != 1:
        raise UserError("a forward pass does not call its last block once")
    behind, output = names[names.index("") + 1 :], dict(called)[""]
    before = [name for name, layer in layers.items() if name not in ("", *behind) and list(layer.parameters())]
    return Outline(path, blocks, tuple(before), tuple(behind), 0 if isinstance(output, Tensor) else len(output))


# --- parts


@final
class RecordCall(nn.Module):
    """Stands in for a block: records its arguments and returns its input."""

    def __init__(self, returns: int) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The input, in the form in which a block returns."""
        self.call = args, kwargs
        return (x, *[None] * (self.returns - 1)) if self.returns else x


@final
class ZeroLayer(nn.Module):
    """Stands in for a layer before the blocks, in segments without the first block: always returns 0."""

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.zero = like.new_zeros(())

    def forward(self, *_: Any, **__: Any) -> Tensor:
        """Zero ()."""
        return self.zero


@final
class Segment(nn.Module):
    """Consecutive blocks of a model, called as in its own forward pass; the first segment includes the embedding."""

    def __init__(self, model: Any, layers: Outline, first: int, last: int) -> None:
        super().__init__()
        body, blocks = model.get_submodule(layers.body), layers.of(model)
        self.body: Any = copy.copy(body)  # keeps the class's forward pass, with modules replaced below
        self.body._modules = dict(body._modules)
        notes = [RecordCall(layers.returns) for _ in blocks]
        setattr(self.body, layers.blocks, nn.ModuleList(notes))
        for name in layers.behind:
            setattr(self.body, name, nn.Identity())
        for name in layers.before if first else ():
            setattr(self.body, name, ZeroLayer(next(getattr(body, name).parameters())))
        self.blocks = nn.ModuleList(blocks[first:last])
        self._first, self._notes = first, notes

    def forward(self, x: Tensor) -> Tensor:
        """Output (B, T, d) for tokens (B, T), or for the previous part's output (B, T, d)."""
        if not self._first:
            x = self.body(input_ids=x, use_cache=False).last_hidden_state
        elif self.blocks:  # only x's shape and dtype matter here
            self.body(inputs_embeds=x.detach()[..., :1], use_cache=False)
        calls = [vars(note).pop("call", None) for note in self._notes]  # frees the recorded tensors after use
        for block, (args, kwargs) in zip(self.blocks, calls[self._first :], strict=False):
            output = block(x, *args, **kwargs)
            x = output if isinstance(output, Tensor) else output[0]
        return x


@final
class LastBlocks(nn.Module):
    """Auxiliary or server part: maps smashed activations (B, T, d) to logits of the next token."""

    def __init__(self, model: Any, layers: Outline, first: int, last: int) -> None:
        super().__init__()
        body = model.get_submodule(layers.body)
        self.segment = Segment(model, layers, first, last)
        self.last = Unembedding([getattr(body, name) for name in layers.behind], model.get_output_embeddings())
        self.pieces = 0  # number of pieces for the logits; 0: by `pieces_of`

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Logits (k, V) at the positions `at` (k,) among B T; computes no others."""
        return self.last.logits(self._before(x, at))

    def losses(self, x: Tensor, at: Tensor, targets: Tensor, smoothing: float, forward_only: bool = False) -> Tensor:
        """Cross-entropies (k,) of `targets` (k,) at the positions `at` (k,) among B T; see `Unembedding`."""
        rows = self._before(x, at)
        unembedding = self.last.unembedding
        if forward_only and type(unembedding) is nn.Linear and unembedding.out_features > TOKEN_BLOCK:
            return self.last.by_columns(rows, targets, smoothing)
        count = self.pieces or self.pieces_of(len(at))
        pieces = zip(rows.tensor_split(count), targets.tensor_split(count), strict=True)
        return torch.cat([self.last(*piece, smoothing) for piece in pieces])

    def pieces_of(self, positions: int) -> int:
        """Number of pieces for this many positions."""
        step = max(1, LOGITS // int(self.last.unembedding.out_features))  # its weight may be unbound
        return max(1, -(-positions // step))

    def _before(self, x: Tensor, at: Tensor) -> Tensor:
        """The blocks' output (k, d) for x (B, T, d), in float32 or wider, at these positions."""
        return self.segment(widened(x)).flatten(0, 1).index_select(0, at)  # type: ignore[no-any-return]


@final
class Unembedding(nn.Module):
    """The layers after the blocks, and logits a few positions at a time.

    Logits of all positions take more memory than the rest of a small part. A pass without a graph, or one that
    recomputes them, holds only one piece's.
    """

    def __init__(self, behind: Iterable[nn.Module], unembedding: nn.Module) -> None:
        super().__init__()
        self.behind = nn.Sequential(*behind)
        self.unembedding: Any = unembedding

    def logits(self, x: Tensor) -> Tensor:
        """Logits (k, V) for x (k, d)."""
        return self.unembedding(self.behind(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Cross-entropies (k,) at x (k, d) with smoothed labels, in float32 or wider."""
        return cross_entropy(widened(self.logits(x)), targets, label_smoothing=smoothing, reduction="none")

    def by_columns(self, x: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The same cross-entropies (k,) in float64, without a graph, by blocks of `TOKEN_BLOCK` vocabulary tokens.

        All positions use a block of the matrix while it is in the processor's cache. For GPT-2 this takes three
        quarters of the time of a single product, and half that of products of a few positions each.
        """
        x, weight, bias = self.behind(x), self.unembedding.weight, self.unembedding.bias
        vocabulary = self.unembedding.out_features
        total, own, sums = x.new_zeros(len(x), dtype=torch.float64), x.new_zeros(len(x), dtype=torch.float64), []
        for first in range(0, vocabulary, TOKEN_BLOCK):
            count = min(TOKEN_BLOCK, vocabulary - first)
            part = None if bias is None else bias[first : first + count]
            logits = widened(linear(x, weight.narrow(0, first, count), part))
            sums.append(logits.logsumexp(dim=1).double())
            column = targets - first
            values = logits.gather(1, column.clamp(0, count - 1)[:, None]).squeeze(1).double()
            own += values.where((column >= 0) & (column < count), 0.0)
            total += logits.sum(dim=1, dtype=torch.float64) if smoothing else 0.0
        losses: Tensor = torch.stack(sums).logsumexp(dim=0) - (1 - smoothing) * own - smoothing / vocabulary * total
        return losses


class SplitModel(NamedTuple):
    """A language model cut in three."""

    client: Segment
    auxiliary: LastBlocks
    server: LastBlocks
    model: Any  # the whole model, of the client's and server's modules
    untied: bool = False  # True if tied embeddings were split into two matrices


def cut_model(
    model: Any, layers: Outline, cut: int, auxiliary_blocks: int, own: Iterable[Own], tied: bool = False
) -> SplitModel:
    """Cuts the model in three parts, which take over its modules.

    The auxiliary part copies the server's first blocks, last layers and unembedding; frozen tensors are shared.

    Args:
        cut: number of blocks of the client part.
        auxiliary_blocks: of the auxiliary part.
        own: logits of the model as read.
        tied: True if one side holds both parts: trainable tied embeddings then stay one matrix. False: they become two,
            one in the client part and one in the server part.

    Raises:
        UserError: too few blocks, parts share trainable parameters, or the halves' logits differ from the model's.
    """
    depth = len(layers.of(model))
    demand(0 < cut < depth, "cut", cut, f"from 1 to {depth - 1}: the model has {depth} blocks")
    left = depth - cut
    what = f"from 0 to {left}: after --cut {cut} of {depth} blocks the server has {left}"
    demand(0 <= auxiliary_blocks <= left, "auxiliary_blocks", auxiliary_blocks, what)
    weight, unembedding = model.get_input_embeddings().weight, model.get_output_embeddings()
    one = {id(weight): weight} if weight.requires_grad and unembedding.weight is weight else {}
    untied = bool(one) and not tied
    if untied:
        model.set_output_embeddings(copy.deepcopy(unembedding))
        mark_untied(model)
        one = {}
    client, server = Segment(model, layers, 0, cut), LastBlocks(model, layers, cut, depth)
    _check_apart(model, client, server, one)
    _settle_attention(model, client, server, list(own))
    shared = one | {id(p): p for p in server.parameters() if not p.requires_grad}
    auxiliary = copy.deepcopy(LastBlocks(model, layers, cut, cut + auxiliary_blocks), shared)
    return SplitModel(client, auxiliary, server, model, untied)


def _check_apart(model: Any, client: Segment, server: LastBlocks, one: Mapping[int, Any]) -> None:
    """Raises UserError if the parts share trainable parameters, which would diverge; `one` may be shared."""
    names = {id(p): name for name, p in model.named_parameters()}
    held = {id(p) for p in client.parameters() if p.requires_grad} - one.keys()
    if both := [names.get(id(p), "") for p in server.parameters() if id(p) in held]:
        fault = f"client's and server's part share {both[0]}, which trains"
        raise UserError(f"--train: a {type(model).__name__} cannot be cut here: {fault}; use --train lora")


def _settle_attention(model: Any, client: Segment, server: LastBlocks, own: Sequence[Own]) -> None:
    """Drops masks from causal attention if the logits stay the same: building a mask waits for the GPU."""
    config = model.config.get_text_config()
    ways = [config._attn_implementation]
    if model._supports_attention_backend and config._attn_implementation == "sdpa":
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        AttentionInterface.register(CAUSAL, sdpa_attention_forward)
        ways.insert(0, CAUSAL)
    fault = ""
    for way in ways:
        config._attn_implementation = way
        fault = why_not_equal(lambda tokens, at: server(client(tokens), at), own)
        if not fault:
            return
    raise UserError(f"--model {model.config.name_or_path}: a {type(model).__name__} cannot be trained here: {fault}")


def narrow_frozen(parts: SplitModel) -> None:
    """Stores frozen weights of products in bfloat16, to which autocast would round them in each pass.

    Embeddings and norms stay, as autocast uses float32 for them; the unembedding then has its own matrix.
    """
    narrowed: dict[nn.Parameter, nn.Parameter] = {}  # parts share frozen ones
    for module in (m for part in parts[:3] for m in part.modules()):
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":  # Conv1D of `transformers`
            for name, p in list(module.named_parameters(recurse=False)):
                if p.requires_grad:
                    continue
                if p not in narrowed:
                    narrowed[p] = nn.Parameter(p.bfloat16(), requires_grad=False)
                setattr(module, name, narrowed[p])
