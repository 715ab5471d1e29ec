"""The range of every flag, stated once: no test of a method or a problem repeats what its field declares."""

import dataclasses
import functools
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.conftest import Capsys
from tests.launch import refused
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import flags, plan
from zofl_mpi.run.command.family import FAMILIES, family_of

RANGES = """
a fraction of the clients, above 0 and at most 1 => beta
a fraction, above 0 and at most 1 => nu
a noise multiplier, at least 0 => noise_multiplier
a number above 0 => Fair.lam FairSoftmax.lam Hyperparameter.mu rectifier tau_g
a number of classes, at least 0 => server_lacks
a number of clients, at least 1 => ClientSamples.m Samples.m Texts.m
a number of samples, at least 0 (0: by --server-fraction) => server_samples
a number of samples, at least 1 => min_samples
a number, at least 0 => lora_alpha noise ReLUNet.lam Toy.lam
a number, at least 1 => over_select
a number, at least 2 (the largest wish of a client) => level
a probability, above 0 and at most 1 => p
a share, at least 0 => attackers
a smoothing radius above 0 => DeComFL.mu Estimation.mu eta FedKSeed.mu HiSo.mu
a step size above 0 => Scaffnew.gamma_local
a step size, at least 0 => align_lr alpha_p eta_g gamma gamma_lower lr_client lr_server personal_gamma
a step size, at least 0 => StepSchedule.gamma_local
a weight above 0 => cost PFedMe.lam_p
a weight, at least 0 => Ditto.lam_p FedMSPP.mu FedProx.mu personal_mu
a whole number of directions, at least 1 => n_p
a whole number of inner steps, at least 1 => PFedMe.K
a whole number of iterations, at least 0 (0: as --H and --gamma say) => Local.K
a whole number of local steps, at least 1 => Local.H
a whole number of seeds, at least 1 => seeds
a whole number, at least 0 => align_epochs auxiliary_blocks eval_clients
a whole number, at least 0 (0: a quarter of the blocks) => cut
a whole number, at least 0 (0: all samples of the client, in every step) => LocalSGD.batch Scaffnew.batch
a whole number, at least 0 (0: all samples) => batch_lower FedNest.batch Local.batch
a whole number, at least 0 (0: all) => eval_samples
a whole number, at least 0 (0: one pass over the data) => h
a whole number, at least 1 => buffer Caps.m Corner.m Coupled.m eval_every Fair.hidden FedNest.H H_lower k
a whole number, at least 1 => KnownSolution.m l LocalSolve.batch lora_rank merge N n personal_batch ReLUNet.hidden
a whole number, at least 1 => server_batch server_ranks synthetic_features synthetic_samples T Toy.m Training.batch
a whole number, at least 1 => width
a whole number, at least 1 and at most 1000000000 => rounds
a whole number, at least 2 => synthetic_classes
auto or a probability above 0 => delta
auto or a whole number, at least 0 (0: only at the end of the run) => checkpoint_every
none or a norm above 0 => clip
none or a number above 0 => epsilon
seconds, at least 0 (0: none) => deadline
seconds, at least 0 (more than any round takes; 0: no limit) => round_timeout
whole numbers, at least 1 => channels SplitMLP.hidden stages Widths.hidden
"""


@functools.cache
def every_flag() -> dict[flags.Leaf, tuple[str, str, str]]:
    """{flag: a family, a method and a problem that have it}."""
    found = dict[Any, tuple[str, str, str]]()
    for name in FAMILIES:
        family = family_of(name)
        for method, problem in itertools.product(family.METHODS, family.PROBLEMS):
            try:
                groups = plan.groups_of(family, method, problem)
            except UserError:  # the method needs another role
                continue
            for leaf in itertools.chain.from_iterable(map(flags.leaves, groups.values())):
                found.setdefault((leaf.owner, leaf.name, leaf), (name, method, problem))
    return {leaf: where for (_, _, leaf), where in found.items()}


def bounds_of(leaf: flags.Leaf) -> Any:
    return next(each for each in dataclasses.fields(leaf.owner) if each.name == leaf.name).metadata.get("range")


def test_every_range_is_that_of_the_table() -> None:
    """A name stands for all flags with it; with its class where they differ. Mutations: a bound that moves, one that
    lets its end in or out, one that goes, in one of the classes. How a declared range is enforced: test_flags.py."""
    ranges = {leaf: bounds.allowed for leaf in every_flag() if (bounds := bounds_of(leaf))}
    of_name, found = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for leaf, allowed in ranges.items():
        of_name[leaf.name].add(allowed)
    for leaf, allowed in ranges.items():
        alike = len(of_name[leaf.name]) == 1
        found[allowed].add(leaf.name if alike else f"{leaf.owner.__name__}.{leaf.name}")
    expected = defaultdict[str, set[str]](set)
    for allowed, names in (line.split(" => ") for line in RANGES.strip().splitlines()):
        expected[allowed] |= {*names.split()}
    assert found == expected


MAY_BE_INFINITE = ("alpha", "radius")


def without_range() -> list[Any]:
    """Flags that take numbers and declare no range: values that none of them allows, behind a command that has them."""
    rows = []
    for leaf, (family, method, problem) in every_flag().items():
        kinds = {leaf.kind, *get_args(leaf.kind)}
        if bounds_of(leaf) or not kinds & {int, float}:
            continue
        for value in ("nan", "inf", "-1.0") if float in kinds else ("-2",):
            if value != "inf" or leaf.name not in MAY_BE_INFINITE:
                typed = f"--{flags.flag(leaf.name)} {value}"
                words = [family, "--method", method, "--problem", problem, *typed.split()]
                for other, wanted in getattr(leaf.owner, "USED_WITH", {}).get(leaf.name, {}).items():
                    words += [f"--{flags.flag(other)}", *map(str, wanted[:1])]
                rows.append(pytest.param(words, typed, id=f"{leaf.owner.__name__} {typed}"))
    return rows


@pytest.fixture
def a_model(data_dir: Path, tmp_path: Path) -> list[str]:
    """A language model and texts for it."""
    lines = [json.dumps({"context": f"a {k}", "completion": f"b {k}"}) for k in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    texts = ["--data", str(tmp_path / "a.jsonl"), "--data-dir", str(data_dir), "--vocabulary", "e2e"]
    return ["--model", "random:tiny", *texts]


@pytest.mark.parametrize(("words", "typed"), without_range())
def test_a_number_without_a_declared_range_is_refused_as_well(
    capsys: Capsys, request: pytest.FixtureRequest, words: list[str], typed: str
) -> None:
    """Mutations: a comparison that nan or infinity passes; a flag that nobody looks at."""
    more = request.getfixturevalue("a_model") if "split_lm" in words else []
    assert refused(capsys, *words, *more, "--rounds", "1", "--dry-run").startswith(f"{typed}: ")
