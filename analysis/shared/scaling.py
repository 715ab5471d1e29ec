"""What a scaling study measured, its runs and exchanges: read from results, ReFrame's report, or a kept file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from shared.exchange import Cost
from shared.timing import Timing, timing
from zofl_mpi.errors import UserError
from zofl_mpi.run import records

NAMES = {"fedavg": "FedAvg, softmax", "fedavg-cnn": "FedAvg, CNN", "heron": "HERON-SFL", "zo_hfl": "ZO-HFL"}
"""How figures spell the study's methods."""


@final
@dataclass(frozen=True)
class Case:
    """A run of a study.

    Attributes:
        system: where it ran; "" where only the result is known.
        study: strong, weak, or "" for the run on one rank that others are compared with.
        share: how much the server computes, by name: low or high.
        timing: what a round cost.
    """

    system: str
    method: str
    share: str
    study: str
    timing: Timing

    @property
    def work(self) -> tuple[str, str, str, int]:
        """Equal for runs of the same work in the same place, whatever their ranks."""
        return self.system, self.method, self.share, self.timing.m

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Equal for the same run, measured twice."""
        return *self.work, self.timing.ranks

    @property
    def per_rank(self) -> float:
        """Clients a client rank."""
        return self.timing.m / max(1, self.timing.ranks - 1)


@final
@dataclass(frozen=True)
class Exchange:
    """What questions cost between the ranks of a system, as `analysis/exchange.py` keeps it.

    Attributes:
        ranks: the server's among them; nodes: their different hosts.
        costs: by `shared.exchange.KINDS`.
    """

    system: str
    ranks: int
    nodes: int
    processor: str
    mpi: str
    costs: dict[str, Cost]

    @property
    def speed(self) -> float:
        """The cores that all ranks together are worth when they compute at once."""
        together = self.costs["together"].fixed - self.costs["ask"].fixed
        crowd = together / self.costs["alone"].fixed
        return self.ranks / max(1.0, crowd)


@final
@dataclass(frozen=True)
class Measured:
    """Everything that a study measured.

    Attributes:
        when: day of the first run; "" if unknown.
    """

    cases: tuple[Case, ...]
    exchanges: tuple[Exchange, ...]
    when: str = ""

    def text(self) -> str:
        """What a file that `read` reads has in it."""
        runs = [asdict(case) for case in self.cases]
        exchanges = [{**asdict(e), "costs": {k: c._asdict() for k, c in e.costs.items()}} for e in self.exchanges]
        return json.dumps({"when": self.when, "runs": runs, "exchanges": exchanges}, indent=1) + "\n"

    @property
    def hardware(self) -> str:
        """The processors and MPI libraries of the exchanges."""
        told = [f"{e.processor}, {e.mpi}" for e in self.exchanges]
        return "; ".join(dict.fromkeys(told)) or "hardware unknown"


def read(paths: Sequence[Path]) -> Measured:
    """What the files hold together: HDF5 results, ReFrame's reports, what exchange.py kept, what `Measured.text` gave.

    Raises:
        UserError: a file is none of these, or a result in it is missing or cannot be timed; or nothing is there.
    """
    parts = [_read(path) for path in paths]
    cases = {(*case.key, case.study): case for part in parts for case in part.cases}
    exchanges = {(e.system, e.ranks): e for part in parts for e in part.exchanges}
    days = [part.when for part in parts if part.when]
    if not cases:
        raise UserError(f"no run is in {', '.join(map(str, paths))}")
    return Measured(tuple(cases.values()), tuple(exchanges.values()), min(days, default=""))


def _read(path: Path) -> Measured:
    if path.suffix != ".json":
        return Measured((_case(path, {}),), (), str(records.load(path).attrs.get("started", ""))[:10])
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if "session_info" in told:
            return _of_report(told)
        if "runs" in told:
            exchanges = (_exchange(values) for values in told["exchanges"])
            return Measured(tuple(map(_kept, told["runs"])), tuple(exchanges), told["when"])
        return Measured((), (_of_exchange(told, ""),))
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is neither ReFrame's report nor a kept scaling study ({type(error).__name__}: {error})"
        ) from error


def _of_report(report: dict[str, Any]) -> Measured:
    """The runs and exchanges of a report whose tests passed; their files lie where it says."""
    cases, exchanges = [], []
    tests = [test for run in report["runs"] for test in run["testcases"]]
    for test in tests:
        if test["result"] != "pass":
            raise UserError(f"{test['display_name']} did not pass: {test['fail_reason']}")
        folder = Path(test["outputdir"])
        if "method" in test:
            cases.append(_case(folder / "result.h5", test))
        else:
            kept = json.loads((folder / "exchange.json").read_text(encoding="utf-8"))
            exchanges.append(_of_exchange(kept, test["system"]))
    day = datetime.fromtimestamp(report["session_info"]["time_start_unix"], UTC).date().isoformat()
    return Measured(tuple(cases), tuple(exchanges), day)


def _case(path: Path, test: dict[str, Any]) -> Case:
    run = records.load(path)
    method = test.get("method") or str(run.config.get("method", ""))
    return Case(test.get("system", ""), method, test.get("share", ""), test.get("study", ""), timing(run))


def _kept(values: dict[str, Any]) -> Case:
    return Case(**{**values, "timing": Timing.of(values["timing"])})


def _exchange(values: dict[str, Any]) -> Exchange:
    return Exchange(**{**values, "costs": {kind: Cost(**cost) for kind, cost in values["costs"].items()}})


def _of_exchange(told: dict[str, Any], system: str) -> Exchange:
    places, costs = told["ranks"], {kind: Cost(**cost) for kind, cost in told["exchange"].items()}
    hosts = {place["host"] for place in places}
    return Exchange(system, len(places), len(hosts), places[0]["processor"], told["mpi"], costs)


def one_rank(cases: Iterable[Case]) -> dict[tuple[str, str, str, int], Case]:
    """The runs in one process, by their work."""
    return {case.work: case for case in cases if case.timing.ranks == 1}
