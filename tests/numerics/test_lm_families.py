"""Any causal model: its halves are the model, LoRA and export are those of its family; others are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import export
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tests.numerics.lm_toy import ALPHA, CONTEXT, DEPTH, END, RANK, SHAPE, VOCABULARY, WIDTH, moved, texts, tokens
from tests.numerics.split_methods import STREAMS, seeded
from zofl_mpi.data import Dataset
from zofl_mpi.data import texts as encoding
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.problems.split_lm import SplitLM
from zofl_mpi.settings.split_lm import LM

SHARED = {"vocab_size": VOCABULARY, "bos_token_id": END, "eos_token_id": END, "pad_token_id": None}
WIDE = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "max_position_embeddings": CONTEXT, **SHARED}
OPT = {"ffn_dim": 24, "num_attention_heads": 2, **WIDE}
LLAMA = {"intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, **WIDE}
WINDOWS = {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"] * 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", SHAPE | SHARED),
    "opt": ("opt", OPT),
    "opt with projections and norm after": ("opt", OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}),
    "llama": ("llama", LLAMA),
    "qwen2": ("qwen2", LLAMA),
    "qwen3": ("qwen3", LLAMA | {"head_dim": 8}),
    "qwen3 with windows in some blocks": ("qwen3", LLAMA | {"head_dim": 8, "use_sliding_window": True, **WINDOWS}),
    "mistral": ("mistral", LLAMA),
    "mistral with a short window": ("mistral", LLAMA | {"sliding_window": 6}),
    "gemma": ("gemma", LLAMA | {"head_dim": 8}),
    "gpt_neox": ("gpt_neox", {"intermediate_size": 24, "num_attention_heads": 4, **WIDE}),
}
"""{name: type and numbers of a configuration of `transformers`}."""


def made(kind: str, numbers: dict[str, Any]) -> Any:
    """A model of `transformers` with random weights that matter, normalisations' too, in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model = seeded(lambda: AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **numbers)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.2)
    return model.eval()


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, stored: Callable[[str], str]) -> str:
    """One of the family, as it is stored."""
    return stored(request.param)


def read(folder: str, dtype: str = "float64") -> Any:
    """The model as `transformers` reads and computes it; in float32 by matrices, whose softmax is always in float32."""
    from transformers import AutoModelForCausalLM

    kind = "eager" if dtype == "float32" else "sdpa"
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kind, dtype=torch.float32)
    return model.to(getattr(torch, dtype)).eval()


def cut(folder: str, dtype: str = "float64", longest: int = CONTEXT, tied: bool = False, **flags: Any) -> SplitLM:
    """The problem of a stored model."""
    flags = {"lora_rank": RANK, "lora_alpha": ALPHA, "label_smoothing": 0.0, **flags}
    own = LM(folder, **flags)
    return own.problem(own.uncut(*own.begun(), STREAMS, VOCABULARY, END, longest), longest, 9, dtype, tied=tied)


def vectors(own: SplitLM) -> tuple[Tensor, Tensor]:
    """Other numbers than the parts begin with."""
    found = own.client_side.initial()[0], own.server_side.initial()[0]
    return tuple(moved(theta.double()).to(theta) for theta in found)  # type: ignore[return-value]


def logits_of(own: SplitLM, theta: Tensor, theta_s: Tensor, text: Tensor) -> Tensor:
    """(B, T, V) of the two halves."""
    with torch.no_grad(), own.client_side.bound_to(theta), own.server_side.bound_to(theta_s):
        return own.parts.server(own.smash(text), torch.arange(text.numel())).view(*text.shape, VOCABULARY)


