"""Flags: what a dataclass, a TOML file and a command line make of each other, and the sentences for mistakes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from zofl_mpi import above, at_least, finite, fraction, heron_sfl, part, zo_hfl
from zofl_mpi.engine.fields import check_finite
from zofl_mpi.errors import UserError
from zofl_mpi.run import flags
from zofl_mpi.run.plan import RunFlags, groups_of, understand


@dataclasses.dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
        n: its length,
            on two lines.
        lam: a weight.
        mu: one number, or one per client.
        kind: which.
        bias: with one or without.
        gamma_local: a step size.
        name: some text.
    """

    n: int = 3
    lam: float = 1.0
    mu: tuple[float, ...] = (1.0,)
    kind: Literal["red", "blue"] = "red"
    bias: bool = False
    gamma_local: float = 0.1
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Twin:
    """Another class with a flag of the same name.

    Attributes:
        n: also a length.
    """

    n: int = 0


GROUPS = {"the model": Model}
KNOWN = flags.flags_of(GROUPS)


def parsed(*arguments: str) -> dict[str, Any]:
    return flags.parse(GROUPS, arguments, "python -m test", "A test.")


def complaint(*arguments: str) -> str:
    with pytest.raises(UserError) as caught:
        parsed(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ([], {}),
        (["--n", "7", "--name", "a b"], {"n": 7, "name": "a b"}),
        (["--n=7"], {"n": 7}),
        (["--lambda", "2.5"], {"lam": 2.5}),
        (["--lam", "2.5"], {"lam": 2.5}),
        (["--lam", "-2.5e-3"], {"lam": -2.5e-3}),
        (["--lam", "inf"], {"lam": math.inf}),
        (["--lam=-inf"], {"lam": -math.inf}),
        (["--mu", "1", "2.5", "inf"], {"mu": (1.0, 2.5, math.inf)}),
        (["--mu", "-1", "--n", "2"], {"mu": (-1.0,), "n": 2}),
        (["--bias"], {"bias": True}),
        (["--bias", "--no-bias"], {"bias": False}),
        (["--kind", "blue"], {"kind": "blue"}),
        (["--gamma-local", "1"], {"gamma_local": 1.0}),
        (["--n", "1", "--n", "2"], {"n": 2}),
    ],
)
def test_flags_are_the_fields_by_their_names_and_types(arguments: list[str], changed: dict[str, Any]) -> None:
    found = parsed(*arguments)
    assert found == dataclasses.asdict(Model()) | changed
    assert {name: type(v) for name, v in found.items()} == {k: type(v) for k, v in dataclasses.asdict(Model()).items()}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--knd", "red"], "unknown flag --knd; the nearest is --kind; --help lists all"),
        (["--gama-local=3"], "unknown flag --gama-local; the nearest is --gamma-local"),
        (["--zzzzzz"], "unknown flag --zzzzzz; --help lists all"),
        (["stray"], "'stray' stands where a flag is expected; flags begin with --"),
        (["--n", "many"], "--n many: must be a whole number"),
        (["--n", "1.5"], "--n 1.5: must be a whole number"),
        (["--n=x"], "--n x: must be a whole number"),
        (["--n"], "--n (nothing): must be a whole number"),
        (["--gamma-local", "much"], "--gamma-local much: must be a number"),
        (["--kind", "green"], "--kind green: must be one of red, blue"),
        (["--mu", "1", "two"], "--mu 1 two: must be one or more values, each a number"),
        (["--mu"], "--mu (nothing): must be one or more values, each a number"),
        (["--n", "1", "2"], "'2' stands where a flag is expected; flags begin with --"),
        (["--bias", "yes"], "'yes' stands where a flag is expected; flags begin with --"),
        (["--no-n"], "unknown flag --no-n; --help lists all"),
    ],
)
def test_a_mistake_is_one_sentence_with_flag_value_and_what_is_allowed(arguments: list[str], words: str) -> None:
    assert complaint(*arguments).startswith(words)


def test_a_mistake_in_an_alias_names_the_value_too() -> None:
    for name in ("--lam", "--lambda"):
        assert re.fullmatch("--(lam|lambda) much: must be a number", complaint(name, "much"))


