"""Every kind of trials, under pytest."""

from __future__ import annotations

import pytest

from tests.adversary.frame import kinds, perform


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_all_trials_hold(kind: str) -> None:
    count, broken = perform(kind)
    assert count and not broken
