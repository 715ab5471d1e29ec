"""Results and checkpoints in HDF5: written by rank 0, readable while they grow. Only this package imports h5py.

/                attrs: schema, command, config (JSON), seed, git_commit, ..., status = running | done | interrupted |
                 stopped (then attr stopped says why; /final is there)
/rounds/<name>   (R,)     NaN in rounds without a value; attrs unit, description; /rounds has attr done = R
/clients/bytes_down, bytes_up, messages   (R, steps, m)  protocol traffic
/clients and /ranks have attr steps, the names of the steps
/ranks/seconds_compute, seconds_wait, seconds_comm, peak_bytes   (R, steps, ranks)
/ranks/transport_sent, transport_received   (R, steps, ranks)  bytes moved by collectives
/ranks/seconds_staging   (R, steps, ranks)  copies between GPU and host, in none of the other seconds
/ranks/table     one row per rank and session: from_round, rank, host, device, uuid, gpus, cores, threads, clients, role
/partition/counts  (m, classes)          /final/<field>  last state
/final/clients/virtual_seconds, joules, asked, dropped, excluded  (m,)  with --devices

Rows are buffered for at most 0.25 s and flushed before a checkpoint, the end or a stop. A killed process loses its
buffered rows; a resume recomputes their rounds from the last checkpoint.

With more than 1000 clients, m is 100 in these shapes: each entry sums consecutive clients. Then the group /clients has
the attributes aggregated (an explanation), clients (their number) and first_clients (100,), the first client of each.
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
