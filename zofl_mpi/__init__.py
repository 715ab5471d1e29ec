"""Zeroth-order federated learning on MPI: the same answer, bit for bit, on any number of ranks.

A method, a problem or a script of your own may import these names; everything else may move:

- `Method`: base class of methods, with defaults for optional members.
- `Problem`, `BilevelProblem`: base classes of problems.
- `Setting`: a method's problem, data of server and clients, and random numbers.
- `Client`, `Clients`: a client in its steps; all clients, for the server's questions. `Step`: the type of a step.
- `Reply`: a reply with a part that is added up on the client's rank; `Reduction`: the mean of these parts.
- `Array`: the type of a NumPy array of numbers.
- `Purpose`: purpose of random numbers; with round, client and step it is their key.
- `column`, `flag_group`, `injected`: fields of states and reports, of groups of flags, and fields that the run gives.
- `at_least`, `above`, `fraction`: flags with a range, checked by the command line.
- `finite`: a message field that must be finite, with the error message if it is not.
- `change`: a reply field with a client's change, which clipping, noise and robust means act on.
- `Dataset`, `Federation`: samples, and their partition among server and clients.
- `Loads`: planned work of each client, for placement on ranks.
- `Directions`: number and length of a zeroth-order method's directions.
- `TorchProblem`, `SplitProblem`: problem from a loss and a torch module, or a network cut in two.
- `UserError`, `demand`: an error message for users; a check of a flag's value.
- `simulate`, `plan`, `Simulation`: run a method, print its plan, run it round by round.
- `Result`, `load`: the result of a run; load an earlier one.
- `check_method`: small runs of a method that find its mistakes.
- `lead`: run a function at rank 0; the other ranks serve its simulations.
- `EarlyStopping`, `OptunaPruning`, `TensorBoard`: callbacks of `simulate`.
- `RunFailed`: a run that failed in one of its rounds.
- `records`: results and checkpoints; `records.load(path)` reads a result.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zofl_mpi import errors
from zofl_mpi.errors import RunFailed, UserError, demand

errors.begin_command()  # before the imports that take long
if sys.platform == "win32":  # its Python has no fcntl and no resource
    raise UserError("zofl_mpi runs on Linux: on Windows start it within WSL (wsl --install, then pip install there)")

# ruff: noqa: E402
from zofl_mpi.arrays import Array
from zofl_mpi.engine.clients import Client, Clients, Step
from zofl_mpi.engine.fields import above, at_least, change, column, finite, flag_group, fraction, injected
from zofl_mpi.engine.reduction import Reduction, Reply
from zofl_mpi.engine.setting import Directions, Loads, Method, Setting
from zofl_mpi.engine.streams import Purpose

if TYPE_CHECKING:
    from zofl_mpi.api.callbacks import EarlyStopping, OptunaPruning
    from zofl_mpi.api.checking import check_method
    from zofl_mpi.api.ranks import lead
    from zofl_mpi.api.result import Result, load
    from zofl_mpi.api.simulation import Simulation, plan, simulate
    from zofl_mpi.data import Dataset, Federation
    from zofl_mpi.problems.base import BilevelProblem, Problem
    from zofl_mpi.run import records
    from zofl_mpi.run.loop.tracking import TensorBoard
    from zofl_mpi.settings.heron_sfl import SplitProblem
    from zofl_mpi.settings.networks import TorchProblem

__version__ = "1.0.0"
__all__ = [
    "Array",
    "BilevelProblem",
    "Client",
    "Clients",
    "Dataset",
    "Directions",
    "EarlyStopping",
    "Federation",
    "Loads",
    "Method",
    "OptunaPruning",
    "Problem",
    "Purpose",
    "Reduction",
    "Reply",
    "Result",
    "RunFailed",
    "Setting",
    "Simulation",
    "SplitProblem",
    "Step",
    "TensorBoard",
    "TorchProblem",
    "UserError",
    "above",
    "at_least",
    "change",
    "check_method",
    "column",
    "demand",
    "finite",
    "flag_group",
    "fraction",
    "injected",
    "lead",
    "load",
    "plan",
    "records",
    "simulate",
]


LAZY = {
    "records": "zofl_mpi.run.records",
    "Dataset": "zofl_mpi.data",
    "Federation": "zofl_mpi.data",
    "Problem": "zofl_mpi.problems.base",
    "BilevelProblem": "zofl_mpi.problems.base",
    "simulate": "zofl_mpi.api.simulation",
    "plan": "zofl_mpi.api.simulation",
    "Simulation": "zofl_mpi.api.simulation",
    "Result": "zofl_mpi.api.result",
    "load": "zofl_mpi.api.result",
    "lead": "zofl_mpi.api.ranks",
    "EarlyStopping": "zofl_mpi.api.callbacks",
    "OptunaPruning": "zofl_mpi.api.callbacks",
    "TensorBoard": "zofl_mpi.run.loop.tracking",
    "check_method": "zofl_mpi.api.checking",
    "SplitProblem": "zofl_mpi.settings.heron_sfl",
    "TorchProblem": "zofl_mpi.settings.networks",
}
"""{public name: its module}, imported on first use: ranks without need for them start sooner."""


def __getattr__(name: str) -> Any:
    """A name of `LAZY`."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(LAZY[name])
    return module if name == "records" else getattr(module, name)
