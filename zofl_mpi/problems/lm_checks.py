"""Checks that a causal model in parts has the logits of the model as read, at two text lengths.

A mask may contain more than causality: a window, a prefix, a bias by distance. Losing it changes logits, in the case of
a window only for longer texts. Hence the second length is the run's longest text.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zofl_mpi.data.bpe import in_one_sentence

SHORT_TEXT = 8  # tokens of the short text
POSITIONS = 16  # positions compared in the long text
EQUAL = 1e-4  # largest difference, relative to the largest logit
"""float32 rounding is about 1e-6 of it at 12 blocks and grows with their number; a lost mask changes 1e-3 or more."""
Pass = Callable[[Tensor, Tensor], Tensor]
"""Logits (k, V) of tokens (B, T) at the positions (k,) among B T."""


class Own(NamedTuple):
    """A text, and the logits of the model as read."""

    tokens: Tensor  # (T,)
    others: Tensor  # (T,) a different token at each position
    at: Tensor  # (k,) compared positions, ascending
    logits: Tensor  # (k, V) at these positions


def own_logits(model: Any, longest: int, name: str) -> list[Own]:
    """Logits of the model as read, on the CPU, for a short text and one of the `longest` length (UserError: none)."""
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
    """Logits (k, V) at these positions; a hook keeps the unembedding from computing the others."""

    def chosen(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0][:, at], *given[1:]) if given[0].shape[:2] == (1, len(tokens)) else given

    hook = model.get_output_embeddings().register_forward_pre_hook(chosen)
    try:
        logits: Tensor = model(tokens[None], use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits if len(logits) == len(at) else logits[at]


def why_not_equal(logits: Pass, own: Iterable[Own]) -> str:
    """First difference from the model as read, or why it is not causal; "" if there is none."""
    for tokens, others, at, expected in own:
        length, at_all = len(tokens), torch.arange(len(tokens), device=tokens.device)
        # replaces the tail from every token of the short text, or the second half of the long one
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
