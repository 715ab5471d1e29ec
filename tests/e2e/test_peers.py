"""tests.bench.peers: the loops by hand do this package's work, and what cannot be compared is not compared."""

import sys
import venv
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bench.peers import __main__ as peers
from tests.bench.peers import whole
from tests.bench.peers.work import Plan
from tests.conftest import Patch
from zofl_mpi.engine.clients import Client
from zofl_mpi.rounds.split.unsplit import ModelBroadcast


def test_the_loops_by_hand_do_the_same_work(tmp_path: Path) -> None:
    """Mutations: a step of twice the size; labels not subtracted; the clients' mean left out; another partition."""
    todo = Plan("softmax", 20, steps=5, batch=32, step=0.1)
    words = peers.words_of(todo, "digits", "data")
    work = peers.shared_work(todo, words)
    work.save(tmp_path / "work.npz")
    assert work.x0.shape == (64 * 10,) and work.x.shape == (work.ends[-1], 64) and len(work.ends) == 10
    found = {name: of for name, of in peers.variants().items() if name == peers.HERE or "1 thread" in name}
    why = {name: peers.run(of, 0, words, todo, tmp_path, tmp_path) for name, of in found.items()}
    assert len(found) == 3 and set(why.values()) == {""}
    accuracies = {name: of.accuracies[0] for name, of in found.items()}
    assert accuracies[peers.HERE] > 85 and not peers.different(accuracies, 3.0), accuracies
    assert all(of.rounds[0] > 0 and of.starts[0] > 0 for of in found.values())


def test_a_ratio_is_that_of_the_same_turn() -> None:
    """A turn that failed has none. Mutations: a ratio of medians; upside down; seconds for ms; turns by their place."""
    made = ({0: 1.0, 1: 4.0, 2: 2.0, 3: 9.0}, {0: 2.0, 1: 4.0, 3: 36.0})
    here, other = (peers.Variant(rounds=rounds, starts={0: 1.0}, accuracies={0: 90.0}) for rounds in made)
    first, second = peers.rows({peers.HERE: here, "other": other}, {})
    assert (first["ms"], first["ms_least"], first["ratio"]) == (3000, 1000, 1)
    assert (second["ms"], second["ratio"], second["ratio_least"], second["ratio_most"]) == (4000, 2, 1, 4)


def test_what_cannot_be_installed_is_a_row_that_says_why(tmp_path: Path, monkeypatch: Patch) -> None:
    """Mutations: pip's failure taken for success; a row without the reason."""

    def create(place: Path, with_pip: bool) -> None:
        """This environment's pip, which installs nothing here, in place of a new one's: that takes seconds."""
        (place / "bin").mkdir(parents=True)
        (place / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (place / "bin/python").chmod(0o755)

    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setitem(peers.PINS, "pfl", "--no-index --find-links=nowhere no-such-package==1.0")
    told = peers.installed("pfl", tmp_path)
    assert told.startswith("ERROR: No matching distribution found for no-such-package==1.0")
    (row,) = peers.rows({"pfl": peers.Variant(peer="pfl")}, {"pfl": told})
    assert f"not run: {told}" in peers.text_of([row], ["head"]) and set(row) <= set(peers.COLUMNS)


@pytest.mark.parametrize(("accuracy", "right"), [(91.0, True), (89.0, True), (91.1, False), (np.nan, False)])
def test_another_accuracy_is_other_work(accuracy: float, right: bool) -> None:
    """Mutations: only a lower one counts; NaN passes."""
    assert peers.different({peers.HERE: 90.0, "other": accuracy}, 1.0) is not right


def test_a_step_of_a_whole_model_is_that_of_its_name() -> None:
    """One direction, drawn once or again, with the bits of both; tied, as transformers has it. Mutations: the default
    number of directions; an untied model; directions that are kept where the way says otherwise."""
    V, width, blocks, _ = whole.SIZES[1]
    tokens = torch.randint(0, V, (whole.TEXTS, whole.TOKENS + 1))
    losses = []
    for kept in (True, False):
        torch.manual_seed(0)  # of the model
        of = whole.method_of(1, tokens, kept)
        assert of.loss.flat.n == (V + 256) * width + blocks * (12 * width + 13) * width + 2 * width
        message = ModelBroadcast(of.loss.flat.initial()[0], {}, torch.zeros(0), 0, of.rule.span, of.problem.arithmetic)
        reply = of.train(Client(0, of.setting.data[0]), message)
        losses.append((reply.loss, reply.differences.tobytes()))
        assert reply.differences.shape == (1, 1) and bool(of.kept_steps) is kept
    assert losses[0] == losses[1]
