"""torch, imported when it is first used: that costs each rank a second, and a GPU and threads are chosen before."""

from typing import TYPE_CHECKING, Any


class _Torch:
    def __getattr__(self, name: str) -> Any:
        import torch  # the statement, which costs less than import_module: it is in every step

        return getattr(torch, name)


if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch, Tensor = _Torch(), Any

__all__ = ["Tensor", "torch"]
