"""Flags of earlier versions, and what takes their place."""

from typing import Any, NamedTuple

from zofl_mpi.errors import UserError


class Removed(NamedTuple):
    """A flag of earlier versions.

    Attributes:
        instead: advice for whoever gives it.
        today: the stored value that a continued run may have; None: any.
    """

    instead: str
    today: Any = None


REMOVED = {
    "balance": Removed("clients get their Dirichlet shares, leave the flag out", today=False),
    "bias": Removed("the models have no bias, leave the flag out; a torch module may have one", today=False),
    "contexts_seed": Removed("pretraining has the same half of the contexts in all runs, leave the flag out", today=0),
    "convolution": Removed("torch computes all convolutions, leave the flag out"),
    "features_seed": Removed("all runs have the same filters, leave the flag out", today=0),
    "filter_size": Removed("filters have 6 x 6 pixels, leave the flag out", today=6),
    "filters": Removed("there are 256 filters, leave the flag out", today=256),
    "floor": Removed("nothing bounds the second moment below, leave the flag out", today=0.0),
    "gamma_personal": Removed("the personal models take steps of --gamma-local, leave the flag out", today=0.0),
    "kernel": Removed("this problem is computed by NumPy alone, leave the flag out"),
    "pretrain_gamma": Removed("x_0 is zero or random, see --x0"),
    "pretrain_steps": Removed("x_0 is zero or random, see --x0"),
    "server_batch": Removed("this method takes no steps at the server, leave the flag out"),
    "passes_abreast": Removed("perturbed passes go one by one, leave the flag out", today=1),
    "pool": Removed("responses are averaged over 2 x 2 cells, leave the flag out", today=2),
    "pretrain_share": Removed("half of the contexts are for pretraining, leave the flag out", today=0.5),
    "sampling": Removed("all clients take part in the lower level, leave the flag out", today="all"),
    "server_state": Removed("the server keeps its moments, leave the flag out", today="keep"),
    "synthetic_noise": Removed("labels are a linear teacher's, leave the flag out", today=0.0),
    "upload_at": Removed("the first of every k local steps is uploaded, leave the flag out", today="first"),
}
"""Flags of earlier versions that are gone, everywhere or for some methods or problems."""

RENAMED = {("partition", "by_client"): "by_mix", ("exchange", "sums"): "scalars"}
"""{(flag, value) of earlier versions: the value's name today}; the old one still does, with a warning."""


def refuse_removed(name: str, shown: str) -> None:
    """Refuses a flag of earlier versions."""
    if name in REMOVED:
        raise UserError(f"{shown} is no longer a flag: {REMOVED[name].instead}")
