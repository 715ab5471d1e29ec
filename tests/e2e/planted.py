"""ZO-HFL with a fault planted in it, for `--method planted:Planted`: the environment says which, in which round.

PLANT = raise, system_exit, nan, stuck, kill_client or kill_once (in client 3's step; once: on rank 1), kill_server,
raise_server, exit_server, unread (a question), foreign (another object's step), fill (the disk), vanish (the result),
slow; held (client 3's step, from round 2 on: until there is a file, then half a second a round); gpu_memory,
host_memory (in client 3's step), server_memory: there is none left. Ranks may be processes or threads
(`tests.threads`); among these also kernel: rank 1 has none, and early_memory: nor memory before the rounds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.methods.zo_hfl import ZOHFL, Values
from zofl_mpi.rounds.report import Model

ROUND = 5
CLIENT = 3
HELD = 2
STUCK: list[float] = []
"""When a client's step got stuck, in this process."""


def plant() -> str:
    return os.environ.get("PLANT", "")


@dataclass(frozen=True)
class Planted(ZOHFL):
    def solve(self, client: Client, message: Model) -> Any:
        if plant() == "slow":
            time.sleep(0.05)
        if plant() == "held" and message.r >= HELD and client.i == CLIENT:
            _hold(Path(os.environ["PLANT_FILE"]))
        if message.r == ROUND and client.i == CLIENT:
            if plant() == "raise":
                raise ArithmeticError("planted")
            if plant() == "system_exit":
                sys.exit(3)
            if plant() == "gpu_memory":
                raise full()
            if plant() == "host_memory":
                np.empty(2**60, np.uint8)
            if plant() == "nan":
                return Values(np.nan, 0.0)
            if plant() == "kill_client":
                os.kill(os.getpid(), signal.SIGKILL)
            if plant() == "kill_once" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            if plant() == "stuck":
                STUCK.append(time.monotonic())
                threading.Event().wait()
        return super().solve(client, message)

    def round(self, state: Any, r: int, clients: Any) -> Any:
        if r == ROUND:
            if plant() == "kill_server":
                os.kill(os.getpid(), signal.SIGKILL)
            if plant() == "server_memory":
                np.empty(2**60, np.uint8)
            if plant() == "raise_server":
                raise ArithmeticError("planted at the server")
            if plant() == "exit_server":
                sys.exit(0)
            if plant() == "unread":
                next(iter(clients.ask(self.personal, Model(state.x, r))))
            if plant() == "foreign":
                list(clients.ask(replace(self, eta=1.0).solve, Model(state.x, r)))
            if plant() == "vanish":
                Path(os.environ["PLANT_FILE"]).unlink()
            if plant() == "fill":
                _fill(Path(os.environ["PLANT_FOLDER"]))
        return super().round(state, r, clients)

    @property
    def kernel(self) -> str:
        if plant() == "kernel" and threading.current_thread().name == "rank 1":
            raise UserError("planted on one rank")
        if plant() == "early_memory" and threading.current_thread().name == "rank 1":
            np.empty(2**60, np.uint8)
        return super().kernel


def full() -> Exception:
    """What torch raises where a GPU is full."""
    import torch

    told = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.19 GiB "
    return torch.OutOfMemoryError(f"{told}is free. Of the allocated memory 130.00 GiB is allocated by PyTorch.")


def _hold(until: Path) -> None:
    """Waits for a file, and half a second more."""
    for _ in range(30_000):
        if until.exists():
            break
        time.sleep(0.01)
    time.sleep(0.5)


def _fill(folder: Path) -> None:
    """Writes until the disk is full."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 512)
        except OSError:
            pass
