"""torch, imported when it is first used: that costs each rank a second, and a GPU and threads are chosen before."""

import importlib
from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = _Torch(), Any

__all__ = ["Tensor", "torch"]
