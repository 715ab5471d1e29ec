"""Splits by the data's own clients, by shards and by sizes: who holds what, by formula, and bad input in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Patch
from tests.unit.made import complaint
from zofl_mpi.data import Federation, Raw, partition
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.engine.world import SingleProcess
from zofl_mpi.settings.samples import Samples, setting_on

INF = float("inf")
LABELS = Streams(3)(1).integers(4, size=90)
WHOSE = np.array([7, 2**40, 0])[np.arange(90) % 3]
WHOSE[:4] = 5, 5, 5, 5


def raw(**fields: Any) -> Raw:
    return Raw(np.arange(len(LABELS), dtype=float)[:, None], LABELS, 4, **fields)


def rows(pool: Raw, partition_: str, seed: int = 1, **options: Any) -> list[list[int]]:
    """Of each client, of all rows but the first."""
    given = {"m": 3, "alpha": INF, "min_samples": 1, **options}
    rest = np.arange(1, len(pool.labels))
    parts = partition.client_rows(pool, rest, Streams(seed), partition=partition_, **given)
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    return [part.tolist() for part in parts]


def test_each_client_of_the_data_has_its_own_rows_in_the_order_of_their_numbers() -> None:
    """Whatever --m says. Mutations: the order of first appearance; rows of the whole; few that are kept, or counted
    with the held-out rows; samples that go elsewhere."""
    by_hand = [np.flatnonzero(i == WHOSE) for i in (0, 5, 7, 2**40)]
    assert rows(raw(clients=WHOSE), "natural", m=11) == [[row for row in part if row] for part in map(list, by_hand)]
    assert rows(raw(clients=WHOSE), "natural", min_samples=3)[1] == [1, 2, 3]
    kept = rows(raw(clients=WHOSE), "natural", min_samples=4)
    assert kept == [by_hand[i].tolist() for i in (0, 2, 3)]
    assert complaint(rows, raw(clients=WHOSE), "natural", min_samples=90).startswith(
        "--min-samples 90: none of the data's 4 clients has that many; choose at most "
    )


def held(parts: list[list[int]]) -> list[int]:
    return sorted(row for part in parts for row in part)


@pytest.mark.parametrize(("m", "K"), [(3, 1), (3, 2), (5, 3), (2, 30)])
def test_shards_are_pieces_of_the_sorted_labels(m: int, K: int) -> None:
    """Every client K of m K pieces of equal size but for one, all rows held once. Mutations: unsorted; neighbouring
    shards to a client; one shuffle for all seeds; a rest that is dropped."""
    parts = rows(raw(), f"shards:{K}", m=m)
    assert held(parts) == list(range(1, 90))
    chance = Streams(1)(Purpose.PARTITION)
    order = (1 + chance.permutation(89)).tolist()
    ordered = [row for label in range(4) for row in order if LABELS[row] == label]
    sizes = [89 // (m * K) + (s < 89 % (m * K)) for s in range(m * K)]
    ends = np.cumsum([0, *sizes])
    dealt = chance.permutation(m * K).tolist()
    for i, part in enumerate(parts):
        own = [ordered[ends[s] : ends[s + 1]] for s in dealt[i * K : (i + 1) * K]]
        assert part == held(own)
    assert parts != rows(raw(), f"shards:{K}", seed=2, m=m)


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_sizes_are_those_of_one_class_whose_spread_is_drawn(alpha: float) -> None:
    """The product of two ideas: by_class, where all are of one class; to each client the least first. Mutations: a
    class's own spread; another alpha; equal sizes; the least drawn for, which many clients never reach."""
    one = Raw(np.zeros((90, 1)), np.zeros(90, np.int64), 1)
    found = rows(raw(), f"quantity:{alpha}", m=4, min_samples=0)
    assert found == rows(one, "by_class", m=4, alpha=alpha, min_samples=0)
    assert held(found) == list(range(1, 90)) and len(set(map(len, found))) > 2
    fewer = Raw(np.zeros((90 - 4 * 12, 1)), np.zeros(90 - 4 * 12, np.int64), 1)
    further = rows(fewer, "by_class", m=4, alpha=alpha, min_samples=0)
    assert [len(part) - 12 for part in rows(raw(), f"quantity:{alpha}", m=4, min_samples=12)] == [*map(len, further)]
    assert rows(raw(), "quantity:inf") == rows(raw(), "by_class")


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("shards:0", {}, ["--partition shards:0: choose by_class, by_mix, shards:K with a whole number"]),
        ("shards:1.5", {}, ["--partition shards:1.5: choose"]),
        ("shards", {}, ["--partition shards: choose"]),
        ("shards:inf", {}, ["--partition shards:inf: choose"]),
        ("shards:nan", {}, ["--partition shards:nan: choose"]),
        ("quantity:-1", {}, ["--partition quantity:-1: choose", "quantity:ALPHA with a Dirichlet"]),
        ("quantity:nan", {}, ["--partition quantity:nan: choose"]),
        ("natural:3", {}, ["--partition natural:3: choose"]),
        ("by_clas", {}, ["--partition by_clas: choose"]),
        ("natural", {}, ["--partition natural: these data name no clients", "array client"]),
        ("shards:2", {"m": 60}, ["--partition shards:2: with 60 clients and 89 samples a client may have 0"]),
        ("shards:3", {"m": 10, "min_samples": 8}, ["a client may have 6, and each must have --min-samples 8"]),
        ("shards:2", {"alpha": 0.5}, ["--alpha 0.5: --partition shards:2 has no use for it"]),
        ("natural", {"alpha": 0.5}, ["--alpha 0.5: --partition natural has no use for it"]),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_a_sentence(scheme: str, options: dict[str, Any], words: list[str]) -> None:
    said = complaint(rows, raw(), scheme, **options)
    for word in words:
        assert word in said


