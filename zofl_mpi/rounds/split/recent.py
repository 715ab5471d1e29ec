"""The last uploads of each client, kept at the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from zofl_mpi.engine.lazy import Tensor, torch
from zofl_mpi.rounds.split.messages import Smashed


@final
class RecentUploads:
    """The last uploads of each client, on which FSL-SAGE aligns its head.

    They stay where they came: beside other ranks on the host, in one process where the network computes. Samples that
    are alike are joined, {i: (N, *smashed_shape)}. Others are padded to the longest of their mini-batch, by how much no
    method knows, so mini-batches stay apart, {i: {number: (B, ...)}}, the oldest first.
    """

    def __init__(self, smashed: Mapping[str, Any], labels: Mapping[str, Any], size: int, alike: bool = True) -> None:
        self.smashed, self.labels = dict(smashed), dict(labels)
        self.size, self.alike = size, alike

    def add(self, i: int, item: Smashed) -> None:
        """Appends an upload of client i, and forgets the oldest samples beyond the size."""
        for kept, given in ((self.smashed, item.s), (self.labels, item.labels)):
            uploads = [*in_order(kept.get(str(i), {})), given.detach().clone()]
            if self.alike:
                kept[str(i)] = torch.cat([upload.to(given.device) for upload in uploads])[-self.size :]
            else:
                kept[str(i)] = self._newest(uploads)

    def uploads(self, i: int) -> list[tuple[Tensor, Tensor]]:
        """Smashed samples and labels of client i, in the mini-batches in which the alignment takes them."""
        return list(zip(in_order(self.smashed[str(i)]), in_order(self.labels[str(i)]), strict=True))

    def _newest(self, uploads: list[Tensor]) -> dict[str, Tensor]:
        """The newest samples of some uploads, as many as there is room for."""
        left = self.size
        found: list[Tensor] = []
        for upload in reversed(uploads):
            if left > 0:
                found.append(upload[-left:])
                left -= len(found[-1])
        return {str(number): upload for number, upload in enumerate(reversed(found))}


def in_order(uploads: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    """The uploads in the order of their numbers: a checkpoint keeps them in that of their names."""
    return [uploads[n] for n in sorted(uploads, key=int)] if isinstance(uploads, Mapping) else [uploads]