@pytest.mark.parametrize(("dtype", "bound"), [("float64", 1e-12), ("float32", 1e-5)])
def test_the_halves_are_the_model(folder: str, dtype: str, bound: float) -> None:
    """Cut after each block; texts at the context's end, alone and 4 at once; others padded on the right, their loss as
    `transformers` has it for each alone, in float32. Mutations: positions that begin anew, or are added twice; an
    embedding's factor in the second half; a window left out; a norm left out; padding that is looked at."""
    model = read(folder, dtype)
    text = torch.from_numpy(STREAMS(Purpose.SYNTHETIC, i=3).integers(0, VOCABULARY, (4, CONTEXT)))
    with torch.no_grad():
        expected = model(text, use_cache=False).logits
    for k in range(1, DEPTH):
        own = cut(folder, dtype, cut=k, auxiliary_blocks=0)
        begun = own.client_side.initial()[0], own.server_side.initial()[0]
        found = logits_of(own, *begun, text)
        assert float((found - expected).abs().max()) <= bound * float(expected.abs().max())
        assert float((logits_of(own, *begun, text[:1]) - found[:1]).abs().max()) <= bound * float(expected.abs().max())
    data = texts(12, 4)
    for positions in (np.array([3]), np.arange(4)):
        inputs, labels = own.samples(data, positions)
        with torch.no_grad(), own.client_side.bound_to(begun[0]), own.server_side.bound_to(begun[1]):
            loss = float(own.server_loss(own.smash(inputs), labels))
        sums, count = 0.0, 0.0
        for row in map(int, positions):
            one, context = tokens(data, row)
            target = one.clone()
            target[:context] = -100
            with torch.no_grad():
                mean = model(one[None], labels=target[None]).loss
            sums, count = sums + float(mean) * (len(one) - context), count + len(one) - context
        assert loss == pytest.approx(sums / count, rel=1e-6)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # which peft still looks at
def test_lora_trains_and_opens_in_transformers_and_peft(folder: str, tmp_path: Path) -> None:
    """Merged into a folder of the family's class; as an adapter of peft on the stored model. A client's vectors hold
    LoRA alone, no constant of rotary positions. Mutations: the client's LoRA left out; GPT-2's queries and values
    exchanged, or another alpha, in the adapter; a tied matrix stored twice; our attention's name; shared memory."""
    from peft import PeftModel

    own = cut(folder, "float32")
    theta, theta_s = vectors(own)
    text = torch.arange(2 * CONTEXT).view(2, -1) % VOCABULARY
    found = logits_of(own, theta, theta_s, text)
    scale = float(found.abs().max())
    assert own.client_side.b == own.server_side.b == 0
    assert 0 < own.n_client < own.client_side.n and own.server_side.n == (DEPTH - 1) * own.n_client
    joined = own.full_model(theta, theta_s)
    assert joined.config._attn_implementation == "sdpa"  # with masks: it may write to padded texts
    assert {p.data_ptr() for p in joined.parameters()}.isdisjoint(p.data_ptr() for p in own.parts.model.parameters())
    joined.save_pretrained(tmp_path / "merged")
    export.save_adapter(own, theta, theta_s, tmp_path / "adapter", folder)
    merged, stored = read(str(tmp_path / "merged"), "float32"), read(folder, "float32")
    assert type(merged) is type(stored) and merged.config.tie_word_embeddings == stored.config.tie_word_embeddings
    with torch.no_grad():
        begun = stored(text).logits
        adapted = PeftModel.from_pretrained(stored, str(tmp_path / "adapter"))
        for model in (merged, adapted):
            assert float((model(text).logits - found).abs().max()) <= 1e-5 * scale
    assert float((begun - found).abs().max()) > 1e-2 * scale


@pytest.mark.parametrize("train", ["norm", "all"])
def test_other_parts_train(folder: str, train: Any, tmp_path: Path) -> None:
    """Gradients by backpropagation through the halves = those of the whole model; export keeps what moved.
    Mutations: a frozen norm; an embedding that trains and is tied to the unembedding."""
    own = cut(folder, train=train, auxiliary_blocks=0)
    theta, theta_s = vectors(own)
    model = own.full_model(theta, theta_s)
    inputs, labels = own.samples(texts(6, 4), np.arange(3))
    with own.client_side.bound_to(theta), own.server_side.bound_to(theta_s):
        loss = own.server_loss(own.smash(inputs), labels)
        gradient = own.client_side.gradient(loss)[: own.n_client]
        names = {id(p): name for name, p in own.parts.model.named_parameters()}
        mine = [names[id(p)] for p in own.parts.client.parameters() if p.requires_grad]
    whole = dict(model.named_parameters())
    at = labels.flatten() != -100
    logits = model(inputs, use_cache=False).logits.flatten(0, 1)[at]
    cross_entropy(logits, labels.flatten()[at]).backward()
    expected = torch.cat([whole[name].grad.flatten() for name in mine])
    assert float((gradient - expected).norm()) <= 1e-9 * float(expected.norm()) > 0
    if train == "norm":
        assert all("norm" in name or ".ln_" in name for name in mine)
    model.save_pretrained(tmp_path / "kept")
    kept = dict(read(str(tmp_path / "kept")).named_parameters())
    for name in mine:
        np.testing.assert_allclose(kept[name].detach(), whole[name].detach(), rtol=1e-6, atol=1e-7)


