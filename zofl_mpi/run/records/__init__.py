"""Results and checkpoints in HDF5: written by rank 0, readable while they grow. Only this package imports h5py.

Paths, shapes and units: `zofl_mpi/run/README.md`, "The result file"; `layout` checks files against them. Attributes:
/rounds has done, the number R of rounds; /clients and /ranks have steps, the names of the steps. The file has status,
which is running, done, interrupted or stopped; if stopped, the attribute stopped says why. With more than 1000 clients,
/clients has aggregated (an explanation) and clients (their number), too.
"""

from zofl_mpi.run.records.checkpoint import Checkpoint, checkpoint_path, load_checkpoint, save_checkpoint
from zofl_mpi.run.records.hdf5 import DamagedError, LostError, WriteError
from zofl_mpi.run.records.output_path import check_name
from zofl_mpi.run.records.provenance import provenance
from zofl_mpi.run.records.recorder import Recorder
from zofl_mpi.run.records.result import Heading, Run, heading, load
from zofl_mpi.run.records.rows import Loss

__all__ = [
    "Checkpoint",
    "DamagedError",
    "Heading",
    "Loss",
    "LostError",
    "Recorder",
    "Run",
    "WriteError",
    "check_name",
    "checkpoint_path",
    "heading",
    "load",
    "load_checkpoint",
    "provenance",
    "save_checkpoint",
]
