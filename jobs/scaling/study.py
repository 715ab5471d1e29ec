"""A scaling study: seconds a round over ranks, for each method, strong or weak, the server doing little or much.

reframe -C jobs/scaling/settings.py -c jobs/scaling/study.py --prefix results/scaling --system local -r

strong: m clients on ever more ranks. weak: so many clients a rank. The third axis is the server's share of a round's
computing, which no further rank takes over: `low` or `high`, set by the samples that the server itself takes its
gradients on (--server-batch; in HERON by the uploads that it trains on, --k). What the share came to is measured.

ReFrame needs nothing of zofl_mpi here: everything is read from what its commands print.
"""

import os

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.backends import getlauncher
from reframe.core.builtins import parameter, performance_function, run_after, run_before, sanity_function, variable
from reframe.core.runtime import runtime

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROUNDS = 8
"""One of warm-up, six that are timed, one that is evaluated."""
LEAST = 5
"""Timed rounds."""
STEPS = "--data synthetic --synthetic-features 784 --schedule-h constant --kernel numpy --tau 100"
METHODS = {
    "zo_hfl": f"zofl_mpi.zo_hfl --method zo_hfl {STEPS}",
    "fedavg": f"zofl_mpi.zo_hfl --method fedavg {STEPS} --gamma 0.01",
    "fedavg-cnn": "zofl_mpi.zo_hfl --method fedavg --problem cnn --schedule-h constant --tau 5 --gamma 0.01",
    "heron": "zofl_mpi.heron_sfl --method heron --problem split_resnet --width 16 --stages 1 1 --batch 32 --h 4",
}
SHARES = {
    "zo_hfl": {"low": "--server-batch 64", "high": "--server-batch 8192"},
    "fedavg": {"low": "--server-batch 64", "high": "--server-batch 8192"},
    "fedavg-cnn": {"low": "--server-batch 16", "high": "--server-batch 512"},
    "heron": {"low": "--k 4", "high": "--k 1"},
}
SYSTEM = runtime().system.partitions[0]
SIZES = {
    "alone": [],
    "ranks": [2],
    "m": 4,
    "clients_per_rank": 2,
    "studies": ["strong"],
    "shares": ["low"],
    **SYSTEM.extras,
}
NUMBERS = {
    "seconds": "s",
    "low": "s",
    "high": "s",
    "compute": "s",
    "wait": "s",
    "send": "s",
    "server_compute": "s",
    "server_wait": "s",
    "server_send": "s",
    "start": "s",
    "bytes_down": "B",
    "bytes_up": "B",
    "server_share": "1",
}
"""What `analysis/timing.py` prints and a report keeps."""


def clients(study, ranks):
    """m."""
    return SIZES["m"] if study == "strong" else SIZES["clients_per_rank"] * (ranks - 1)


class Command(rfm.RunOnlyRegressionTest):
    """A command of this checkout."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    maintainers = []
    executable = "python"

    def of_this_checkout(self):
        """Its zofl_mpi is imported, wherever ReFrame lets it run; one thread a rank."""
        self.env_vars = {"PYTHONPATH": f"{ROOT}:$PYTHONPATH", "OMP_NUM_THREADS": "1"}

    def place(self, ranks):
        """So many ranks, on whole nodes where there are several."""
        self.num_tasks = ranks
        self.num_cpus_per_task = 1
        on_a_node = self.current_partition.extras.get("ranks_per_node")
        if on_a_node:
            self.num_tasks_per_node = min(ranks, on_a_node)

    def within(self):
        """The system's command around mpirun."""
        words = self.current_partition.extras.get("within", [])
        self.job.launcher.modifier, self.job.launcher.modifier_options = " ".join(words[:1]), words[1:]


