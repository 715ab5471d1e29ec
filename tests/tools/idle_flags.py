"""Looks for flags whose value moves no bit of a run: what no round reads is to be refused.

    python -m tests.tools.idle_flags zo_hfl fedavg
    python -m tests.tools.idle_flags heron_sfl heron --problem split_mlp --with estimate=jvp

Two rounds with another value of each flag are compared with two rounds without it: last state, columns, bytes. A flag
that is printed is read by no round beside these (a candidate for `USED_WITH` of its class), or both values mean the
same in these rounds, as weights of clients that have equally many samples: a reader decides.
"""

import argparse
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

import zofl_mpi as zofl
from zofl_mpi.run.command import flags
from zofl_mpi.run.command.family import family_of
from zofl_mpi.run.command.plan import groups_of, parse_plan
from zofl_mpi.run.command.run_flags import RunFlags

SMALL = {"rounds": 2, "eval_every": 1, "checkpoint_every": 0, "m": 4}
OTHERS = {"schedule": "harmonic:3", "schedule_local": "sqrt", "T_lower": "5", "H_lower": "2", "compress": "topk:0.5"}
"""{flag that is a word: another value}"""


def bits(family: str, method: str, problem: str, given: Mapping[str, Any]) -> Any:
    """All numbers of a run but its clocks; a sentence where it is refused."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            result = zofl.simulate(method, problem, family=family, out=Path(folder) / "a.h5", **given)
        except (zofl.UserError, zofl.RunFailed) as exc:
            return str(exc)
        columns = {name: each for name, each in result.run.rounds.items() if "seconds" not in name}
        named = [*result.final.items(), *columns.items(), *result.run.clients.items()]
        return [(name, np.asarray(value).tobytes()) for name, value in named if not isinstance(value, Mapping)]


def others(leaf: flags.Leaf, value: Any) -> Iterator[Any]:
    """Other values of a flag."""
    if leaf.kind is bool:
        yield not value
    elif get_origin(leaf.kind) is Literal:
        yield from (each for each in get_args(leaf.kind) if each != value)
    elif leaf.kind in (int, float):
        yield leaf.kind(2 * value or 1)
    elif leaf.name in OTHERS:
        yield OTHERS[leaf.name]


def main() -> None:
    """Prints the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("method")
    parser.add_argument("--problem", default="")
    parser.add_argument("--with", dest="given", nargs="*", default=[], metavar="FLAG=VALUE")
    asked = parser.parse_args()
    family = family_of(f"zofl_mpi.{asked.family}")
    own = ["--problem", asked.problem] if asked.problem else []
    usual = parse_plan(family, ["--method", asked.method, *own]).values
    known = flags.flags_of(groups_of(family, asked.method, usual["problem"]))
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if name in known}
    for word in asked.given:
        name, _, value = word.partition("=")
        given[name] = json.loads(value) if value[:1] in "0123456789.[tf" else value
    run = [asked.family, asked.method, usual["problem"]]
    before = bits(*run, given)
    if isinstance(before, str):
        raise SystemExit(before)
    for name, leaf in known.items():
        if leaf.owner is RunFlags or name in given or name in ("method", "problem", "data", "data_dir"):
            continue
        idle = [value for value in others(leaf, usual[name]) if bits(*run, {**given, name: value}) == before]
        if idle:
            print(f"--{flags.flag(name)} {', '.join(map(str, idle))}  ({leaf.owner.__name__})", flush=True)


if __name__ == "__main__":
    main()
