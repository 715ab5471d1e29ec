"""Flags of every run, and which of them a result keeps and a continuation may change."""

from dataclasses import dataclass
from typing import Literal, final

from zofl_mpi.engine.fields import at_least, between
from zofl_mpi.run.loop.saving import Every


@final
@dataclass(frozen=True)
class RunFlags:
    """Flags of a run: its length, its numbers, its files.

    Attributes:
        rounds: R, the number of rounds.
        seed: seed of all random numbers.
        dtype: floating-point type of all vectors.
        device: auto (a GPU if there is one and the problem can use it), cpu or cuda.
        out: result file; default: results/METHOD-PROBLEM-DATA-sSEED.h5 (without the default problem's name), numbered
            if that exists.
        force: overwrite the result file if it exists.
        checkpoint_every: rounds between checkpoints; 0: only at the end of the run; auto: the first after 30 s, then at
            most 2 % of the time, but at least one every ten minutes.
        resume: a result file or its checkpoint: continue that run with its configuration.
        eval_every: rounds between evaluations; the first and the last round are always evaluated.
        eval_clients: maximum number of clients in an evaluation, drawn anew each time; 0: all.
        eval_samples: maximum number of samples in an evaluation, for each of: test part, validation part, each client,
            server. Drawn once, by --seed; 0: all.
        devices: simulated devices of the clients: phones, sensors, silos or a TOML file of classes. Adds virtual
            seconds and joules; excludes clients with too little memory for a step.
        deadline: virtual seconds after which a round drops a client; 0: none.
        over_select: F, with --devices: F |S_r| clients are asked, the fastest |S_r| count.
        server_ranks: S: the first S ranks are the server and share the G uploads of its steps (heron_sfl: --merge G
            with S <= G); the others hold the clients. Results are bit-identical for any S. Bytes between the server's
            ranks are not counted.
        survive: continue, bit-identically, when client ranks are lost; needs mpirun --with-ft ulfm (Open MPI 5).
        round_timeout: maximum seconds of a round; a longer round ends the job and names the late ranks; 0: no limit.
        config: a TOML file with flags as keys; flags on the command line override it.
        paper: use the paper's values for all flags not given.
        dry_run: print configuration and expected cost without running.
        quiet: print only the last lines.
        track: write the columns for TensorBoard: tensorboard (a folder beside the result) or tensorboard:FOLDER.
        verbose: first print the table of ranks: host, device, cores, threads and clients of each.
    """

    rounds: int = between(1, 10**9, 100)
    seed: int = 1
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    out: str = ""
    force: bool = False
    checkpoint_every: Every = at_least(0, "auto", "auto or a whole number", "(0: only at the end of the run)")
    resume: str = ""
    eval_every: int = at_least(1, 10)
    eval_clients: int = at_least(0, 100)
    eval_samples: int = at_least(0, 0, "a whole number", "(0: all)")
    devices: str = ""
    deadline: float = at_least(0, 0.0, "seconds", "(0: none)")
    over_select: float = at_least(1, 1.0)
    server_ranks: int = at_least(1, 1)
    survive: bool = False
    round_timeout: float = at_least(0, 0.0, "seconds", "(more than any round takes; 0: no limit)")
    config: str = ""
    paper: bool = False
    dry_run: bool = False
    quiet: bool = False
    track: str = ""
    verbose: bool = False


UNSTORED_FLAGS = {
    "out",
    "force",
    "paper",
    "resume",
    "server_ranks",
    "survive",
    "round_timeout",
    "config",
    "dry_run",
    "quiet",
    "track",
    "verbose",
}
"""Flags of one command, not stored in the result."""
REPEATED_FLAGS = ("server_ranks", "survive", "round_timeout", "track")
"""Those of them that usually apply to the next command, too."""
CHANGEABLE = UNSTORED_FLAGS | {
    "rounds",
    "checkpoint_every",
    "eval_every",
    "eval_clients",
    "data_dir",
    "device",
    "kernel",
}
"""Flags that may differ between a run and its continuation: no iterate depends on them (the kernel must be equal)."""
