"""Counters of torch operations: FLOPs, and bytes of allocated tensors."""

import itertools
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
FORMULAS = {
    **flop_registry,
    aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[aten._scaled_dot_product_flash_attention],
    aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        aten._scaled_dot_product_flash_attention_backward
    ],
}
"""{operation: FLOP formula}: torch's own, and those of attention on a CPU, which torch lacks."""


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that sees each torch operation."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: otherwise the first operation imports torch's compiler, which takes two seconds."""
        return False


class Products(_Mode):  # type: ignore[no-untyped-call]
    """Counts FLOPs of products and convolutions like torch's FlopCounterMode; causal attention counts all T x T."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


class Allocations(_Mode):  # type: ignore[no-untyped-call]
    """Counts bytes of tensors that torch allocates, currently and at peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0  # bytes
        self.events: list[tuple[int, int]] = []  # (k, bytes): the k-th tensor is allocated; (k, -bytes): freed
        self._made = itertools.count()
        self._known: dict[int, weakref.finalize[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in before:
                self._count(t.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size and key not in self._known:
            k = next(self._made)
            self._known[key] = weakref.finalize(storage, self._freed, key, k, size)
            self._record(k, size)

    def _freed(self, key: int, k: int, size: int) -> None:
        del self._known[key]
        self._record(k, -size)

    def _record(self, k: int, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)
        self.events.append((k, size))
