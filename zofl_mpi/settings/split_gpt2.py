"""`split_gpt2` on a command line: GPT-2 of `transformers`, cut in three, with LoRA of `peft`, on texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

from zofl_mpi.data import texts
from zofl_mpi.engine.fields import at_least
from zofl_mpi.engine.lazy import torch
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import run_or_fail_all
from zofl_mpi.errors import UserError
from zofl_mpi.run.family import Site
from zofl_mpi.run.flags import flag
from zofl_mpi.settings.networks import fingerprint_of
from zofl_mpi.settings.samples import setting_on
from zofl_mpi.settings.texts import Texts

if TYPE_CHECKING:
    from zofl_mpi.problems.split_gpt2 import SplitGPT2

TRAINED_ON = ("data", "text", "vocabulary", "part")
"""Flags of the texts that a model which was trained here keeps in its configuration."""


@final
@dataclass(frozen=True)
class GPT2:
    """GPT-2, cut in three, with LoRA on the queries and values of every block; dropout is off.

    Attributes:
        model: a folder with a GPT-2 of transformers, its name on the hub (gpt2, gpt2-medium), or one with random
            weights: random:tiny (4 blocks of width 192, context 256), random:small, random:medium (GPT-2's own sizes).
        cut: blocks at the client; 0: a quarter of all ([C]'s 3 of small, 6 of medium).
        auxiliary_blocks: blocks of the auxiliary head before its norm and unembedding, which begin as a copy of the
            server's.
        lora_rank: r of LoRA.
        lora_alpha: alpha of LoRA, by which over r its product is multiplied.
        train: lora (all else is frozen) or all (every parameter and no LoRA, for pretraining; embedding and
            unembedding are then two matrices).
        label_smoothing: share of a label that is spread over the vocabulary, in training losses, zeroth-order ones too;
            reports have none.
        bf16: forward passes and smashed samples in bfloat16; losses and their differences in float32 or better.
        tf32: on a GPU, products of float32 as TF32: 10 bits of each factor, several times as fast.
    """

    model: str = "gpt2"
    cut: int = at_least(0, 0, remark="(0: a quarter of the blocks)")
    auxiliary_blocks: int = at_least(0, 1)
    lora_rank: int = at_least(1, 8)
    lora_alpha: float = at_least(0, 32.0)
    train: Literal["lora", "all"] = "lora"
    label_smoothing: float = 0.1
    bf16: bool = False
    tf32: bool = False

    @property
    def random(self) -> str:
        """Size of a model with random weights; "" where the model is stored."""
        kind, _, size = self.model.partition(":")
        return size or "?" if kind == "random" else ""

    def stored(self) -> Any:
        """The model of a folder or of the hub, in float32 (UserError: it is not there); None for random weights."""
        from zofl_mpi.problems import gpt2

        return None if self.random else gpt2.stored_model(self.model)

    def context(self, stored: Any) -> int:
        """Number of tokens of the model's context (UserError: there are no random weights of that size)."""
        from zofl_mpi.problems import gpt2

        return int(stored.config.n_positions if stored else gpt2.size_of(self.random)["n_positions"])

    def uncut(self, stored: Any, streams: Streams, vocabulary: int, end: int) -> Any:
        """The model before it is cut, on the CPU in float32, with LoRA if LoRA is trained.

        Args:
            stored: from `stored`; not to be used afterwards.
            vocabulary: V, number of tokens of the data, of which `end` ends a text.

        Raises:
            UserError: the model has another vocabulary; peft is not installed.
        """
        from zofl_mpi.problems import gpt2
        from zofl_mpi.problems.network import seeded

        model = stored or seeded(lambda: gpt2.random_model(self.random, vocabulary, end), streams(Purpose.MODULE))
        if model.config.vocab_size != vocabulary:
            raise UserError(
                f"--model {self.model} knows {model.config.vocab_size} tokens, the data have {vocabulary}: take the "
                "--vocabulary that it was trained with"
            )
        if self.train == "lora":  # by a stream apart, so that A does not depend on the model's draws
            seeded(lambda: gpt2.add_lora(model, self.lora_rank, self.lora_alpha), streams(Purpose.MODULE, t=1))
        return model

    def problem(self, model: Any, longest: int, targets: int, dtype: str = "float32", device: str = "cpu") -> SplitGPT2:
        """The problem of a model that `uncut` made, which is not to be used afterwards; see `SplitGPT2`."""
        from zofl_mpi.problems.gpt2 import cut_model
        from zofl_mpi.problems.split_gpt2 import SplitGPT2

        model.to(torch.device(device), getattr(torch, dtype))
        parts = cut_model(model, self.cut or max(1, model.config.n_layer // 4), self.auxiliary_blocks, self.train)
        own: dict[str, Any] = {"dtype": dtype, "device": device, "bf16": self.bf16, "tf32": self.tf32}
        return SplitGPT2(parts, longest, targets, self.label_smoothing, **own)


def build(site: Site) -> Setting[Any]:
    """The setting on a data set of texts."""
    flags = site.group(GPT2)
    stored = run_or_fail_all(site.world, flags.stored)
    most = run_or_fail_all(site.world, lambda: flags.context(stored))
    texts_of = site.group(Texts)
    if stored:
        run_or_fail_all(site.world, lambda: _check_texts(flags.model, stored.config, texts_of))
    corpus = texts_of.corpus(site.world, site.streams, most)
    vocabulary = corpus.vocabulary
    model = run_or_fail_all(site.world, lambda: flags.uncut(stored, site.streams, vocabulary.size, vocabulary.end))
    fingerprint = f"{corpus.division}, {fingerprint_of(model)}"
    longest = texts.longest(corpus.federation.test)
    problem = run_or_fail_all(site.world, lambda: flags.problem(model, *longest, site.dtype, site.device))
    return setting_on(site, problem, corpus.federation, fingerprint)


def _check_texts(name: str, config: Any, own: Texts) -> None:
    """Refuses texts that the model was trained on already, and texts written in another way."""
    trained: dict[str, Any] = getattr(config, "trained_on", {})
    if trained.get("data") != own.data:
        return
    differing = [key for key in TRAINED_ON if key != "part" and trained[key] != getattr(own, key)]
    if differing:
        flags = ", ".join(f"--{flag(key)} {trained[key]}" for key in differing)
        raise UserError(f"--model {name} was trained with {flags}: take the same")
    others = ("finetune",) if trained["part"] == "pretrain" else ()
    if own.part not in (trained["part"], *others):
        advice = ", or finetune, which has none of them" if others else ""
        fault = f"--part {own.part}: --model {name} was trained on --part {trained['part']} of these texts"
        raise UserError(f"{fault}; take this{advice}")
