"""Commands that continue or restart a run, as typed in a shell."""

import os
import shlex
from typing import NamedTuple, final

from zofl_mpi.run.command import flags, stored
from zofl_mpi.run.command.plan import Plan
from zofl_mpi.run.command.run_flags import REPEATED_FLAGS, RunFlags
from zofl_mpi.run.loop.progress import launcher_words

RESUME, BEGIN = "ZOFL_RESUME", "ZOFL_BEGIN"
"""Variables in which a job script stores the commands that continue and restart its run."""
SCRIPT = "zofl_mpi.simulate"
"""First word of the command of a run from Python; no command line begins with it."""


@final
class Again(NamedTuple):
    """Commands that continue a run and start it again."""

    resume: str
    begin: str


def commands(plan: Plan, result: str, ranks: int) -> Again:
    """The commands that continue the run with this result and that restart it; rank 0 sees the launcher."""
    if plan.command.startswith(SCRIPT):  # with objects that no command can name
        call = f"{SCRIPT}(zofl_mpi.load({result!r}), ...)"
        return Again(f"{call} with the same method, problem and data", f"{plan.command[:-1]}, force=True)")
    typed = shlex.split(plan.command)
    program, arguments = typed[:3], typed[3:]  # `python -m MODULE`, and its arguments
    started = [*launcher_words(arguments, ranks), *program]
    kept = [word for word in flags.split(arguments) if word[0] not in ("--out", "--force", "--no-force")]
    words = [word for flag, values in kept for word in (flag, *values)]
    resume = [*started, "--resume", result, *_named_again(plan)]
    return Again(
        os.environ.get(RESUME) or shlex.join(resume),
        os.environ.get(BEGIN) or shlex.join([*started, *words, "--out", result, "--force"]),
    )


def _named_again(plan: Plan) -> list[str]:
    """Flags that a command must repeat, because no file stores them."""
    again = {name: plan.values.get(name) for name in stored.PATH_FLAGS if plan.values.get(name)}
    again |= {name: plan.values[name] for name in stored.CLASSES if ":" in plan.values[name]}
    again |= {k: v for k, v in plan.values.items() if k in stored.KNOWN and stored.is_place(k, str(v))}
    usual = {leaf.name: leaf.default for leaf in flags.leaves(RunFlags)}
    again |= {name: plan.values[name] for name in REPEATED_FLAGS if plan.values[name] != usual[name]}
    return flags.to_arguments(again, again, "")
