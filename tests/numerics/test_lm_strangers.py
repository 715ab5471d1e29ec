"""Models from others: masks that hold more than causality, weights that are shared, broken and hostile folders."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.llama import modeling_llama

from tests.numerics.lm_toy import ALPHA, CONTEXT, RANK, VOCABULARY, WIDTH
from tests.numerics.test_lm_families import FAMILIES, LLAMA, cut, logits_of, made, read, vectors
from zofl_mpi.errors import UserError
from zofl_mpi.problems import adapters, lm_files
from zofl_mpi.problems.lm import CAUSAL
from zofl_mpi.settings.split_lm import LM

TEXT = torch.arange(2 * CONTEXT).view(2, -1) % VOCABULARY


def stored(folder: Path, name: str = "llama", **numbers: Any) -> Path:
    """The folder of a family's model."""
    kind, usual = FAMILIES[name]
    made(kind, usual | numbers).save_pretrained(folder)
    return folder


# --- masks


def with_mask(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Llama's mask (1, 1, T, T) changed, where it is made; without masks its attention is causal all the same."""
    original = modeling_llama.create_causal_mask

    def mask(config: Any, inputs_embeds: Tensor, **further: Any) -> Any:
        if config._attn_implementation == CAUSAL:
            return original(config=config, inputs_embeds=inputs_embeds, **further)
        at = torch.arange(inputs_embeds.shape[1])
        distance = at[:, None] - at
        causal = torch.zeros(distance.shape).masked_fill(distance < 0, -torch.inf)
        return change(causal, distance)[None, None].to(inputs_embeds.dtype)

    monkeypatch.setattr(modeling_llama, "create_causal_mask", mask)


MASKS = {
    "a bias by distance": lambda causal, distance: causal - 0.3 * distance.clamp(min=0),
    "a window that only longer texts reach": lambda causal, distance: causal.masked_fill(distance > 9, -torch.inf),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_holds_more_than_causality_is_kept(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """By its effect, whatever the configuration calls it. Mutations: no comparison after the attention is exchanged;
    one on the short text alone."""
    folder = stored(tmp_path / "model")
    plain = cut(str(folder))
    assert plain.parts.model.config._attn_implementation == CAUSAL
    with_mask(monkeypatch, MASKS[name])
    with torch.no_grad():
        expected = read(str(folder)).double()(TEXT, use_cache=False).logits
    own = cut(str(folder))
    begun = own.client_side.initial()[0], own.server_side.initial()[0]
    assert own.parts.model.config._attn_implementation == "sdpa"
    assert float((logits_of(own, *begun, TEXT) - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    assert float((logits_of(plain, *begun, TEXT) - expected).abs().max()) > 1e-3 * float(expected.abs().max())


@pytest.mark.parametrize("prefix", [3, CONTEXT])
def test_a_model_that_looks_at_later_tokens_is_refused(prefix: int, tmp_path: Path, monkeypatch: Any) -> None:
    """A prefix that sees all of itself, and attention in both directions. Mutation: the last token alone exchanged."""
    folder = stored(tmp_path / "model")
    with_mask(monkeypatch, lambda causal, distance: causal.index_fill(1, torch.arange(min(prefix, len(causal))), 0.0))
    with pytest.raises(
        UserError, match=r"a LlamaForCausalLM cannot be trained here: a token changes the logits before"
    ):
        cut(str(folder))


# --- weights that are shared


@pytest.mark.parametrize("targets", [("lm_head",), ("embed_tokens",), ("lm_head", "embed_tokens", "q_proj")])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_lora_on_a_shared_embedding_is_merged_into_one_side(targets: Any, tmp_path: Path) -> None:
    """The exported folder's logits are the run's. Mutations: merged into the matrix that both have; tied when read."""
    folder = stored(tmp_path / "model", tie_word_embeddings=True)
    own = cut(str(folder), "float32", lora_targets=targets)
    theta, theta_s = vectors(own)
    found = logits_of(own, theta, theta_s, TEXT)
    own.full_model(theta, theta_s).save_pretrained(tmp_path / "merged")
    kept = read(str(tmp_path / "merged"), "float32")
    assert not kept.config.tie_word_embeddings
    with torch.no_grad():
        assert float((kept(TEXT).logits - found).abs().max()) <= 1e-5 * float(found.abs().max())


@pytest.mark.parametrize("whole", [True, False])
def test_lora_on_other_shared_weights_is_refused(whole: bool) -> None:
    """A matrix, or a layer, of two blocks. Mutations: the name of the unembedding alone; modules once each."""
    model = made(*FAMILIES["llama"])
    first, second = (model.model.layers[k].self_attn for k in (1, 2))
    if whole:
        second.q_proj = first.q_proj
    else:
        second.q_proj.weight = first.q_proj.weight
    with pytest.raises(
        UserError, match=r"--lora-targets: model\.layers\.1\.self_attn\.q_proj shares its weights with mo"
    ):
        adapters.add_lora(model, RANK, ALPHA, ["q_proj"])


def test_a_tied_matrix_that_trains_stays_one_where_one_side_holds_both(tmp_path: Path) -> None:
    """Its gradient has both uses; a folder has it once. Where parts are split it is two. Mutations: two in theta; the
    server's part bound to another one; untied when kept."""
    folder = stored(tmp_path / "model", tie_word_embeddings=True)
    one, two = (cut(str(folder), train="all", auxiliary_blocks=0, tied=tied) for tied in (True, False))
    matrix = VOCABULARY * WIDTH
    assert (one.n_client, one.server_side.n) == (two.n_client, two.server_side.n - matrix)
    assert one.n_client + one.server_side.n == read(str(folder)).num_parameters()
    assert one.remarks == [] and "drift apart" in two.remarks[0]
    theta, theta_s = vectors(one)
    model = one.full_model(theta, theta_s)
    with torch.no_grad():
        expected = model(TEXT, use_cache=False).logits
    assert model.lm_head.weight is model.model.embed_tokens.weight
    found = logits_of(one, theta, theta_s, TEXT)
    assert float((found - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
    model.save_pretrained(tmp_path / "kept")
    assert read(str(tmp_path / "kept")).config.tie_word_embeddings


# --- folders


def edited(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def weights(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    held = load_file(path)
    change(held)
    save_file(held, path, {"format": "pt"})


KEY = "model.layers.2.mlp.down_proj.weight"


def elsewhere(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    index = {"metadata": {}, "weight_map": {KEY: "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def code(folder: Path) -> None:
    edited(folder, model_type="theirs", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    (folder / "evil.py").write_text(f"open({str(folder.parent / 'ran')!r}, 'w')\n")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


FAULTS: dict[str, tuple[Any, str]] = {
    "lacks": (lambda folder: weights(folder, lambda held: held.pop(KEY)), f"the folder lacks the weights {KEY};"),
    "shape": (
        lambda folder: weights(folder, lambda held: held.update({KEY: torch.ones(3, 5)})),
        rf"the weights {KEY} have shape \[3, 5\], by its config.json \[16, 24\]",
    ),
    "nan": (lambda folder: weights(folder, lambda held: held[KEY].fill_(torch.nan)), f"{KEY} are not all finite"),
    "cut short": (lambda folder: os.truncate(folder / "model.safetensors", 999), "no causal language model that"),
    "shards elsewhere": (elsewhere, r"index.json names '../other.safetensors', no file in the folder"),
    "pickled": (pickled, r"its weights are pickled \(pytorch_model.bin\), which may be code"),
    "pipe": (lambda folder: os.mkfifo(folder / "tokenizer.json"), "'tokenizer.json' in it is no regular file"),
    "device": (lambda folder: (folder / "a").symlink_to("/dev/zero"), "'a' in it is no regular file"),
    "adapter": (lambda folder: (folder / "adapter_config.json").write_text("{}"), "the folder holds an adapter of"),
    "code": (code, "contains custom code"),
    "quantised": (lambda folder: edited(folder, quantization_config={"quant_method": "gptq"}), "are quantised"),
    "blocks": (lambda folder: edited(folder, num_hidden_layers=10**9), "has 1000000000 blocks; allowed are 1 to 10000"),
    "deep": (lambda folder: (folder / "config.json").write_text("[" * 200_000), "no causal language model that"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_folder_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    """By name, and none of it runs or is waited for. Mutations: random numbers for what is missing; a question."""
    fault, sentence = FAULTS[name]
    fault(stored(tmp_path / "model"))
    with pytest.raises(UserError, match=f"--model {tmp_path}/model: .*{sentence}") as caught:
        LM(str(tmp_path / "model")).begun()
    assert "\n" not in str(caught.value) and not (tmp_path / "ran").exists()


def test_a_kernel_that_a_configuration_names_is_not_fetched(tmp_path: Path) -> None:
    """Mutation: its attention."""
    folder = stored(tmp_path / "model")
    edited(folder, attn_implementation="kernels-community/flash-attn")
    assert LM(str(folder)).begun()[0]._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"])
def test_the_longest_text_has_many_names(name: str) -> None:
    """Also in a configuration of several models. Mutations: one name; the whole's configuration."""
    from types import SimpleNamespace

    text = SimpleNamespace(**{name: 24})
    assert lm_files.context_of(SimpleNamespace(get_text_config=lambda: text)) == 24
    assert lm_files.context_of(SimpleNamespace(get_text_config=lambda: SimpleNamespace(n_positions=None))) is None


def test_a_model_of_texts_and_images_is_cut_by_its_texts(tmp_path: Path) -> None:
    """Its numbers are those of text_config. Mutation: the whole configuration's, which has none."""
    text = {"model_type": "gemma3_text", **LLAMA, "head_dim": 8, "sliding_window": 6}
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    image = {**sizes, "image_size": 28, "patch_size": 14}
    made("gemma3", {"text_config": text, "vision_config": image, "mm_tokens_per_image": 4}).save_pretrained(tmp_path)
    own = cut(str(tmp_path), lora_targets=("q_proj",))
    with torch.no_grad():
        expected = read(str(tmp_path))(TEXT, use_cache=False).logits
    begun = own.client_side.initial()[0], own.server_side.initial()[0]
    assert float((logits_of(own, *begun, TEXT) - expected).abs().max()) <= 1e-12 * float(expected.abs().max())
