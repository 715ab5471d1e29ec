"""A part of each kind of attack holds; python -m tests.adversary has them all."""

import pytest

from tests import adversary


@pytest.mark.parametrize("kind", adversary.KINDS)
def test_a_part_of_each_kind_holds(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    attacks, faults = adversary.run([kind], 9, tmp_path_factory.mktemp(kind))[kind]
    assert attacks >= 5 and not faults