# --- files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("ZOFL_CACHE", str(tmp_path / "cache"))


def stored(folder: Path, **arrays: Any) -> str:
    given = {"x": np.arange(180.0).reshape(90, 2), "y": LABELS, "client": WHOSE, **arrays}
    np.savez(folder / "own.npz", **{name: value for name, value in given.items() if value is not None})
    return str(folder / "own.npz")


def federation(path: str, **flags: Any) -> Federation:
    return Samples(data=path, **{"partition": "natural", **flags}).federation(SingleProcess(), Streams(1))


def test_a_file_is_split_by_its_array_client_and_small_clients_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the cache, on features too; the held-out parts are those of any other partition. Mutations: m of the
    flag; a warning on every client; clients that are left out without a word."""
    found = federation(path := stored(tmp_path, client=WHOSE.astype(np.uint16) + np.uint16(3)), min_samples=4)
    assert "warning: --partition natural: 1 of 3 clients (8) left out, with fewer than --min-samples 4 samples" in (
        capsys.readouterr().err
    )
    plain = federation(stored(tmp_path, client=None), partition="by_class", m=2)
    for name in ("test", "server"):
        np.testing.assert_array_equal(getattr(found, name).rows, getattr(plain, name).rows)
    rest = np.sort(np.concatenate([part.rows for part in plain.clients]))
    ids = WHOSE.astype(np.uint16)  # 2**40 is 0 then
    expected = [rest[ids[rest] == i] for i in np.unique(ids[rest]) if (ids[rest] == i).sum() >= 4]
    assert len(found.clients) == len(expected) == 2
    for part, own in zip(found.clients, expected, strict=True):
        np.testing.assert_array_equal(part.rows, own)
    capsys.readouterr()
    assert len(federation(stored(tmp_path), min_samples=1).clients) == 4 and not capsys.readouterr().err
    reduced = federation(path, features="pca:1", min_samples=1)
    assert ", clients crc32 " in reduced.fingerprint and reduced.server.features == 2


def test_clients_are_named_as_the_file_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers in their order, then names in theirs. Mutations: the order of texts (10 before 2); indices in the
    warning; a name's escape sequences on the screen."""
    names = np.array(["b", "10", "2", "a\x1b[2J", "007", "-3", "7"])
    own = names[np.arange(90) % 7]
    own[own == "a\x1b[2J"] = "b"
    own[0] = "a\x1b[2J"
    found = federation(stored(tmp_path, client=own), min_samples=2)
    said = capsys.readouterr().err
    assert "1 of 7 clients ('a\\x1b[2J') left out, with fewer than --min-samples 2 samples" in said
    held = [own[part.rows].tolist() for part in found.clients]
    assert [part[0] for part in held] == ["-3", "2", "007", "7", "10", "b"] and all(
        len(set(part)) == 1 for part in held
    )
    assert "a name may have at most 200 characters" in complaint(
        federation, stored(tmp_path, client=np.array(["x" * 201] * 90))
    )


def test_a_file_with_clients_is_refused_for_another_partition(tmp_path: Path) -> None:
    """Mutation: the array is ignored without a word."""
    said = complaint(federation, path := stored(tmp_path), partition="by_mix", alpha=0.5)
    assert said.startswith(f"--data {path} holds x, y and client: --partition natural shares the samples out by client")
    assert "--partition by_mix it must hold x and y alone" in said
    assert "name no clients" in complaint(federation, stored(tmp_path, client=None))
    assert "choose by_class" in complaint(federation, stored(tmp_path, client=None), partition="by_clas")


def test_other_clients_are_other_data(tmp_path: Path) -> None:
    """A run whose file now says otherwise may not go on. Mutation: a fingerprint of inputs and labels alone."""

    class Site:
        streams, dtype = Streams(1), "float32"

    def fingerprint(client: np.ndarray) -> str:
        return setting_on(Site, None, federation(stored(tmp_path, client=client), min_samples=1)).fingerprint  # type: ignore[arg-type]

    first = fingerprint(WHOSE)
    assert first == fingerprint(WHOSE) != fingerprint(WHOSE[::-1].copy()) and ", clients crc32 " in first
