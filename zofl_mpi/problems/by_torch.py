"""Problems that NumPy computes on the CPU and torch on any device, by their fields `kernel` and `device`."""

from __future__ import annotations

from typing import Any

from zofl_mpi.run.abreast import MANY


class ByTorch:
    """What such problems have in common."""

    kernel: Any
    device: Any

    @property
    def by_torch(self) -> bool:
        """Whether torch computes: where it is asked for, and by "auto" on a GPU."""
        return bool(self.kernel == "torch" or (self.kernel == "auto" and self.device != "cpu"))

    @property
    def abreast(self) -> int:
        """How many clients' steps are to run at once; see `run.abreast`."""
        return MANY if self.by_torch else 1

    @property
    def torch_name(self) -> str:
        """What is recorded where torch computes: kinds of devices agree to rounding only."""
        return f"torch {self.device.partition(':')[0]}"
