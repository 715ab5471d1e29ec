"""Numerics run as a rank does: one BLAS thread."""

from collections.abc import Iterator

import pytest

from tests.launch import one_thread


@pytest.fixture(autouse=True)
def one_blas_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
