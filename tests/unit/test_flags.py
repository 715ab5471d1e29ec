"""Flags: what a dataclass, a TOML file and a command line make of each other, and the sentences for mistakes."""

import dataclasses
import itertools
import math
import re
import typing
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from tests.unit.made import complaint
from zofl_mpi import above, at_least, fedrzo, finite, flag_group, fraction, heron_sfl, zo_hfl
from zofl_mpi.engine.fields import check_finite
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.errors import UserError
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.family import FAMILIES, family_of
from zofl_mpi.run.command.plan import groups_of, parse_plan


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


GROUPS = {"the model": Model}
KNOWN = flags.flags_of(GROUPS)


def parsed(*arguments: str) -> dict[str, Any]:
    return flags.parse(GROUPS, arguments, "python -m test", "A test.")


def arguments_of(values: dict[str, Any]) -> list[str]:
    return flags.to_arguments(values, KNOWN, "run.toml")


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ([], {}),
        (["--n", "7", "--name", "a b"], {"n": 7, "name": "a b"}),
        (["--n=7"], {"n": 7}),
        (["--lambda", "2.5"], {"lam": 2.5}),
        (["--lam", "-2.5e-3"], {"lam": -2.5e-3}),
        (["--lam=-inf"], {"lam": -math.inf}),
        (["--mu", "1", "2.5", "inf"], {"mu": (1.0, 2.5, math.inf)}),
        (["--mu", "-1", "--n", "2"], {"mu": (-1.0,), "n": 2}),
        (["--bias"], {"bias": True}),
        (["--bias", "--no-bias"], {"bias": False}),
        (["--n", "1", "--n", "2"], {"n": 2}),
        (arguments_of({"n": 7, "bias": True, "mu": [1.0, 2.0]}), {"n": 7, "bias": True, "mu": (1.0, 2.0)}),
        ([*arguments_of({"n": 7, "bias": True}), "--n", "8", "--no-bias"], {"n": 8}),
        *((arguments_of({key: 0.5}), {"gamma_local": 0.5}) for key in ("gamma_local", "gamma-local")),
        *((arguments_of({key: 0.5}), {"lam": 0.5}) for key in ("lam", "lambda")),
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
        (["--n", "1.5"], "--n 1.5: must be a whole number"),
        (["--n"], "--n (nothing): must be a whole number"),
        (["--gamma-local", "much"], "--gamma-local much: must be a number"),
        (["--lambda", "much"], "--lam"),
        (["--kind", "green"], "--kind green: must be one of red, blue"),
        (["--mu", "1", "two"], "--mu 1 two: must be one or more values, each a number"),
        (["--mu"], "--mu (nothing): must be one or more values, each a number"),
        (["--n", "1", "2"], "'2' stands where a flag is expected; flags begin with --"),
        (["--bias", "yes"], "'yes' stands where a flag is expected; flags begin with --"),
        (["--no-n"], "unknown flag --no-n; --help lists all"),
    ],
)
def test_a_mistake_is_one_sentence_with_flag_value_and_what_is_allowed(arguments: list[str], words: str) -> None:
    assert complaint(parsed, *arguments).startswith(words)


def test_a_toml_table_and_its_flags_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'n = 7\nlambda = -2.5\nmu = [0.5, inf]\nkind = "blue"\nbias = true\ngamma-local = 1e-3\nname = "a b"\n'
    )
    right = Model(n=7, lam=-2.5, mu=(0.5, math.inf), kind="blue", bias=True, gamma_local=1e-3, name="a b")
    assert parsed(*arguments_of(flags.read_toml(str(path)))) == dataclasses.asdict(right)
    for value in (dataclasses.asdict(Model()), {"mu": (-1.0, 5e-324), "lam": 0.1 + 0.2, "n": -4}):  # bit for bit
        assert parsed(*arguments_of(value)) == dataclasses.asdict(Model()) | value


def test_a_wrong_key_is_named_with_its_file() -> None:
    deep = "run.toml: 'n' is a table; write each flag as a key at the top level"
    assert complaint(arguments_of, {"n": {"deep": 1}}) == deep
    unknown = "run.toml: unknown key 'gama_local'; the nearest is gamma-local"
    assert complaint(arguments_of, {"gama_local": 1.0}) == unknown


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read (No such file or directory)"), (b"n = ", "is not TOML"), (b"\xff\xfe", "is not TOML")],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    assert f"--config {path}: {words}" in complaint(flags.read_toml, str(path))


