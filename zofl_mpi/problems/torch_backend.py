"""Problems for which torch computes many clients' steps at once on any device: by their fields `kernel`, `device`."""

from __future__ import annotations

from typing import Any

from zofl_mpi.engine.batching import MANY
from zofl_mpi.problems.base import Problem


class TorchBackend(Problem):
    """What such problems have in common.

    Attributes:
        obstacle: why "auto" does not take torch on a GPU; "" where it does.
    """

    kernel: Any
    device: Any
    obstacle: str = ""

    @property
    def uses_torch(self) -> bool:
        """Whether torch computes: where it is asked for, and by "auto" on a GPU."""
        return bool(self.kernel == "torch" or (self.kernel == "auto" and self.device != "cpu" and not self.obstacle))

    @property
    def abreast(self) -> int:
        """How many clients' steps are to run at once; see `run.abreast`."""
        return MANY if self.uses_torch else 1

    @property
    def torch_name(self) -> str:
        """What is recorded where torch computes: kinds of devices agree to rounding only."""
        return f"torch {self.device.partition(':')[0]}"
