"""Steps of the engine that fetch the clients' memories for a checkpoint and restore them."""

from dataclasses import dataclass
from typing import Any, final

from zofl_mpi.engine import messages
from zofl_mpi.engine.clients import Client, Step


@final
@dataclass(frozen=True)
class Memory:
    """Message with a client's memory, to a checkpoint and back."""

    entries: dict[str, Any]


@final
@dataclass(frozen=True)
class Acknowledged:
    """Empty message."""


def recall(client: Client, message: Acknowledged) -> Memory:
    """Step: return the client's memory, for a checkpoint."""
    return Memory(dict(client.memory))


def restore(client: Client, message: Memory) -> Acknowledged:
    """Step: set the client's memory from a checkpoint."""
    client.memory = messages.copy(message).entries
    return Acknowledged()


recall.__name__, restore.__name__ = "<recall>", "<restore>"  # no method's step can have these names
STEPS: dict[str, Step] = {"<recall>": recall, "<restore>": restore}
"""Steps of the engine itself, by name."""
