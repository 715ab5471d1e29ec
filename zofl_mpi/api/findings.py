"""Findings of `check_method`: check, outcome, advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

Status = Literal["passed", "failed", "not checked"]
ADVICE = {
    "one process": "mend the round that fails; `python -m zofl_mpi.FAMILY --method MODULE:CLASS` runs it alone",
    "messages": "work on a copy: x = message.x.copy(), or .clone()",
    "hidden state": "keep it in the state that round returns, or in client.memory",
    "random numbers": "draw from self.setting.streams(Purpose...., r=r, i=client.i): a function of seed, round, client",
    "a second run": "let nothing outlive a run, as lists of a module or of a class do; draw from setting.streams",
    "cut and resumed": "what a later round needs belongs into the state or client.memory: lists of a module are not "
    "in a checkpoint",
    "3 ranks": "a client may know its data, its memory and its message alone: not its rank, not what other clients of "
    "the process left",
    "resumed on 3 ranks": "as cut and resumed: client.memory alone moves to other ranks with its client",
    "planned bytes": "mend plan or round_work, or what the messages hold: a field that nobody reads travels, too",
    "NaN": "declare the reply's field by finite(...), or raise a UserError in the step: a diverged run must end",
    "m = 1": "a method may have one client, or one participant: no division by m - 1",
    "m = 1,000": "clients are numbered up to m - 1: no table of a fixed length",
}
"""{name of a finding: advice if it fails}"""


@final
@dataclass(frozen=True)
class Finding:
    """Outcome of one check.

    Attributes:
        name: of the check, for example "3 ranks".
        status: passed, failed or not checked.
        detail: the observation, or the reason for not checking.
        advice: remedy; "" if nothing failed.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.status:11}  {self.name:18}  {self.detail}"
        return f"{line}\n{'':33}-> {self.advice}" if self.advice else line


@final
@dataclass(frozen=True)
class Checked:
    """All outcomes of `check_method`.

    Attributes:
        method, problem: their names on a command line.
        findings: a `Finding` for each check.
    """

    method: str
    problem: str
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """True if no check failed; skipped checks do not count."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the failed checks."""
        return [each.name for each in self.findings if each.status == "failed"]

    def __str__(self) -> str:
        return "\n".join([f"{self.method} on {self.problem}", *map(str, self.findings)])
