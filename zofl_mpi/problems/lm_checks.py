"""Comparison of a causal model in parts with the same model as it was read: its logits, at two lengths of texts.

A mask may hold more than causality: a window, a prefix, a bias by distance. What of it a part loses changes logits, of
a window only where a text is longer. So the second length is that of the longest text of the run.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zofl_mpi.data.bpe import in_one_sentence

SHORT_TEXT = 8  # tokens of the shorter text
POSITIONS = 16  # whose logits are compared of the longer one
EQUAL = 1e-4  # largest difference, relative to the largest logit
"""Rounding in float32 is some 1e-6 of it at 12 blocks and grows with their number; a lost mask changes 1e-3 or more."""
Pass = Callable[[Tensor, Tensor], Tensor]
"""Logits (k, V) of tokens (B, T) at the positions (k,) among B T."""


class Own(NamedTuple):
    """A text, and what the model as it was read says of it."""

    tokens: Tensor  # (T,)
    others: Tensor  # (T,) at each place another token
    at: Tensor  # (k,) positions, ascending
    logits: Tensor  # (k, V) there


def own_logits(model: Any, longest: int, name: str) -> list[Own]:
    """The logits of a model as it was read, on the CPU, of a short text and of the longest (UserError: it has none)."""
    found = []
    for length in sorted({min(SHORT_TEXT, longest), longest}):
        known = model.config.get_text_config().vocab_size
        tokens = torch.arange(3, 3 + 7 * length, 7) % known
        at = torch.linspace(0, length - 1, min(length, POSITIONS)).round().long()
        fault = f"--model {name}: a {type(model).__name__} has no logits for a text of {length} tokens"
        with in_one_sentence(fault), torch.no_grad():
            found.append(Own(tokens, (tokens + 1) % known, at, _logits_at(model, tokens, at)))
    return found


def _logits_at(model: Any, tokens: Tensor, at: Tensor) -> Tensor:
    """(k, V): the unembedding sees no more than these positions, where it is asked for all."""

    def chosen(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0][:, at], *given[1:]) if given[0].shape[:2] == (1, len(tokens)) else given

    hook = model.get_output_embeddings().register_forward_pre_hook(chosen)
    try:
        logits: Tensor = model(tokens[None], use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits if len(logits) == len(at) else logits[at]


def why_not_equal(logits: Pass, own: Iterable[Own]) -> str:
    """First difference from the model as it was read, or why it is not causal; "" if there is none."""
    for tokens, others, at, expected in own:
        length, at_all = len(tokens), torch.arange(len(tokens), device=tokens.device)
        # of the short text every token, of the long one those of its second half are exchanged for others
        changes = range(1, length) if length <= SHORT_TEXT else [length // 2]
        rows = torch.stack([tokens, *(others.where(at_all >= k, tokens) for k in changes)])
        where = torch.cat([at + k * length for k in range(len(rows))])
        with torch.no_grad():
            found = logits(rows, where).view(len(rows), len(at), -1)
        bound = EQUAL * float(expected.abs().max())
        if not float((found[0] - expected).abs().max()) <= bound:
            return f"for a text of {length} tokens its halves do not give its logits"
        for k, row in zip(changes, found[1:], strict=True):
            if not float((row - found[0])[at < k].abs().max()) <= bound:
                return f"a token changes the logits before it (token {k} of {length}), it is not causal"
    return ""
