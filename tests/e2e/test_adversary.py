"""A part of each kind of attack holds; python -m tests.adversary has them all."""

from pathlib import Path

import pytest

from tests import adversary


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adversary.finished_run(tmp_path_factory.mktemp("adversary") / "made")


@pytest.mark.parametrize("kind", adversary.KINDS)
def test_a_part_of_each_kind_holds(kind: str, made: Path) -> None:
    every = 601 if kind == "retyped" else 9  # of some 23,000
    attacks, faults = adversary.run([kind], every, made)[kind]
    assert attacks >= 5 and not faults
