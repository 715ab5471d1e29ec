"""A script goes on after a run as if there had been none."""

import torch

from zofl_mpi.api import isolation


def test_torch_is_as_it_was_before_the_run() -> None:
    """What `device.reproducible` sets, too. Mutations: any left out but the threads, which are OpenMP's as well."""
    before, cudnn = isolation._settings(torch), torch.backends.cudnn
    with isolation.put_back():
        torch.set_num_threads(before[0] + 1)
        torch.use_deterministic_algorithms(not before[1], warn_only=not before[2])
        torch.utils.deterministic.fill_uninitialized_memory = not before[3]  # type: ignore[attr-defined]
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = (not each for each in before[4:7])
        torch.set_float32_matmul_precision("medium")
        assert not any(new == old for new, old in zip(isolation._settings(torch), before, strict=True))
    assert isolation._settings(torch) == before
