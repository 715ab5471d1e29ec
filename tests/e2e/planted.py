"""ZO-HFL with a fault planted in it, for `--method planted:Planted`: the environment says which, in which round.

PLANT is slow; held (client 3's step, from round 2 on: until there is a file, then half a second a round); a name of
AT_THE_CLIENT (in client 3's step) or AT_THE_SERVER. Ranks may be processes or threads (`tests.threads`); among these
also kernel: rank 1 has none, and early_memory: nor memory before the rounds. kill_early kills process 1 there.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zofl_mpi.engine.clients import Client
from zofl_mpi.errors import UserError
from zofl_mpi.methods.zo_hfl import ZOHFL, Values
from zofl_mpi.rounds.report import GlobalModel

HERE = Path(__file__).parent
FAMILY = "zofl_mpi.zo_hfl"
OWN = ["--method", "planted:Planted"]
"""Named again where a run goes on: a class of one's own is not taken from a file."""
RUN = [*OWN, "--m", "4", "--rounds", "8", "--checkpoint-every", "2", "--eval-every", "3", "--y0", "last", "--tau", "3"]
"""With y0 = last the clients' memories must come back too."""
LAUNCHER = str(Path(sys.executable).parent / "mpirun")
ROUND, CLIENT, HELD = 5, 3, 2
STUCK: list[float] = []
"""When a client's step got stuck, in this process."""


def planted(plant: dict[str, str]) -> dict[str, str]:
    """The environment of a run."""
    return {"PLANT" if k == "kind" else f"PLANT_{k.upper()}": v for k, v in plant.items()}


def plant() -> str:
    return os.environ.get("PLANT", "")


def fail(words: str) -> NoReturn:
    raise ArithmeticError(words)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def no_memory() -> None:
    np.empty(2**60, np.uint8)


def full() -> NoReturn:
    """As torch where a GPU is full."""
    import torch

    told = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.19 GiB "
    raise torch.OutOfMemoryError(f"{told}is free. Of the allocated memory 130.00 GiB is allocated by PyTorch.")


def stuck() -> None:
    STUCK.append(time.monotonic())
    threading.Event().wait()


def hold(until: Path) -> None:
    """Waits for a file, and half a second more."""
    for _ in range(30_000):
        if until.exists():
            break
        time.sleep(0.01)
    time.sleep(0.5)


AT_THE_CLIENT: dict[str, Callable[[], Any]] = {
    "raise": lambda: fail("planted"),
    "system_exit": lambda: sys.exit(3),
    "gpu_memory": full,
    "host_memory": no_memory,
    "nan": lambda: Values(np.nan, 0.0),
    "kill_client": kill,
    "kill_once": lambda: kill() if os.environ["OMPI_COMM_WORLD_RANK"] == "1" else None,
    "stuck": stuck,
}
AT_THE_SERVER: dict[str, Callable[[Any, GlobalModel, Any], Any]] = {
    "kill_server": lambda *_: kill(),
    "server_memory": lambda *_: no_memory(),
    "raise_server": lambda *_: fail("planted at the server"),
    "exit_server": lambda *_: sys.exit(0),
    "unread": lambda method, model, clients: next(iter(clients.ask(method.personal, model))),
    "foreign": lambda method, model, clients: list(clients.ask(replace(method, eta=1.0).solve, model)),
    "vanish": lambda *_: Path(os.environ["PLANT_FILE"]).unlink(),
}


@dataclass(frozen=True)
class Planted(ZOHFL):
    def solve(self, client: Client, message: GlobalModel) -> Any:
        if plant() == "slow":
            time.sleep(0.05)
        if plant() == "held" and message.r >= HELD and client.i == CLIENT:
            hold(Path(os.environ["PLANT_FILE"]))
        here = (message.r, client.i) == (ROUND, CLIENT) and plant() in AT_THE_CLIENT
        return (AT_THE_CLIENT[plant()]() if here else None) or super().solve(client, message)

    def round(self, state: Any, r: int, clients: Any) -> Any:
        if r == ROUND and plant() in AT_THE_SERVER:
            AT_THE_SERVER[plant()](self, GlobalModel(state.x, r), clients)
        return super().round(state, r, clients)

    @property
    def kernel(self) -> str:
        if threading.current_thread().name == "rank 1":
            if plant() == "kernel":
                raise UserError("planted on one rank")
            if plant() == "early_memory":
                no_memory()
        if plant() == "kill_early" and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            kill()
        return super().kernel
