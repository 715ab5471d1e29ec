"""Flags of a data set and its partition among server and clients."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any, ClassVar, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.data import Federation, Raw, cache, features, partition, sources
from zofl_mpi.data.cache import Sources
from zofl_mpi.data.sources import Synthetic
from zofl_mpi.engine.fields import UsedWith, at_least
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.engine.world import World, once_a_node, run_or_fail_all
from zofl_mpi.errors import UserError, warn
from zofl_mpi.paths import user_path
from zofl_mpi.run.command.family import Site

P = TypeVar("P")
Derive = Callable[[Sources], Sources]

SHOWN = 10  # classes or clients listed in a warning


@dataclass(frozen=True)
class Samples:
    """A data set and its partition among server and clients.

    Attributes:
        data: digits, mnist, fashion-mnist, cifar10, synthetic, or the path of a .npz file with arrays x and y (integer
            y: classes, float y: regression targets), and client for --partition natural.
        data_dir: folder with the data set's files; default: $ZOFL_DATA, else the user's cache.
        pixels: input scaling: unit (bytes to [0, 1], floats and tables as stored); raw (as stored); standardize (mean 0
            and variance 1 over the training part, by channel of an image or column of a table).
        features: inputs of the model: all; pca:K (the first K principal components and a constant 1, fitted on the
            training part of server and clients); server-pca:K (fitted on the server's samples only, which reveals
            nothing of the clients).
        m: number of clients; with --partition natural given by the data.
        alpha: Dirichlet concentration of the clients' classes (by_class, by_mix), above 0; inf for iid.
        partition: clients' samples: by_class (each class is spread over the clients); by_mix (each client draws its
            mix; equal sizes); shards:K (sorted by class, K pieces for each client); quantity:ALPHA (iid classes;
            min_samples for each client, the rest in Dirichlet shares); natural (by the array client of an .npz).
        min_samples: minimum samples of a client; the partition is redrawn until it holds. natural drops clients with
            fewer.
        split: test part: random (--test-fraction of all samples) or official (the data set's own).
        test_fraction: share of all samples in the test part.
        server_fraction: share of the training part that the server holds.
        server_samples: number of training samples that the server holds, in place of --server-fraction; 0: use the
            fraction.
        server_lacks: number of classes, the last ones, without samples at the server; its share applies to the others.
        validation: share of the training part held out from server and clients, to choose step sizes by; 0: none.
        synthetic_samples: --data synthetic: number of samples.
        synthetic_features: --data synthetic: length of an input.
        synthetic_classes: --data synthetic: number of classes.
    """

    USED_WITH: ClassVar[UsedWith] = {
        **{f"synthetic_{name}": {"data": ("synthetic",)} for name in ("samples", "features", "classes")},
        "test_fraction": {"split": ("random",)},
        "server_fraction": {"server_samples": (0,)},
    }
    data: str = "digits"
    data_dir: str = ""
    pixels: Literal["unit", "raw", "standardize"] = "unit"
    features: str = "all"
    m: int = at_least(1, 10, "a number of clients")
    alpha: float = math.inf
    partition: str = "by_class"
    min_samples: int = at_least(1, 10, "a number of samples")
    split: Literal["random", "official"] = "random"
    test_fraction: float = 0.1
    server_fraction: float = 0.3
    server_samples: int = at_least(0, 0, "a number of samples", "(0: by --server-fraction)")
    server_lacks: int = at_least(0, 0, "a number of classes")
    validation: float = 0.0
    synthetic_samples: int = at_least(1, 10_000)
    synthetic_features: int = at_least(1, 64)
    synthetic_classes: int = at_least(2, 10)

    def federation(
        self, world: World, streams: Streams, made_of: Derive | None = None, classifies: bool = True
    ) -> Federation:
        """Samples of the server and of each client, and the test part.

        UserError, on every rank: a file is missing or damaged on one, or a flag is out of range.

        Args:
            made_of: maps the data set, then cached, to the one that is partitioned; None: identity.
            classifies: refuse a regression.
        """
        K, of_server = run_or_fail_all(world, lambda: features.parsed_components(self.features))
        data_dir = user_path(self.data_dir, "--data-dir") if self.data_dir else None
        synthetic = Synthetic(self.synthetic_samples, self.synthetic_features, self.synthetic_classes)
        stored = found_once_a_node(world, lambda: sources.find_sources(self.data, data_dir, streams, synthetic))
        raw = cached(world, stored)
        run_or_fail_all(world, lambda: self._check(raw, classifies))
        if world.rank == 0 and self.data.endswith(".npz"):
            self._warn_gaps(raw)
        made = stored if made_of is None else made_of(stored)
        if made is not stored:
            raw = cached(world, made)
        taken = signature(partition.split).parameters  # by the names of their flags
        shares = {name: value for name, value in vars(self).items() if name in taken}
        official = self.split == "official"
        federation = run_or_fail_all(world, lambda: partition.split(raw, streams, official_split=official, **shares))
        if world.rank == 0 and raw.clients is not None:
            warn_left_out(raw, raw.clients, raw.clients, federation, self.min_samples)
        return features.projected(world, federation, K, made.key, of_server) if K else federation

    def _warn_gaps(self, raw: Raw) -> None:
        """Warn of classes below the largest label that have no sample, for example if labels begin at 1."""
        counts = np.bincount(raw.labels, minlength=raw.classes)
        empty, held = np.flatnonzero(counts == 0), np.flatnonzero(counts)
        if len(empty):
            none = f"class {empty[0]}" if len(empty) == 1 else f"{len(empty)} classes, {empty[0]} among them,"
            shown = ", ".join(f"{c}: {counts[c]}" for c in held[:SHOWN]) + (", ..." if len(held) > SHOWN else "")
            has = "has" if len(empty) == 1 else "have"
            warn(
                f"--data {self.data}: y means classes 0 to {raw.classes - 1}, and {none} {has} no samples "
                f"(samples by class: {shown}); if no class is missing, number them from 0 without gaps"
            )

    def _check(self, raw: Raw, classifies: bool) -> None:
        """Refuse samples by client without --partition natural, and targets if the problem classifies."""
        kind, _ = partition.parsed(self.partition)
        if raw.clients is not None and kind != partition.NATURAL:
            raise UserError(
                f"--data {self.data} holds x, y and client: --partition natural shares the samples out by client; for "
                f"--partition {self.partition} it must hold x and y alone"
            )
        if classifies and raw.targets is not None:
            raise UserError(
                f"--data {self.data} has targets, not classes; this problem classifies: store classes as integers "
                "(y.astype(int)), or give a problem of your own that reads targets (--problem module:Class)"
            )


@final
@dataclass(frozen=True)
class ClientSamples(Samples):
    """Flags of `Samples`, with the defaults of families without server data."""

    m: int = at_least(1, 5, "a number of clients")
    server_fraction: float = 0.0


def warn_left_out(
    raw: Raw, asked: NDArray[np.int64], clients: NDArray[np.int64], federation: Federation, min_samples: int
) -> None:
    """Warn of `asked` clients with too few samples to take part; `clients` (N,) are those of all rows."""
    held = [int(clients[part.rows_of(np.zeros(1, np.int64))[0]]) for part in federation.clients]
    everyone = np.unique(asked)
    left = np.setdiff1d(everyone, held)
    if len(left):
        shown = ", ".join(raw.client(int(number)) for number in left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
        who = f"{len(left)} of {len(everyone)} clients ({shown})"
        warn(
            f"--partition natural: {who} left out, with fewer than --min-samples {min_samples} samples beside those of "
            "held-out parts and of the server"
        )


def setting_on(site: Site, problem: P, federation: Federation, network: str = "") -> Setting[P]:
    """Setting of a problem on these data; `network`: a fingerprint beside that of the data."""
    data = federation.clients, federation.server, federation.test, federation.counts
    fingerprint = ", ".join(filter(None, (federation.fingerprint or federation.server.fingerprint(), network)))
    own: dict[str, Any] = {"validation": federation.validation, "about": federation.in_words()}
    return Setting(problem, site.streams, *data, np.dtype(site.dtype), fingerprint, **own)


def found_once_a_node(world: World, find: Callable[[], Sources]) -> Sources:
    """Sources, found by one rank of each node because it may read whole files."""
    found = list[Sources]()

    def name_and_key() -> tuple[str, str]:
        found.append(find())
        return found[0].name, found[0].key

    name, key = once_a_node(world, name_and_key)
    return found[0] if found else Sources(name, key, _left_to_another)


def _left_to_another() -> Raw:
    raise AssertionError("another rank of this node reads these sources")


def cached(world: World, stored: Sources) -> Raw:
    """The data set from its node's cache; one rank per node fills it."""
    once_a_node(world, lambda: cache.prepare(stored))
    return run_or_fail_all(world, lambda: cache.open_entry(stored))
