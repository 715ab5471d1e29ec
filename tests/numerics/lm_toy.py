"""What the tests of GPT-2 share: a tiny model, texts for it, and the same model in one piece, with LoRA by hand."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import STREAMS, seeded
from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.problems import adapters, lm, lm_checks, lm_models
from zofl_mpi.problems.lm_checks import Own
from zofl_mpi.problems.split_lm import SplitLM

VOCABULARY, WIDTH, DEPTH, CONTEXT, RANK, ALPHA, END = 37, 16, 4, 24, 2, 6.0, 5
SIZES, TEST = (6, 10, 15), 11
SHAPE = {"n_layer": DEPTH, "n_embd": WIDTH, "n_head": 2, "n_positions": CONTEXT}


def whole(**changed: Any) -> Any:
    """A model of transformers as it comes, in float64: attention by matrices, GPT-2's own activation."""
    from transformers import GPT2Config, GPT2LMHeadModel  # an import of seconds, which waits until it is needed

    config = GPT2Config(vocab_size=VOCABULARY, bos_token_id=END, eos_token_id=END, initializer_range=0.2, **SHAPE)
    for name, value in changed.items():
        setattr(config, name, value)
    config._attn_implementation = "eager"
    return seeded(lambda: GPT2LMHeadModel(config)).double().eval()


def problem(cut: int = 2, blocks: int = 1, train: Any = "lora", alpha: float = ALPHA, **flags: Any) -> SplitLM:
    """The same weights, cut."""
    model = lm_models._one_operation(whole())
    model.config._attn_implementation = "sdpa"
    own = lm_checks.own_logits(model, CONTEXT - 2, "tiny")
    if train == "lora":
        seeded(lambda: adapters.add_lora(model, RANK, alpha))  # type: ignore[func-returns-value,return-value]
    layers = lm.outline(model)
    model.to(flags.get("device", "cpu"), getattr(torch, flags.get("dtype", "float64")))
    parts = lm.cut_model(model, layers, cut, blocks, [Own(*(t.to(model.device) for t in each)) for each in own])
    return SplitLM(parts, CONTEXT - 2, 9, **{"dtype": "float64", **flags})


def texts(count: int, seed: int) -> Dataset:
    """Contexts of 2 to 8 tokens, texts of 1 to 9 behind them, both with an end."""
    generator = STREAMS(Purpose.SYNTHETIC, i=seed)
    rows = np.zeros((count, 2 + CONTEXT), np.uint16)
    for row in rows:
        context = int(generator.integers(2, 9))
        length = context + int(generator.integers(2, 11))
        row[:2], row[2 : 2 + length] = (context, length), generator.integers(6, VOCABULARY, length)
        row[[1 + context, 1 + length]] = END
    return Dataset(rows, np.zeros(count, np.int64), 1)


def tokens(data: Dataset, k: int) -> tuple[Tensor, int]:
    """Text k whole, and how many of its tokens are context."""
    context, length, *rest = (int(value) for value in data.inputs[k])
    return torch.tensor(rest[:length]), context


def setting(own: SplitLM | None = None, clients: int = 3, dtype: str = "float64") -> Setting:
    """Clients of 6, 10 and 15 texts."""
    data = tuple(texts(size, k) for k, size in enumerate(SIZES[:clients]))
    chosen = own or problem(dtype=dtype)
    held = texts(TEST, 8), texts(7, 9)
    return Setting(chosen, STREAMS, data, None, held[0], None, np.dtype(dtype), validation=held[1])


def moved(theta: Tensor) -> Tensor:
    """Other numbers than LoRA begins with, whose B is 0."""
    return theta + 0.3 * torch.from_numpy(STREAMS(Purpose.SYNTHETIC, t=5).standard_normal(len(theta)))


class Lora:
    """The uncut model with LoRA by hand, as a function of the A and B of its blocks, in order: of q, then of v.

    Attributes:
        theta: (n,) all of them.
    """

    def __init__(self, theta: Tensor, depth: int = DEPTH, scale: float = ALPHA / RANK) -> None:
        self.model, self.scale, self.depth = whole(), scale, depth
        self.theta = theta.clone().requires_grad_()

    def weights(self) -> dict[str, Tensor]:
        """{name: c_attn's weight} of each block."""
        found, shapes = {}, [(RANK, WIDTH), (WIDTH, RANK)] * 2
        for k, own in enumerate(self.theta.split(4 * RANK * WIDTH)):
            a, b, c, d = (part.view(shape) for part, shape in zip(own.split(RANK * WIDTH), shapes, strict=True))
            added = torch.cat([(b @ a).T, torch.zeros(WIDTH, WIDTH, dtype=a.dtype), (d @ c).T], dim=1)
            name = f"transformer.h.{k}.attn.c_attn.weight"
            found[name] = self.model.state_dict()[name] + self.scale * added
        return found

    def logits(self, text: Tensor) -> Tensor:
        """(T, V) of one text, without padding."""
        told = torch.func.functional_call(self.model, self.weights(), (text[None],))
        return told.logits[0]  # type: ignore[no-any-return]

    def losses(self, data: Dataset, k: int, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of each token of text k's completion."""
        text, context = tokens(data, k)
        logits = self.logits(text[:-1])[context - 1 :]
        return cross_entropy(logits, text[context:], reduction="none", label_smoothing=smoothing)
