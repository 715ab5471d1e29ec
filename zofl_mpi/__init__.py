"""Zeroth-order federated learning on MPI: the same answer, bit for bit, on any number of ranks.

A method, a problem or a script of your own may import these names; everything else may move:

- `Method`: base of a method, with the members that it may leave out.
- `Problem`, `BilevelProblem`: bases of a problem, likewise.
- `Setting`: a method's problem, data of server and clients, and random numbers.
- `Client`, `Clients`: a client as its steps see it; all clients, as the server asks them. `Step`: the type of a step.
- `Reply`: a reply with a part that is added up on the client's rank; `Reduction`: the mean of these parts.
- `Array`: the type of a NumPy array of numbers.
- `Purpose`: purpose of random numbers; with round, client and step it is their key.
- `column`, `flag_group`, `injected`: fields of states and reports, of groups of flags, and fields that the run gives.
- `at_least`, `above`, `fraction`: flags with a range, checked by the command line.
- `finite`: a field of a message whose value must be finite, with the sentence that ends the run otherwise.
- `change`: such a field by which a client changes something; clipping, noise and robust means are about it.
- `Dataset`, `Federation`: samples; who holds which of them.
- `Loads`: the work that a method plans for each client, by which they are placed on ranks.
- `Directions`: how many directions a zeroth-order method draws, and their length.
- `TorchProblem`, `SplitProblem`: a torch module, or a network cut in two, and a loss, as a problem.
- `UserError`, `demand`: a mistake of the user, in one sentence; a check of a flag.
- `simulate`, `plan`, `Simulation`: a run from Python, what it would be, and a run step by step.
- `Result`, `load`: what a run has left; that of an earlier one.
- `check_method`: small runs of a method that find its mistakes.
- `lead`: lets rank 0 alone run a function, whose simulations the other ranks serve.
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
if sys.platform == "win32":  # whose Python has no fcntl and no resource
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
"""{public name: its module}, imported when it is asked for: ranks that need none of them start sooner."""


def __getattr__(name: str) -> Any:
    """A name of `LAZY`."""
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(LAZY[name])
    return module if name == "records" else getattr(module, name)
