"""What end-to-end tests share."""

from collections.abc import Iterator

import pytest

from tests.launch import undisturbed


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """A run in this process leaves signal handlers and threads as they were."""
    with undisturbed():
        yield
