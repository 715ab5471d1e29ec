"""Numerics run as a rank does: one BLAS thread."""

from collections.abc import Callable, Iterator
from functools import cache

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


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """stored(FAMILY): the folder of a language model of this family, written once for a file of tests."""
    from tests.numerics.test_lm_families import FAMILIES, made

    @cache
    def folder(name: str) -> str:
        place = tmp_path_factory.mktemp("model")
        made(*FAMILIES[name]).save_pretrained(place)
        return str(place)

    return folder
