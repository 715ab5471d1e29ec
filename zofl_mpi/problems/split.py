"""A network in three parts: a client's, its auxiliary head, and the server's ([C], SplitFed, CSE-FSL).

    smashed = client(inputs),   local logits = auxiliary(smashed),   logits = server(smashed)

All losses are mean cross-entropies over a batch. A client's trainable numbers are theta_l = (theta_c, theta_a), flat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.data import Dataset
from zofl_mpi.errors import UserError
from zofl_mpi.vectors import Flat

BLOCK = 256  # samples that are looked at together when all data are


@final
@dataclass(frozen=True)
class Split:
    """The parts, and what is computed with them. The methods that train it hold all vectors.

    Attributes:
        client, auxiliary, server: modules; `client` and `auxiliary` together are the local part.
        input_shape: what an input (p,) is reshaped to.
        classes: C.
        dtype: "float32" or "float64", of all vectors.
        device: where it computes, as torch calls it.
        bf16: forward passes in bfloat16 where torch's autocast does so; losses in float32.
    """

    client: nn.Module
    auxiliary: nn.Module
    server: nn.Module
    input_shape: tuple[int, ...]
    classes: int
    dtype: str = "float32"
    device: str = "cpu"
    bf16: bool = False
    local: Flat = field(init=False, repr=False, compare=False)
    top: Flat = field(init=False, repr=False, compare=False)
    smashed_shape: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        kind = getattr(torch, self.dtype)
        for part in (self.client, self.auxiliary, self.server):
            part.to(torch.device(self.device), kind, memory_format=torch.channels_last)  # type: ignore[call-overload]
            part.train()
        object.__setattr__(self, "smashed_shape", self._tried())
        object.__setattr__(self, "local", Flat([self.client, self.auxiliary]))
        object.__setattr__(self, "top", Flat([self.server]))

    def _tried(self) -> tuple[int, ...]:
        """The shape of a smashed sample, from two samples through all parts; leaves no trace in them.

        Raises:
            UserError: a part does not fit what it gets.
        """
        kept = [b.clone() for part in self._parts() for b in part.buffers()]
        inputs = torch.zeros(2, *self.input_shape, dtype=getattr(torch, self.dtype), device=self.device)
        with torch.no_grad():
            smashed = self._through("client", self.client, inputs)
            for name, part in (("auxiliary", self.auxiliary), ("server", self.server)):
                logits = self._through(name, part, smashed)
                if logits.shape != (2, self.classes):
                    raise UserError(
                        f"the {name} part maps smashed samples of shape {tuple(smashed.shape[1:])} to "
                        f"{tuple(logits.shape[1:])}; it must give {self.classes} logits"
                    )
        for b, value in zip((b for part in self._parts() for b in part.buffers()), kept, strict=True):
            b.copy_(value)
        return tuple(smashed.shape[1:])

    def _through(self, name: str, part: nn.Module, x: Tensor) -> Tensor:
        try:
            found = part(x)
        except Exception as exc:  # the user's code, and torch's many exceptions for shapes
            wants = next((m.in_features for m in part.modules() if isinstance(m, nn.Linear)), None)
            told = f" (its first linear layer takes {wants} numbers)" if wants else ""
            raise UserError(
                f"the {name} part does not take samples of shape {tuple(x.shape[1:])}{told}: {exc}".splitlines()[0]
            ) from exc
        if not isinstance(found, Tensor):
            raise UserError(f"the {name} part returns a {type(found).__name__}, not a tensor")
        return found

    def _parts(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.client, self.auxiliary, self.server

    # --- sizes

    @property
    def n_client(self) -> int:
        """|theta_c|, the first part of theta_l."""
        return self.local.sizes()[0]

    @property
    def smashed_numbers(self) -> int:
        """q_s, numbers of a smashed sample."""
        return int(np.prod(self.smashed_shape))

    def kernel_name(self, batch_size: int) -> str:
        """torch, and the kind of device: each kind rounds differently."""
        return f"torch {torch.device(self.device).type}{' bf16' if self.bf16 else ''}"

    # --- computing

    def smash(self, inputs: Tensor) -> Tensor:
        """(B, *smashed_shape), within `local.at`."""
        with self._precision():
            return self.client(inputs)  # type: ignore[no-any-return]

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """Of the auxiliary head, within `local.at`; summed in float64 where no gradient is asked for."""
        with self._precision():
            logits = self.auxiliary(smashed)
        return loss_of(logits, labels)

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        """Of the server's part, within `top.at`."""
        with self._precision():
            logits = self.server(smashed)
        return loss_of(logits, labels)

    def logits(self, inputs: Tensor) -> Tensor:
        """Of the whole network, within `local.at` and `top.at`."""
        with self._precision():
            return self.server(self.client(inputs))  # type: ignore[no-any-return]

    @property
    def normalised(self) -> bool:
        """Whether some part has a BatchNorm."""
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        return any(isinstance(m, kinds) for part in self._parts() for m in part.modules())

    def _precision(self) -> Any:
        return torch.autocast(torch.device(self.device).type, torch.bfloat16) if self.bf16 else nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Meanwhile BatchNorm uses its running statistics, dropout is off, and no graph is kept."""
        for part in self._parts():
            part.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part in self._parts():
                part.train()

    def samples(self, data: Dataset, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs (B, *input_shape) and labels (B,) on the device."""
        inputs, labels = data.take(positions, np.dtype(self.dtype))
        x = torch.from_numpy(inputs).to(self.device, non_blocking=True).reshape(-1, *self.input_shape)
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
        return x, torch.from_numpy(labels).to(self.device)

    def placed(self, value: Tensor) -> Tensor:
        """A tensor that has travelled, on the device."""
        return value.to(self.device)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy: with a graph in the logits' own precision (at least float32), else summed in float64."""
    if logits.requires_grad:
        return cross_entropy(logits.float() if logits.dtype == torch.bfloat16 else logits, labels)
    return cross_entropy(logits.double(), labels)