def test_help_is_printed_and_ends_with_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"--n is a flag of Model \(first\) and of Model \(second\): give"):
        flags.flags_of({"first": Model, "second": Model})
    with pytest.raises(SystemExit) as caught:
        parsed("--help")
    assert caught.value.code in (0, None)
    text = capsys.readouterr().out
    assert flags.attribute_texts(Model)["n"] == "its length, on two lines."
    assert set(flags.attribute_texts(Model)) == set(KNOWN)
    assert "--gamma-local" in text and "its length, on two lines." in text and "--lambda" in text


OWN = """from dataclasses import dataclass
from zofl_mpi import Method
@dataclass(frozen=True)
class Mine(Method):{doc}
    setting: object
    gamma: float = 0.5
    def start(self): ...
    def round(self, state, r, clients): ...
    def evaluate(self, state, r, clients): ...
"""
TEXT = """
    \"\"\"Means of gradients.

    Each of a mini-batch.

    Attributes:
        gamma: step size.\"\"\""""


@pytest.mark.parametrize(
    ("doc", "opening"), [(TEXT, "own_{}:Mine: Means of gradients.\n\nEach of a mini-batch.\n"), ("", "own_{}:Mine\n")]
)
def test_help_of_a_method_of_ones_own_opens_with_its_docstring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], doc: str, opening: str
) -> None:
    """Mutations: the family's text; the flags' texts a second time; a dataclass's fields as its docstring."""
    name = "text" if doc else "none"
    (tmp_path / f"own_{name}.py").write_text(OWN.format(doc=doc))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        parse_plan(zo_hfl, ["--method", f"own_{name}:Mine", "--help"])
    told = capsys.readouterr().out
    assert told.split("\n\n", 1)[1].startswith(opening.format(name))
    assert "ZO-HFL" not in told and told.count("step size.") == (1 if doc else 0)


def test_a_flag_of_another_method_or_problem_is_told_with_its_owners() -> None:
    """Mutations: the nearest flag in its place; methods alone; problems without their roles."""
    with pytest.raises(
        UserError,
        match=r"--uplink is no flag of this method on this problem; it belongs to --method heron, --method ho_sfl$",
    ):
        parse_plan(heron_sfl, ["--method", "sflv2", "--uplink", "seeds"])
    with pytest.raises(UserError, match=r"--hidden is no flag .*; it belongs to --problem mlp$"):
        parse_plan(zo_hfl, ["--hidden", "3"])
    with pytest.raises(UserError, match=r"--lam is no flag .*; it belongs to --problem softmax, --problem features, "):
        parse_plan(zo_hfl, ["--method", "fedavg", "--lam", "3"])
    with pytest.raises(UserError, match="unknown flag --lamda; the nearest is "):
        parse_plan(zo_hfl, ["--lamda", "3"])


def values(*arguments: str) -> dict[str, Any]:
    return parse_plan(zo_hfl, arguments).values


@pytest.mark.parametrize("name", FAMILIES)
def test_every_flag_has_a_help_text(name: str) -> None:
    """Of every method on every problem that it runs on. Mutation: an attribute that no docstring explains."""
    family, checked = family_of(name), set[str]()
    for method, problem in itertools.product(family.METHODS, family.PROBLEMS):
        try:
            groups = groups_of(family, method, problem)
        except UserError:  # the method needs another role
            continue
        checked.add(method)
        assert [leaf.name for cls in groups.values() for leaf in flags.leaves(cls) if not leaf.text] == []
        assert "rounds" in flags.flags_of(groups)
    assert checked == set(family.METHODS)


def test_paper_takes_the_papers_values_and_those_of_the_table() -> None:
    """And the names that scripts rely on are flags. Mutations: a paper's value that beats the given one; none taken."""
    text = {"method": "zo_hfl", "problem": "softmax", "data": "digits", "x0": "auto", "y0": "x", "samples": "shared"}
    text |= {"divide": "m", "exchange": "scalars", "dtype": "float32", "device": "auto", "pixels": "unit"}
    steps = {"schedule_h": "sqrt", "gamma_local": 0.1, "schedule_local": "harmonic", "gamma": 0.01, "schedule": "sqrt"}
    numbers = {"m": 10, "alpha": math.inf, "beta": 1.0, "tau": (20.0,), "batch": 64, "server_batch": 256, "eta": 0.1}
    defaults, found = text | steps | numbers | {"lam": 1.0, "mu": (1.0,)}, values("--paper")
    assert values()["gamma"] == 1.0 and values("--paper", "--gamma", "3")["gamma"] == 3.0
    assert {name: found[name] for name in defaults} == defaults
    known = flags.flags_of(groups_of(zo_hfl, "zo_hfl", "softmax"))
    relied = "data_dir rounds seed out checkpoint_every resume eval_every config dry_run quiet force"
    assert [name for name in relied.split() if name not in known] == []


