"""`--problem split_lm` by the command line: bits, continued runs, a model pretrained, kept and tuned, refusals."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import ROOT, Capsys, Patch
from tests.launch import Runs, here, refused
from tests.numerics.test_lm_families import FAMILIES, made
from tests.unit.test_lines import tokenizer
from zofl_mpi.data import bpe
from zofl_mpi.problems import frozen
from zofl_mpi.report.same import differences
from zofl_mpi.run import records

sys.path.insert(0, str(ROOT / "analysis"))  # as where Python runs the scripts
import export
from shared.restore import setting_of

sys.path.remove(str(ROOT / "analysis"))

FAMILY = "zofl_mpi.heron_sfl"
METHODS = {
    "heron": ["--uplink", "seeds", "--n-p", "2"],
    "cse_fsl": ["--k", "2", "--state", "average"],
    "sflv2": ["--order", "client_major", "--bf16"],
    "decomfl": ["--n-p", "2"],
}
FOODS = ["Thai", "French", "Chinese", "Indian", "Italian", "English", "Japanese", "fast food"]
PRETRAINING = ["--method", "sflv2", "--m", "1", "--train", "all", "--label-smoothing", "0", "--part", "pretrain"]


@pytest.fixture(scope="module")
def texts(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags of 48 training texts for 8 contexts, and 16 for validation and test each, in a folder as E2E's."""
    bpe.find_vocabulary(data_dir)
    folder = tmp_path_factory.mktemp("texts")
    for file, places, each in (("trainset", "AB", 6), ("devset", "C", 2), ("testset_w_refs", "D", 2)):
        rows = [
            f'"name[{place}{k % 3}], food[{food}]",{place}{k % 3} is a place with {food} food{", they say" * (k % 4)}.'
            for place in places
            for food in FOODS
            for k in range(each * 2 // len(places))
        ]
        (folder / f"{file}.csv").write_text("\n".join(["mr,ref", *rows, ""]))
    usual = ["--problem", "split_lm", "--data", folder, "--data-dir", data_dir, "--vocabulary", "e2e", "--batch", "4"]
    return [*map(str, usual), "--m", "3", "--h", "2", "--eval-every", "1", "--eval-samples", "8", "--quiet"]


RANDOM = ["--model", "random:tiny", "--lr-client", "0.01", "--lr-server", "0.01"]


@pytest.fixture(scope="module")
def results(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    usual = [*texts, *RANDOM, "--rounds", 2]
    commands = {name: (FAMILY, ["--method", name, *usual, *own]) for name, own in METHODS.items()}
    own = tmp_path_factory.mktemp("lines")
    made(*FAMILIES["llama"]).save_pretrained(own)
    tokenizer(own, [f"<{k}>" for k in range(37)])
    rows = [
        json.dumps(
            {"context": f"<{k % 9}> <8>", "completions": [" <30>", " <31> <32>"], "label": k % 2, "client": k % 4}
        )
        for k in range(80)
    ]
    (own / "own.jsonl").write_text("\n".join(rows))
    words = ["--data", own / "own.jsonl", "--vocabulary", "auto", "--model", own, "--partition", "natural"]
    commands["lines"] = (FAMILY, ["--method", "heron", *usual, *words])
    return Runs(tmp_path_factory.mktemp("gpt2"), commands)


@pytest.mark.slow
def test_lines_of_a_folders_own_model_have_the_same_bits_on_three_ranks(results: Runs) -> None:
    """Choices, clients by name, a family with rotary positions. Mutations: clients numbered by each rank; a draw of the
    test part that differs."""
    assert differences(results("lines", 0), results("lines", 3)) == []
    run = records.load(results("lines", 0))
    assert ", clients crc32 " in run.attrs["data"] and run.config["model"].endswith("lines0")
    assert set(run.rounds["test_accuracy"]) <= {0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_run_has_the_same_bits_on_three_ranks_and_when_it_goes_on(results: Runs, texts: list[str], name: str) -> None:
    """A round on one rank, one on three: with the moments of LoRA's numbers. Mutations: LoRA's A drawn by each rank for
    itself; moments that are lost."""
    assert differences(results(name, 0), results(name, 3)) == []
    assert differences(results(name, 0), results.continued(name, 0, 3, (1, 2), *texts)) == []


@pytest.mark.slow
def test_a_result_tells_perplexities_and_costs(results: Runs) -> None:
    run = records.load(results("cse_fsl", 0))
    for part in ("test", "validation"):
        losses = run.rounds[f"{part}_loss"]
        np.testing.assert_allclose(run.rounds[f"{part}_perplexity"], np.exp(losses), rtol=1e-12)
        assert np.isfinite(run.rounds[f"{part}_perplexity_batches"]).all()
    assert any("if it computes its blocks again" in name for name in json.loads(run.attrs["costs"]))
    rules = "texts by Moses's rules, those of the test part by spaCy's"
    assert f", all 96 training texts, {rules}, network crc32 " in run.attrs["data"]


@pytest.mark.slow
def test_a_pretrained_model_is_kept_and_tuned(texts: list[str], capsys: Capsys) -> None:
    """By three commands. Mutations: the auxiliary's weights kept; an unembedding that is tied again; LoRA's B not 0."""
    begun = [*texts, *PRETRAINING, *RANDOM[:2], "--rounds", 3, "--out", "pre.h5", "--auxiliary-blocks", 0]
    assert here(FAMILY, *begun) == 0
    own, data_dir = (next(word for flag, word in pairwise(texts) if flag == name) for name in ("--data", "--data-dir"))
    assert export.main(["pre.h5", "tiny"]) == 2 and "--own" in capsys.readouterr().err
    assert export.main(["pre.h5", "tiny", "--own", own, "--data-dir", data_dir]) == 0
    assert not json.loads(Path("tiny/config.json").read_text())["tie_word_embeddings"]
    tuning = [*texts, "--model", "tiny", "--rounds", "1", "--eval-samples", "0", "--method", "sflv2"]
    still = ["--lr-client", "0", "--lr-server", "0", "--out", "still.h5"]
    assert here(FAMILY, *tuning, "--part", "finetune", *still) == 0
    found = records.load("still.h5").rounds["test_loss"][-1]
    run = records.load("pre.h5")
    setting, method = setting_of(run, FAMILY, own=[own], data_dir=data_dir, eval_samples=0)
    state = method.start()
    theta, theta_s = (torch.from_numpy(run.final[key]) for key in ("theta", "theta_s"))
    assert not torch.equal(theta, state.theta)
    problem = setting.problem
    with problem.evaluating(), problem.client_side.bound_to(theta), problem.server_side.bound_to(theta_s):
        sums = problem.score(*problem.samples(setting.test, np.arange(len(setting.test))))
    assert found == pytest.approx(problem.quality(sums)["loss"], rel=1e-5)
    capsys.readouterr()

    def refused(*words: str) -> str:
        assert here(FAMILY, *tuning, *words) == 2
        return capsys.readouterr().err

    told = refused("--part", "all")
    assert "--part all: --model tiny was trained on --part pretrain of these texts; take this, or finetune" in told
    assert "--model tiny was trained with --vocabulary e2e: take the same" in refused("--vocabulary", "gpt2")
    assert export.main(["pre.h5", "tiny", "--own", own, "--data-dir", data_dir]) == 2
    assert "tiny is there already" in capsys.readouterr().err
    config = json.loads(Path("tiny/config.json").read_text())
    del config["trained_on"]
    Path("tiny/config.json").write_text(json.dumps(config))
    assert "--model tiny knows" in (told := refused("--vocabulary", "gpt2")) and "the data have 50257: take the" in told


@pytest.mark.slow
def test_a_tied_matrix_stays_one_where_clients_hold_both_parts(texts: list[str], capsys: Capsys) -> None:
    """And the start says which tokens are taken, and where it becomes two. Mutation: two for every method."""
    loud = [word for word in texts if word != "--quiet"]
    numbers = {}
    for method in ("decomfl", "fedkseed", "sflv1"):
        words = ["--method", method, "--train", "all", *RANDOM, "--rounds", 1, "--out", f"{method}.h5"]
        assert here(FAMILY, *loud, *words) == 0
        told = capsys.readouterr().out
        assert " of GPT-2's tokens" in told and ("drift apart" in told) == (method == "sflv1")
        run = records.load(f"{method}.h5")
        numbers[method] = len(run.final["theta_s"])
    matrix = 192 * int(told.partition(" of GPT-2's tokens")[0].rpartition(" ")[2])
    assert numbers["decomfl"] == numbers["fedkseed"] == numbers["sflv1"] - matrix


@pytest.mark.slow
def test_ranks_of_a_node_hold_the_initial_model_once(results: Runs, data_dir: Path, monkeypatch: Patch) -> None:
    """Mutations: frozen weights alone; the server's part forgotten."""
    moved: set[int] = set()
    monkeypatch.setattr(frozen, "once_a_node", lambda _, tensors: moved.update(map(id, tensors)))
    run = records.load(results("decomfl", 0))
    problem = setting_of(run, FAMILY, own=[str(run.config["data"])], data_dir=data_dir)[0].problem
    assert moved >= set(map(id, (*problem.client_side.first, *problem.server_side.first)))


def test_what_is_no_model_is_refused(texts: list[str], capsys: Capsys, monkeypatch: Patch) -> None:
    """In a sentence that says what to do, without a look at the network."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("it looks at the network"))
    for folder, config in (("empty", None), ("vit", '{"model_type": "vit"}'), ("bad", '{"model_type": "gpt2"}')):
        Path(folder).mkdir()
        if config:
            Path(folder, "config.json").write_text(config)
    Path("bad/model.safetensors").write_text("no weights")
    rows = [{"context": "a" + " a" * count, "completion": " b"} for count in (1, 299, 1, 1)]
    Path("long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, sentence in (
        ("./none", "--model ./none: there is no such folder; allowed are random:tiny, random:small, random:medium"),
        ("empty", "--model empty: the folder holds no causal language model that transformers reads: "),
        ("bad", "--model bad: the folder holds no causal language model that transformers reads: "),
        ("vit", "--model vit: the folder holds no causal language model that transformers reads: "),
        ("random:huge", "--model random:huge: must be random:tiny, random:small, random:medium, random:FOLDER, a fol"),
        ("random:empty", "--model random:empty: the folder holds no causal language model that transformers reads: "),
        (
            "gpt2-none",
            "--model gpt2-none: no such folder, and the hub's cache on this machine has no such model; where",
        ),
    ):
        assert here(FAMILY, *texts, "--model", name) == 2
        told = capsys.readouterr().err
        assert sentence in told and "Traceback" not in told
        assert len(told.strip().splitlines()) == 1
    assert "`hf download gpt2-none`" in told
    made(*FAMILIES["llama"]).save_pretrained("llama")
    flags = [word for word in texts if word != "e2e"]
    flags.remove("--vocabulary")
    told = refused(capsys, FAMILY, *flags, "--model", "llama")
    assert "--model llama: a llama without a tokeniser (tokenizer.json, or vocab.json and merges.txt): put its" in told
    for flag, value, sentence in (
        ("--lora-rank", 0, "--lora-rank 0: must be a whole number, at least 1"),
        ("--lora-alpha", -1, "--lora-alpha -1.0: must be a number, at least 0"),
        ("--label-smoothing", 1, "--label-smoothing 1.0: must be from 0 to below 1"),
        ("--data", "long.jsonl", "long.jsonl, line 2: context and text have 301 tokens, the model takes 256 at most"),
    ):
        assert sentence in refused(capsys, FAMILY, *texts, *RANDOM, flag, value)


def test_libraries_that_are_not_installed_are_named(texts: list[str], capsys: Capsys, monkeypatch: Patch) -> None:
    for library, module in (("transformers", "transformers.models.gpt2.configuration_gpt2"), ("peft", "peft")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, library, None)
            patched.setitem(sys.modules, module, None)
            assert here(FAMILY, *texts, *RANDOM) == 2
        told = capsys.readouterr().err
        assert "--problem split_lm needs" in told and "which is not installed: pip install 'zofl_mpi[lm]'" in told


def test_a_step_that_is_too_large_ends_in_a_sentence(texts: list[str], capsys: Capsys) -> None:
    """A loss that is not finite."""
    words: list[Any] = ["--lr-client", "1e30", "--lr-server", "1e30", "--optimiser", "sgd", "--rounds", 2]
    assert here(FAMILY, *texts, "--model", "random:tiny", *words) != 0
    told = capsys.readouterr().err
    assert "is not finite" in told and "Traceback" not in told
