"""Zeroth-order federated learning on MPI: the same answer, bit for bit, on any number of ranks.

A method, a problem or a script of your own may import these names; everything else may move:

- `Method`: base of a method, with the members that it may leave out.
- `Setting`: a method's problem, data of server and clients, and random numbers.
- `Client`, `Clients`: a client as its steps see it; all clients, as the server asks them. `Step`: the type of a step.
- `Array`: the type of a NumPy array of numbers.
- `Purpose`: purpose of random numbers; with round, client and step it is their key.
- `column`, `part`, `given`: fields of states and reports, of groups of flags, and fields that the run gives.
- `at_least`, `above`, `fraction`: flags with a range, checked by the command line.
- `finite`: a field of a message whose value must be finite, with the sentence that ends the run otherwise.
- `change`: such a field by which a client changes something; clipping, noise and robust means are about it.
- `Dataset`, `Federation`: samples; who holds which of them.
- `Loads`: the work that a method plans for each client, by which they are placed on ranks.
- `Directions`: how many directions a zeroth-order method draws, and their length.
- `UserError`, `demand`: a mistake of the user, in one sentence; a check of a flag.
- `records`: results and checkpoints; `records.load(path)` reads a result.
"""

from typing import TYPE_CHECKING, Any

from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import Array, above, at_least, change, column, finite, fraction, given, part
from zofl_mpi.engine.setting import Directions, Loads, Method, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError, demand

if TYPE_CHECKING:
    from zofl_mpi.data import Dataset, Federation
    from zofl_mpi.run import records

__version__ = "1.0.0"
__all__ = [
    "Array",
    "Client",
    "Clients",
    "Dataset",
    "Directions",
    "Federation",
    "Loads",
    "Method",
    "Purpose",
    "Setting",
    "Step",
    "UserError",
    "above",
    "at_least",
    "change",
    "column",
    "demand",
    "finite",
    "fraction",
    "given",
    "part",
    "records",
]


def __getattr__(name: str) -> Any:
    """Imports HDF5 and the data sets when they are asked for: ranks that need neither start sooner."""
    if name == "records":
        from zofl_mpi.run import records

        return records
    if name in ("Dataset", "Federation"):
        from zofl_mpi import data

        return getattr(data, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