class Round(Command):
    """A run of some rounds, and what `analysis/timing.py` prints of them."""

    method = parameter(sorted(METHODS))
    share = parameter(SIZES["shares"])
    keep_files = ["result.h5"]

    def rounds_of(self, m):
        """The command line of m clients."""
        self.executable_opts = [
            f"-m {METHODS[self.method]} {SHARES[self.method][self.share]} --m {m}",
            f"--rounds {ROUNDS} --eval-every 1000000 --checkpoint-every 0 --quiet --force --out result.h5",
        ]
        self.of_this_checkout()

    @run_before("performance")
    def numbers(self):
        """All of them."""
        self.perf_variables = {
            name: sn.make_performance_function(sn.extractsingle(rf"^{name}\s+(\S+) ", self.stdout, 1, float), unit)
            for name, unit in NUMBERS.items()
        }

    def enough_rounds(self):
        """Whether there are LEAST of them."""
        timed = sn.extractsingle(r"^rounds\s+(\d+)", self.stdout, 1, int)
        return sn.assert_ge(timed, LEAST, f"{{0}} rounds are timed, fewer than {LEAST}")


@rfm.simple_test
class OneRank(Round):
    """All in one process: the bits and the seconds that the others are compared with."""

    m = parameter(sorted({*SIZES["alone"], *(clients(s, p) for s in SIZES["studies"] for p in SIZES["ranks"])}))

    @run_after("setup")
    def prepared(self):
        """Started without mpirun."""
        self.rounds_of(self.m)
        self.place(1)
        self.job.launcher = getlauncher("local")()
        self.within()
        self.postrun_cmds = [f"python {ROOT}/analysis/timing.py result.h5"]

    @sanity_function
    def is_timed(self):
        """Enough rounds."""
        return self.enough_rounds()


@rfm.simple_test
class Scaling(Round):
    """A run on several ranks: the bits of `OneRank`, in fewer seconds."""

    study = parameter(SIZES["studies"])
    ranks = parameter(SIZES["ranks"])

    @run_after("init")
    def after_one_rank(self):
        """The run of the same clients in one process comes first."""
        self.m = clients(self.study, self.ranks)
        (same,) = OneRank.get_variant_nums(
            method=lambda x: x == self.method, share=lambda x: x == self.share, m=lambda x: x == self.m
        )
        self.one_rank = OneRank.variant_name(same)
        self.tags = {self.method, self.share, self.study}
        self.depends_on(self.one_rank)

    m = variable(int, value=0)
    one_rank = variable(str, value="")

    @run_after("setup")
    def prepared(self):
        """Compared as soon as it has run."""
        self.rounds_of(self.m)
        self.place(self.ranks)
        self.within()
        other = os.path.join(self.getdep(self.one_rank).stagedir, "result.h5")
        self.postrun_cmds = [f"python {ROOT}/analysis/timing.py result.h5 --same-as {other}"]

    @sanity_function
    def has_the_bits_of_one_rank(self):
        """The same result, and enough rounds."""
        same = sn.assert_found(r"^bits\s+same$", self.stdout, "the bits are not those of one rank; see rfm_job.out")
        return sn.all([same, self.enough_rounds()])


@rfm.simple_test
class Exchange(Command):
    """What questions cost between the ranks, for the model of a round's time; a part of every part of the study."""

    ranks = parameter(SIZES["ranks"])
    tags = {"exchange", *METHODS, *SIZES["shares"], *SIZES["studies"]}
    keep_files = ["exchange.json"]
    executable_opts = [f"{ROOT}/analysis/exchange.py exchange.json"]

    @run_after("setup")
    def prepared(self):
        """On the ranks of the study."""
        self.of_this_checkout()
        self.place(self.ranks)
        self.within()

    @sanity_function
    def is_written(self):
        """All kinds of questions."""
        return sn.assert_found(r"^account\s", self.stdout)

    @performance_function("ms")
    def ask(self):
        """A question and its replies."""
        return sn.extractsingle(r"^ask\s+(\S+) ms", self.stdout, 1, float)