def test_a_choice_is_scored_by_the_least_mean_loss(stored: Callable[[str], str]) -> None:
    """Of each text all completions, by the whole model; losses are the right one's. Mutations: a sum for the mean,
    which prefers short ones; ties that count; tokens of wrong completions in the loss; a batch that cuts a choice."""
    folder = stored("llama")
    flags = LM(folder, label_smoothing=0.0)
    own = flags.problem(
        flags.uncut(*flags.begun(), STREAMS, VOCABULARY, END, CONTEXT), CONTEXT, 9, "float64", choices=3
    )
    generator = STREAMS(Purpose.SYNTHETIC, i=6)
    sizes = [(4, *generator.integers(1, 6, 3).tolist()) for _ in range(14)]
    runs = [[generator.integers(0, VOCABULARY, size).tolist() for size in row] for row in sizes]
    runs.append([runs[0][0], runs[0][1], runs[0][1], runs[0][1]])
    data = Dataset(encoding._packed(runs, np.arange(VOCABULARY)), np.zeros(15, np.int64), 3)
    model, losses = read(folder), []
    for context, *options in runs:
        with torch.no_grad():
            found = [model(torch.tensor([context + option])).logits[0, len(context) - 1 : -1] for option in options]
        pairs = zip(found, options, strict=True)
        losses.append([cross_entropy(logits, torch.tensor(option), reduction="none") for logits, option in pairs])
    right = [min(float(each.mean()) for each in row[1:]) > float(row[0].mean()) for row in losses]
    assert not right[-1] and right != [min(each.sum() for each in row[1:]) > row[0].sum() for row in losses]
    with (
        torch.no_grad(),
        own.client_side.bound_to(own.client_side.initial()[0]),
        own.server_side.bound_to(own.server_side.initial()[0]),
    ):
        told = own.score(*own.evaluation_samples(data, np.arange(15)))
    nats = torch.cat([row[0] for row in losses])
    assert (told["texts"], told["right"], told["tokens"]) == (15, sum(right), len(nats))
    assert told["nats"] == pytest.approx(float(nats.sum()), rel=1e-12)
    assert own.quality(told)["accuracy"] == sum(right) / 15


@pytest.mark.parametrize(
    ("kind", "numbers", "sentence"),
    [
        (
            "gemma2",
            LLAMA | {"head_dim": 8},
            "a Gemma2ForCausalLM cannot be cut after a block: the halves do not give",
        ),
        ("llama", LLAMA | {"num_hidden_layers": 1}, "a LlamaForCausalLM cannot be cut after a block: it has a single"),
        (
            "mixtral",
            LLAMA | {"num_local_experts": 3},
            r"a MixtralForCausalLM cannot be cut after a block: in float64 its forward pass .* use --dtype float32$",
        ),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_by_name(kind: str, numbers: Any, sentence: str, tmp_path: Path) -> None:
    """Logits with a soft cap; experts, whose products torch has in float32 alone: there they can be cut. Mutations: a
    looser comparison; a model that is tried in float32 alone."""
    made(kind, numbers).save_pretrained(tmp_path / "model")
    if kind == "mixtral":
        assert cut(str(tmp_path / "model"), "float32", train="all").dtype == "float32"
    with pytest.raises(UserError, match=f"--model {tmp_path}/model: {sentence}"):
        cut(str(tmp_path / "model"), train="all")


def test_targets_of_lora_are_layers_of_the_model(stored: Callable[[str], str]) -> None:
    """Mutations: targets that are passed over; peft's own words."""
    folder = stored("llama")
    own = cut(folder, lora_targets=("down_proj",))
    assert own.n_client == RANK * (24 + WIDTH)
    with pytest.raises(UserError, match="--lora-targets mlp7: must be some of the layers of a LlamaF"):
        cut(folder, lora_targets=("mlp7",))


def test_a_configuration_is_enough_for_random_weights(tmp_path: Path) -> None:
    """By the seed. Mutation: the configuration's own number of tokens."""
    made(*FAMILIES["llama"]).config.save_pretrained(tmp_path)
    flags = LM(f"random:{tmp_path}")
    models = [flags.uncut(*flags.begun(), STREAMS, 29, 28, 8).model for _ in range(2)]
    assert type(models[0]).__name__ == "LlamaForCausalLM" and models[0].config.vocab_size == 29
    assert all(torch.equal(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))
