"""A part of each kind of attack holds; python -m tests.adversary has them all."""

import pytest

from tests import adversary


@pytest.mark.parametrize("kind", adversary.KINDS)
def test_a_part_of_each_kind_holds(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    every = 601 if kind == "retyped" else 9  # of some 23,000
    attacks, faults = adversary.run([kind], every, tmp_path_factory.mktemp(kind))[kind]
    assert attacks >= 5 and not faults
