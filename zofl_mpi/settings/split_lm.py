"""Problem `split_lm`: a causal language model (transformers), cut in three, with LoRA (peft), on texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, final

from zofl_mpi.data import texts
from zofl_mpi.engine.fields import UsedWith, at_least
from zofl_mpi.engine.lazy import torch
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import run_or_fail_all
from zofl_mpi.errors import UserError
from zofl_mpi.run.command.family import Site
from zofl_mpi.run.command.flags import flag
from zofl_mpi.settings.networks import fingerprint_of
from zofl_mpi.settings.samples import setting_on
from zofl_mpi.settings.texts import Texts

if TYPE_CHECKING:
    from zofl_mpi.data.bpe import Vocabulary
    from zofl_mpi.problems.split_lm import SplitLM

TRAINED_ON = ("data", "text", "vocabulary", "part")
"""Flags of the texts, stored in the configuration of a model trained here."""


class Uncut(NamedTuple):
    """A model before the cut, on the CPU in float32, and its logits as loaded."""

    model: Any
    own: list[Any]


@final
@dataclass(frozen=True)
class LM:
    """A causal language model, cut in three, with LoRA and without dropout.

    Attributes:
        model: a folder with a causal transformers model (safetensors; code in it is not executed); the name of a model
            in the hub's cache (gpt2, EleutherAI/pythia-160m); random:tiny, random:small or random:medium, GPT-2 with
            random weights (tiny: 4 blocks of width 192, context 256); random:FOLDER, random weights for a folder's
            config.json.
        cut: blocks at the client; 0: a quarter of all ([C]: 3 of small, 6 of medium).
        auxiliary_blocks: blocks of the auxiliary head before its norm and unembedding, which start as copies of the
            server's.
        lora_rank: r of LoRA.
        lora_alpha: alpha of LoRA; its product is scaled by alpha/r.
        lora_targets: layers that LoRA adapts, by the last part of their names; auto: peft's default for the family;
            GPT-2: queries and values of every block.
        train: trained parameters: lora, norm (scales and shifts of normalisations) or all (no LoRA). A matrix shared by
            embedding and unembedding stays shared with decomfl, hiso and fedkseed; split methods hold one copy on each
            side, and the copies diverge.
        label_smoothing: label smoothing over the vocabulary, in training losses (zeroth-order ones too), not in
            reports.
        bf16: forward passes and smashed samples in bfloat16; losses and their differences in float32 or better.
        tf32: on a GPU, products of float32 as TF32: 10 bits of mantissa, several times as fast.
    """

    USED_WITH: ClassVar[UsedWith] = {f"lora_{name}": {"train": ("lora",)} for name in ("rank", "alpha", "targets")}
    model: str = "gpt2"
    cut: int = at_least(0, 0, remark="(0: a quarter of the blocks)")
    auxiliary_blocks: int = at_least(0, 1)
    lora_rank: int = at_least(1, 8)
    lora_alpha: float = at_least(0, 32.0)
    lora_targets: tuple[str, ...] = ("auto",)
    train: Literal["lora", "norm", "all"] = "lora"
    label_smoothing: float = 0.1
    bf16: bool = False
    tf32: bool = False

    def begun(self) -> tuple[Any, Any]:
        """Configuration and float32 model; None for random weights. UserError: the model is missing."""
        from zofl_mpi.problems import lm_models

        if self.model.startswith("random:"):
            return lm_models.random_config(self.model.partition(":")[2]), None
        model = lm_models.stored_model(self.model)
        return model.config, model

    def vocabulary(self, config: Any) -> Vocabulary | None:
        """The model's own tokens; None if it has no tokeniser."""
        from zofl_mpi.problems import lm_files, lm_models

        folder = self.model.removeprefix("random:")
        if folder != self.model and folder in lm_models.SIZES:
            return None
        return lm_files.vocabulary_of(folder, config)

    def uncut(self, config: Any, model: Any, streams: Streams, vocabulary: int, end: int, longest: int) -> Uncut:
        """The model before the cut, with LoRA if LoRA is trained.

        Args:
            config, model: from `begun`; consumed.
            vocabulary: V, number of tokens of the data, of which `end` ends a text.
            longest: T, input tokens of the longest text.

        Raises:
            UserError: the model has another vocabulary or no logits for it; peft is not installed.
        """
        from zofl_mpi.problems import adapters, lm_models
        from zofl_mpi.problems.lm_checks import own_logits
        from zofl_mpi.problems.network import seeded

        if model is None:
            model = seeded(lambda: lm_models.random_model(config, vocabulary, end), streams(Purpose.MODULE))
        known = model.config.get_text_config().vocab_size
        if known != vocabulary:
            raise UserError(
                f"--model {self.model} knows {known} tokens, the data have {vocabulary}: take the --vocabulary that it "
                "was trained with, or a folder with the model and its tokeniser"
            )
        own = own_logits(model, longest, self.model)
        if self.train == "lora":  # a separate stream: A must not depend on the model's draws
            targets = () if self.lora_targets == ("auto",) else self.lora_targets
            add = partial(adapters.add_lora, model, self.lora_rank, self.lora_alpha, targets)
            seeded(add, streams(Purpose.MODULE, t=1))
        elif self.train == "norm":
            adapters.only_norms(model)
        return Uncut(model, own)

    def problem(
        self,
        uncut: Uncut,
        longest: int,
        targets: int,
        dtype: str = "float32",
        device: str = "cpu",
        choices: int = 1,
        tied: bool = False,
    ) -> SplitLM:
        """The problem of a model from `uncut`, which is consumed; see `cut_model` and `SplitLM`.

        UserError: it cannot be cut, or does not compute in this precision.
        """
        from zofl_mpi.problems.lm import cut_model, outline
        from zofl_mpi.problems.split_lm import SplitLM

        model = uncut.model
        layers = outline(model.to(getattr(torch, dtype)), self.model)
        cut = self.cut or max(1, len(layers.of(model)) // 4)
        parts = cut_model(model, layers, cut, self.auxiliary_blocks, uncut.own, tied)
        for part in (*parts[:3], model):
            part.to(torch.device(device))
        own: dict[str, Any] = {"dtype": dtype, "device": device, "bf16": self.bf16, "tf32": self.tf32}
        return SplitLM(parts, longest, targets, self.label_smoothing, choices, **own)


def build(site: Site) -> Setting[Any]:
    """The setting on a data set of texts."""
    from zofl_mpi.problems.frozen import once_a_node
    from zofl_mpi.problems.lm_files import context_of

    flags, texts_of = site.group(LM), site.group(Texts)
    config, begun = run_or_fail_all(site.world, flags.begun)
    run_or_fail_all(site.world, lambda: _check_texts(flags.model, config, texts_of))
    asked = texts_of.vocabulary == "auto"
    own = run_or_fail_all(site.world, lambda: flags.vocabulary(config) if asked else None)
    if asked and own is None and config.model_type != "gpt2":
        raise UserError(
            f"--model {flags.model}: a {config.model_type} without a tokeniser (tokenizer.json, or vocab.json and "
            "merges.txt): put its files into the folder, or take --vocabulary gpt2 where its tokens are GPT-2's"
        )
    corpus = texts_of.corpus(site.world, site.streams, context_of(config), own)
    longest = texts.longest(corpus.federation.test)
    tokens = corpus.vocabulary.size, corpus.vocabulary.end, longest[0]
    uncut = run_or_fail_all(site.world, lambda: flags.uncut(config, begun, site.streams, *tokens))
    fingerprint = f"{corpus.division}, {fingerprint_of(uncut.model)}"
    make = partial(flags.problem, uncut, *longest, site.dtype, site.device, corpus.choices, site.holds_all)
    problem = run_or_fail_all(site.world, make)
    once_a_node(site.world, [*problem.parts.model.parameters(), *problem.client_side.first, *problem.server_side.first])
    setting = setting_on(site, problem, corpus.federation, fingerprint)
    return replace(setting, about="; ".join((setting.about, corpus.vocabulary.name, *problem.remarks)))


def _check_texts(name: str, config: Any, own: Texts) -> None:
    """Refuse texts that the model was trained on, and texts in another format."""
    trained: dict[str, Any] = getattr(config, "trained_on", {})
    if not (isinstance(trained, dict) and set(TRAINED_ON) <= trained.keys() and trained["data"] == own.data):
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
