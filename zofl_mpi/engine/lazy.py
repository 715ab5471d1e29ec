"""Import torch on first use: it costs each rank a second, and GPU and threads must be chosen before."""

import sys
from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        import torch

        self.__dict__ = torch.__dict__  # later look-ups go to torch itself, at no extra cost
        return getattr(torch, name)


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = _Torch(), Any

__all__ = ["Tensor", "imported_torch", "is_tensor", "torch"]


def imported_torch() -> Any:
    """torch, if it is completely imported (another thread may be importing it); else None."""
    found = sys.modules.get("torch")
    return None if getattr(getattr(found, "__spec__", None), "_initializing", False) else found


def is_tensor(value: Any) -> bool:
    """True for a torch tensor; does not import torch."""
    found = imported_torch()
    return found is not None and isinstance(value, found.Tensor)