def arguments_of(values: dict[str, Any]) -> list[str]:
    return flags.to_arguments(values, KNOWN, "run.toml")


def test_a_toml_table_and_its_flags_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'n = 7\nlambda = -2.5\nmu = [0.5, inf]\nkind = "blue"\nbias = true\ngamma-local = 1e-3\nname = "a b"\n'
    )
    right = Model(n=7, lam=-2.5, mu=(0.5, math.inf), kind="blue", bias=True, gamma_local=1e-3, name="a b")
    assert parsed(*arguments_of(flags.read_toml(str(path)))) == dataclasses.asdict(right)


def test_keys_may_be_spelled_as_field_flag_or_alias() -> None:
    for key in ("gamma_local", "gamma-local"):
        assert parsed(*arguments_of({key: 0.5}))["gamma_local"] == 0.5
    for key in ("lam", "lambda"):
        assert parsed(*arguments_of({key: 0.5}))["lam"] == 0.5


def test_flags_after_a_table_come_first() -> None:
    table = arguments_of({"n": 7, "bias": True, "mu": [1.0, 2.0]})
    found = parsed(*table, "--n", "8", "--no-bias", "--mu", "3")
    assert (found["n"], found["bias"], found["mu"]) == (8, False, (3.0,))


@pytest.mark.parametrize("value", [dataclasses.asdict(Model()), {"mu": (-1.0, 5e-324), "lam": 0.1 + 0.2, "n": -4}])
def test_values_go_to_arguments_and_back_bit_for_bit(value: dict[str, Any]) -> None:
    assert parsed(*arguments_of(value)) == dataclasses.asdict(Model()) | value


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"gama_local": 1.0}, "run.toml: unknown key 'gama_local'; the nearest is gamma-local"),
        ({"Kind": "red"}, "run.toml: unknown key 'Kind'; the nearest is kind"),
        ({"qqqq": 1}, "run.toml: unknown key 'qqqq'"),
        ({"n": {"deep": 1}}, "run.toml: 'n' is a table; every key stands at the top level and names a flag"),
    ],
)
def test_a_wrong_key_is_named_with_its_file(table: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        arguments_of(table)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read (No such file or directory)"), (b"n = ", "is not TOML"), (b"\xff\xfe", "is not TOML")],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        flags.read_toml(str(path))
    assert f"--config {path}: {words}" in str(caught.value)


def test_help_texts_come_from_the_docstring_in_one_line() -> None:
    assert flags.attribute_texts(Model)["n"] == "its length, on two lines."
    assert set(flags.attribute_texts(Model)) == set(KNOWN)


def test_help_is_printed_and_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("--help")
    assert caught.value.code in (0, None)
    text = capsys.readouterr().out
    assert "--gamma-local" in text and "its length, on two lines." in text and "--lambda" in text


def test_two_groups_may_not_share_a_flag() -> None:
    with pytest.raises(UserError, match="the flag --n of second exists already"):
        flags.flags_of({"first": Model, "second": Twin})


def test_a_flag_of_another_method_or_problem_is_told_with_its_owners() -> None:
    """Mutations: the nearest flag in its place; methods alone; problems without their roles."""
    with pytest.raises(
        UserError,
        match=r"--uplink is no flag of this method on this problem; it belongs to --method heron, --method ho_sfl$",
    ):
        understand(heron_sfl, ["--method", "sflv2", "--uplink", "seeds"])
    with pytest.raises(UserError, match=r"--hidden is no flag .*; it belongs to --problem mlp$"):
        understand(zo_hfl, ["--hidden", "3"])
    with pytest.raises(UserError, match=r"--lam is no flag .*; it belongs to --problem softmax, --problem features, "):
        understand(zo_hfl, ["--method", "fedavg", "--lam", "3"])
    with pytest.raises(UserError, match="unknown flag --lamda; the nearest is "):
        understand(zo_hfl, ["--lamda", "3"])


# --- ZO-HFL's own flags


def values(*arguments: str) -> dict[str, Any]:
    return understand(zo_hfl, arguments).values


@pytest.mark.parametrize("problem", zo_hfl.PROBLEMS)
def test_every_flag_of_zo_hfl_has_a_help_text(problem: str) -> None:
    groups = groups_of(zo_hfl, "zo_hfl", problem)
    assert [leaf.name for cls in groups.values() for leaf in flags.leaves(cls) if not leaf.text] == []
    assert "rounds" in flags.flags_of(groups)


DEFAULTS = {
    "method": "zo_hfl",
    "problem": "softmax",
    "data": "digits",
    "m": 10,
    "alpha": math.inf,
    "beta": 1.0,
    "tau": (20.0,),
    "schedule_h": "sqrt",
    "gamma_local": 0.1,
    "schedule_local": "harmonic",
    "gamma": 0.01,
    "schedule": "sqrt",
    "batch": 64,
    "server_batch": 256,
    "x0": "auto",
    "y0": "x",
    "samples": "shared",
    "divide": "m",
    "eta": 0.1,
    "lam": 1.0,
    "mu": (1.0,),
    "exchange": "scalars",
    "dtype": "float32",
    "device": "auto",
    "pixels": "unit",
}


def test_defaults_are_the_papers_and_those_of_the_table() -> None:
    found = values()
    assert {name: found[name] for name in DEFAULTS} == DEFAULTS


def test_the_names_that_scripts_rely_on_are_flags() -> None:
    known = flags.flags_of(groups_of(zo_hfl, "zo_hfl", "softmax"))
    names = [
        "data-dir",
        "rounds",
        "seed",
        "out",
        "checkpoint-every",
        "resume",
        "eval-every",
        "config",
        "dry-run",
        "quiet",
        "force",
    ]
    assert [name for name in names if name.replace("-", "_") not in known] == []


def test_flags_come_before_the_config_file_and_that_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('problem = "toy"\nbeta = 0.5\ntau = [1, 2]\nm = 2\nnoise = 0.25\n')
    found = values("--config", str(path), "--beta", "0.9")
    assert (found["problem"], found["beta"], found["tau"], found["noise"]) == ("toy", 0.9, (1.0, 2.0), 0.25)
    assert values(f"--config={path}", "--n", "3")["n"] == 3


def test_a_plan_keeps_what_a_run_depends_on_and_the_command_as_typed() -> None:
    plan = understand(zo_hfl, ["--tau", "1.5", "--out", "a b.h5", "--quiet"])
    assert plan.command == "python -m zofl_mpi.zo_hfl --tau 1.5 --out 'a b.h5' --quiet"
    assert plan.config["tau"] == (1.5,)
    assert not set(plan.config) & {"out", "force", "resume", "config", "dry_run", "quiet"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--method", "zohfl"],
            "--method zohfl: must be one of zo_hfl, fedavg, fedprox, scaffold, ditto, pfedme, server_sgd, or module:",
        ),
        (
            ["--problem", "softmx"],
            "--problem softmx: must be one of softmax, features, mlp, cnn, toy, corner, caps, or module:Class;",
        ),
        (["--method", "no_such_module:M"], "--method no_such_module:M: No module named 'no_such_module'"),
        (["--method", "zofl_mpi.zo_hfl:Nothing"], "--method zofl_mpi.zo_hfl:Nothing: module 'zofl_mpi.zo_hfl' has no"),
        (
            ["--problem", "toy", "--alpha", "1"],
            "--alpha is no flag of this method on this problem; it belongs to --problem softmax",
        ),
    ],
)
def test_a_method_or_problem_that_does_not_exist_is_named(arguments: Sequence[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        values(*arguments)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("name", "least"), [("rounds", 1), ("eval_every", 1), ("checkpoint_every", 0)])
def test_counts_of_rounds_have_a_least_value(name: str, least: int) -> None:
    value = least - 1
    with pytest.raises(UserError, match=f"--{flags.flag(name)} {value}: must be a whole number, at least {least}"):
        flags.made(RunFlags, vars(RunFlags()) | {name: value})
    flags.made(RunFlags, vars(RunFlags()) | {name: least})


def test_a_users_own_class_brings_its_own_flags() -> None:
    found = values("--method", f"{zo_hfl.__name__}:ZOHFL", "--eta", "0.5")
    assert found["eta"] == 0.5 and found["method"] == "zofl_mpi.zo_hfl:ZOHFL"


def test_a_flag_that_was_is_refused_by_name_and_left_out_of_a_stored_run() -> None:
    """Mutations: an unknown flag without a word on what to do; a value that is no more stops a run that goes on."""
    with pytest.raises(UserError, match="--convolution is no longer a flag: torch computes all convolutions, leave"):
        values("--problem", "cnn", "--convolution", "direct")
    known = {"kernel": Literal["auto", "numpy"], "n": int}
    assert flags.readable({"kernel": "torch", "convolution": "auto", "n": 3}, known) == {"n": 3}
    assert flags.readable({"kernel": "auto", "x": 1}, known) == {"kernel": "auto", "x": 1}
    assert flags.readable({"kernel": "auto"}, {}) == {}


# --- ranges and finite values, declared on fields


@dataclasses.dataclass(frozen=True)
class Steps:
    """A part with ranges.

    Attributes:
        tau: numbers of steps.
        size: step size.
    """

    tau: tuple[float, ...] = at_least(0, (1.0,), "a number of steps")
    size: float = above(0, 0.1, "a step size")


@dataclasses.dataclass(frozen=True)
class Ranged:
    """A method with ranges.

    Attributes:
        count: a count.
        share: a share.
    """

    setting: Any
    steps: Steps = part(size=0.5)
    count: int = at_least(1, 3, remark="(1: no more)")
    share: float = fraction(1.0)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"count": 0}, "--count 0: must be a whole number, at least 1 (1: no more)"),
        ({"share": 0.0}, "--share 0.0: must be a fraction, above 0 and at most 1"),
        ({"share": 1.1}, "--share 1.1: must be"),
        ({"share": math.nan}, "--share nan: must be"),
        ({"size": 0.0}, "--size 0.0: must be a step size above 0"),
        ({"size": math.inf}, "--size inf: must be"),
        ({"tau": (1.0, -0.5)}, "--tau 1.0 -0.5: must be a number of steps, at least 0"),
    ],
)
def test_a_value_out_of_its_fields_range_is_refused(values: dict[str, Any], sentence: str) -> None:
    """Mutations: the bound itself on the wrong side; nan or inf let through; a part's ranges, or all but the first of
    several values, unchecked.
    """
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        flags.built(Ranged, None, **values)
    within = flags.built(Ranged, None, count=1, share=1e-9, tau=(0.0, 2.0))
    assert (within.count, within.steps.size, within.steps.tau) == (1, 0.5, (0.0, 2.0))


