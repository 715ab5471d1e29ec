"""torch, imported when it is first used: that costs each rank a second, and a GPU and threads are chosen before."""

from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        import torch

        value = vars(self)[name] = getattr(torch, name)  # asked for once: lookups are in every step
        return value


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = _Torch(), Any

__all__ = ["Tensor", "torch"]
