"""torch, imported when it is first used: that costs each rank a second, and a GPU and threads are chosen before."""

import sys
from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        import torch

        self.__dict__ = torch.__dict__  # from now on a look-up costs what it costs in torch itself
        return getattr(torch, name)


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = _Torch(), Any

__all__ = ["Tensor", "imported_torch", "is_tensor", "torch"]


def imported_torch() -> Any:
    """torch, if it is imported completely: another thread may be importing it; else None."""
    found = sys.modules.get("torch")
    return None if getattr(getattr(found, "__spec__", None), "_initializing", False) else found


def is_tensor(value: Any) -> bool:
    """True if it is a tensor; without importing torch."""
    found = imported_torch()
    return found is not None and isinstance(value, found.Tensor)