@dataclasses.dataclass(frozen=True)
class Reply:
    y: Any = finite("y is not finite; take less")
    z: Any = None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_must_be_finite_is_refused_by_its_sentence(bad: float) -> None:
    """Mutations: fields without a sentence checked too; one entry that is not finite overlooked."""
    check_finite(Reply(np.zeros(3), bad))
    for y in (bad, np.array([0.0, bad])):
        with pytest.raises(UserError, match=r"^y is not finite; take less$"):
            check_finite(Reply(y))


def test_a_removed_flag_of_a_stored_run_is_dropped_only_at_the_value_that_is_done_now() -> None:
    """Mutations: every value dropped; none; the nearest flag named."""
    assert flags.readable({"passes_abreast": 1, "n_p": 2}, {"n_p": int}) == {"n_p": 2}
    assert flags.readable({"passes_abreast": 2}, {}) == {"passes_abreast": 2}
    with pytest.raises(UserError, match=r"^run.h5: passes_abreast = 2 is no longer a flag: perturbed passes go one by"):
        flags.to_arguments({"passes_abreast": 2}, {"n_p": int}, "run.h5")
    groups = groups_of(heron_sfl, "heron", "split_resnet")
    with pytest.raises(UserError, match=r"^--passes-abreast is no longer a flag: perturbed passes go one by one"):
        flags.parse(groups, ["--passes-abreast", "2"], "program", "")
