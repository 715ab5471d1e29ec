"""tests.bench.peers: the loops by hand do this package's work, and what cannot be compared is not compared."""

from tests.bench.peers import __main__ as peers
from tests.bench.peers.work import Plan
from tests.e2e.made import *


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
    monkeypatch.setitem(peers.PINS, "pfl", "--no-index --find-links=nowhere no-such-package==1.0")
    told = peers.installed("pfl", tmp_path)
    assert told.startswith("ERROR: No matching distribution found for no-such-package==1.0")
    (row,) = peers.rows({"pfl": peers.Variant(peer="pfl")}, {"pfl": told})
    assert f"not run: {told}" in peers.text_of([row], ["head"]) and set(row) <= set(peers.COLUMNS)


@pytest.mark.parametrize(("accuracy", "right"), [(91.0, True), (89.0, True), (91.1, False), (np.nan, False)])
def test_another_accuracy_is_other_work(accuracy: float, right: bool) -> None:
    """Mutations: only a lower one counts; NaN passes."""
    assert peers.different({peers.HERE: 90.0, "other": accuracy}, 1.0) is not right