def test_flags_come_before_the_config_file_and_that_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('problem = "toy"\nbeta = 0.5\ntau = [1, 2]\nm = 2\nnoise = 0.25\n')
    found = values("--config", str(path), "--beta", "0.9")
    assert (found["problem"], found["beta"], found["tau"], found["noise"]) == ("toy", 0.9, (1.0, 2.0), 0.25)
    assert values(f"--config={path}", "--n", "3")["n"] == 3
    plan = parse_plan(zo_hfl, ["--tau", "1.5", "--out", "a b.h5", "--quiet"])
    assert plan.command == "python -m zofl_mpi.zo_hfl --tau 1.5 --out 'a b.h5' --quiet"
    assert plan.config["tau"] == (1.5,)
    assert not set(plan.config) & {"out", "force", "resume", "config", "dry_run", "quiet"}


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
    steps: Steps = flag_group(size=0.5)
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
    several values, unchecked."""
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}"):
        flags.from_flags(Ranged, None, **values)
    within = flags.from_flags(Ranged, None, count=1, share=1e-9, tau=(0.0, 2.0))
    assert (within.count, within.steps.size, within.steps.tau) == (1, 0.5, (0.0, 2.0))


@dataclasses.dataclass(frozen=True)
class Reply:
    y: Any = finite("y is not finite; take less")
    z: Any = None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_must_be_finite_is_refused_by_its_sentence(bad: float) -> None:
    """Mutations: fields without a sentence checked too; one entry that is not finite overlooked, or the least alone."""
    values: list[Any] = [np.zeros(3), torch.empty(0), torch.tensor([3e38, 3e38])]
    for y in values:
        check_finite(Reply(y, bad))
    values = [bad, np.array([0.0, bad]), torch.tensor([0.0, bad]), torch.tensor([-bad, 0.0])]
    for y in values:
        with pytest.raises(UserError, match=r"^y is not finite; take less$"):
            check_finite(Reply(y))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Method[Any]):
    """A method of a user's.

    Attributes:
        lam: as ZO-HFL has one.
        gain: has no default.
    """

    needs: ClassVar[Any] = "Smooth"
    setting: Setting[Any]
    lam: float = 0.5
    gain: float
    steps: Steps = flag_group()
    made: Any = dataclasses.field(init=False, default=None)

    def start(self) -> None: ...

    def round(self, state: None, r: int, clients: Any) -> None: ...

    def evaluate(self, state: None, r: int, clients: Any) -> None: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doubled(Own):
    """A method with a flag of its part's name.

    Attributes:
        size: another.
    """

    size: int = 2


def test_a_method_has_the_flags_that_it_declares() -> None:
    """lam although Smooth problems have none, one without a default, a nested one; no field that it makes itself."""
    own = ["--method", f"{__name__}:Own", "--tau", "2"]
    config = parse_plan(zo_hfl, [*own, "--gain", "2", "--size", "3"]).config
    assert (config["lam"], config["gain"], config["size"], config["tau"]) == (0.5, 2.0, 3.0, (2.0,))
    assert not {"made", "steps", "setting", "needs"} & set(config)
    with pytest.raises(UserError, match=r"^--gain"):
        parse_plan(zo_hfl, own)
    with pytest.raises(UserError, match=r"--size is a flag of Doubled \(method\) and of Doubled \(method\): give"):
        parse_plan(zo_hfl, ["--method", f"{__name__}:Doubled", "--gain", "2"])


def test_a_problem_may_have_a_default_of_its_own_for_a_methods_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """--eta is 0.1, and half of mu on regularisers; typed it is what was typed; --help says the one that holds; FedNest
    has no such flag. Mutations: the class's default in the values, or in the help; the problem's before what is
    typed; a value for FedNest."""
    bilevel = ["--method", "fedrzo_bl", "--problem"]
    etas = [parse_plan(fedrzo, [*bilevel, *rest.split()]).values["eta"] for rest in ("fair", "hyperparameter")]
    assert etas == [0.1, 0.005]
    assert parse_plan(fedrzo, [*bilevel, "hyperparameter", "--eta", "0.1"]).values["eta"] == 0.1
    assert "eta" not in parse_plan(fedrzo, ["--method", "fednest"]).values
    with pytest.raises(SystemExit):
        parse_plan(fedrzo, [*bilevel, "hyperparameter", "--help"])
    assert re.search(r"--eta FLOAT .*distance to X_i. \(default:\s+0\.005\)", capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize(
    ("family", "words", "method", "problem"),
    [
        (zo_hfl, [], "zo_hfl", "softmax"),
        (zo_hfl, ["--method", "fedavg", "--problem", "mlp"], "zo_hfl", "softmax"),
        (fedrzo, ["--method", "fedrzo_bl", "--problem", "fair"], "fedrzo_nn", "hyperparameter"),
        (heron_sfl, ["--problem", "split_mlp", "--paper"], "heron", "split_resnet"),
    ],
)
def test_help_says_the_defaults_of_method_and_problem_whatever_is_given(
    capsys: pytest.CaptureFixture[str], family: Any, words: list[str], method: str, problem: str
) -> None:
    """The problem's is that of the method. Mutation: what was given, as its own default."""
    with pytest.raises(SystemExit):
        parse_plan(family, [*words, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert re.findall(r"module:Class for one of your own. \(default: (\w+)\)", told) == [method, problem]


def another(leaf: flags.Leaf) -> Any:
    """A value that a flag may have, and that is not its default."""
    if typing.get_origin(leaf.kind) is Literal:
        return next(value for value in typing.get_args(leaf.kind) if value != leaf.default)
    if leaf.kind in (int, float):
        return leaf.kind(leaf.default / 2 if leaf.kind is float and leaf.default else leaf.default + 1)
    return {"schedule": "harmonic:3", "personal_schedule": "sqrt", "T_lower": "5", "H_lower": "2"}.get(leaf.name, "3")


EVERY = [(name, method) for name in FAMILIES for method in family_of(name).METHODS]


@pytest.mark.parametrize(("name", "method"), EVERY)
def test_a_flag_that_nothing_reads_beside_the_others_is_refused_in_a_sentence(name: str, method: str) -> None:
    """Of all methods. A run recorded --server-batch, and no bit of it depended on it. Mutations: a part's flags alone;
    a usual value refused; one that a wanted value makes useful; one of the run that is continued."""
    family = family_of(name)
    problem = parse_plan(family, ["--method", method]).values["problem"]
    known, tried = flags.flags_of(groups_of(family, method, problem)), 0
    usual = parse_plan(family, ["--method", method]).values
    for leaf in known.values():
        for other, wanted in getattr(leaf.owner, "USED_WITH", {}).get(leaf.name, {}).items():
            value, kind, least = another(leaf), known[other].kind, {"gamma": 0.1, "attackers": 0.2, "K": 50}
            on = wanted[0] if wanted else True if kind is bool else kind(least.get(other, 1))
            off = next(each for each in typing.get_args(kind) or (False, 0, 7, "7") if each not in (wanted or (on,)))
            off = "digits" if other == "data" else "official" if other == "split" else kind(off) if not wanted else off
            told = complaint(flags.check_used, known, {**usual, leaf.name: value, other: off}, usual, {})
            assert told.startswith(f"--{flags.flag(leaf.name)} {flags.shown(value)}: nothing uses it with"), told
            assert f"--{flags.flag(other)}" in told and "leave it out, or" in told
            flags.check_used(known, {**usual, leaf.name: value, other: on}, usual, {})
            flags.check_used(known, {**usual, other: off}, usual, {})
            flags.check_used(known, {**usual, leaf.name: value, other: off}, usual, {leaf.name: value})
            tried += 1
    assert tried >= 3, tried
    typed = ["--method", method, "--synthetic-classes", "4"]
    if "synthetic_classes" in known:
        words = "--synthetic-classes 4: nothing uses it with --data digits; leave it out, or take --data synthetic"
        assert complaint(parse_plan, family, typed) == words
        assert parse_plan(family, [*typed, "--data", "synthetic"]).values["synthetic_classes"] == 4
