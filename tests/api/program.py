"""A script that all ranks run; each prints what it saw, a JSON line a rank. `mpirun -n 3 python program.py FOLDER`."""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zofl_mpi as zofl
from tests.api.conftest import FedSGD, samples

FOLDER = Path(sys.argv[1])
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
SEEN: dict[str, Any] = {"rank": RANK}


@dataclass(frozen=True)
class Unread(FedSGD):
    """Its server fails while replies are still to come."""

    def round(self, model: Any, r: int, clients: Any) -> Any:
        for i, _ in clients.ask(self.gradient, model):
            if r == 1:
                raise LookupError(f"planted after client {i}")
        return super().round(model, r, clients)


@dataclass(frozen=True)
class Unsummed(FedSGD):
    """Likewise with a sum that nobody reads."""

    def round(self, model: Any, r: int, clients: Any) -> Any:
        clients.sum(self.gradient, model, self.term, to=range(len(self.setting.data)))
        raise LookupError("planted before the sum")

    def term(self, i: int, message: Any, reply: Any) -> Any:
        return np.asarray(reply.g, np.float64)


def attempt(name: str, call: Any) -> None:
    """What becomes of a call: its value, or its exception."""
    try:
        SEEN[name] = call()
    except Exception as exc:
        SEEN[name] = f"{type(exc).__name__}: {exc}"


def run(method: Any, data: Any, out: str, **flags: Any) -> zofl.Result:
    same: dict[str, Any] = {"family": "zo_hfl", "out": FOLDER / out, "rounds": 4, "eval_every": 2, **flags}
    return zofl.simulate(method, "softmax", data, **same)


def words(result: zofl.Result) -> list[Any]:
    return [result.rank, result.status, result.reason, result.row["round"], result.row["test_accuracy"]]


def early(data: Any) -> list[Any]:
    with zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=9, out=FOLDER / "early.h5", seed=2) as sim:
        for row in sim:
            if row["round"] == 3:
                break
    return [sim.result.status, sim.result.reason, sim.rounds]


def broken(data: Any) -> None:
    with zofl.Simulation(FedSGD, "softmax", data, family="zo_hfl", rounds=9, out=FOLDER / "broken.h5") as sim:
        for row in sim:
            if row["round"] == 3:
                raise ValueError("of the script")


def search(data: Any) -> Any:
    """What rank 0 alone does: a class of its own, several runs, one of which fails."""

    @dataclass(frozen=True)
    class Local(FedSGD):
        gamma: float = 0.2

    found = [run(Local, data, f"lead-{k}.h5", gamma=g).row["test_accuracy"] for k, g in enumerate((0.1, 0.5))]
    try:
        run(Unread, data, "lead-bad.h5")
    except zofl.RunFailed as exc:
        found.append(str(exc)[:8])
    return found


def loaded(name: str) -> zofl.Result:
    """A result whose tables have been read."""
    result = zofl.load(FOLDER / name, method=FedSGD)
    assert len(result.table()) == 3
    return result


def continued(data: Any, first: Any = None) -> zofl.Result:
    """Three rounds, and the fourth."""
    first = first or run(FedSGD, data, "half.h5", rounds=3, checkpoint_every=1)
    return zofl.simulate(first, "softmax", data, rounds=4)


def pruned(data: Any) -> list[Any]:
    """A trial that is pruned at its first value; what the other ranks get."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(lower=2.0)).ask()
    return words(run(FedSGD, data, "pruned.h5", callbacks=[zofl.OptunaPruning(trial, "test_accuracy")]))


class Ends:
    """Sees its run's end, and fails then."""

    def __init__(self, interrupts: bool = False) -> None:
        self.interrupts, self.seen = interrupts, list[Any]()

    def on_round(self, sim: zofl.Simulation, row: Any) -> None:
        if self.interrupts:
            raise KeyboardInterrupt

    def on_end(self, sim: zofl.Simulation) -> None:
        self.seen = [sim.result.status, sim.result.reason, zofl.records.load(sim.result.path).length]
        print(json.dumps(self.seen), flush=True)
        raise OSError("of a tracker")


def ended(data: Any) -> list[Any]:
    """What a callback sees of a run whose server fails, and what this rank gets."""
    ends = Ends()
    with (
        suppress(zofl.RunFailed),
        zofl.Simulation(
            Unread, "softmax", data, family="zo_hfl", rounds=4, out=FOLDER / "ended.h5", callbacks=[ends]
        ) as sim,
    ):
        list(sim)
    return [ends.seen, sim.result.status, sim.result.reason]


def main() -> None:
    clients = {str(k): samples(20 + k, k) for k in range(40)}
    data = zofl.Federation.of_clients(clients, server=samples(40, 44), test=samples(60, 45), validation=0.1)
    attempt("run", lambda: words(run(FedSGD, data, "run.h5")))
    attempt("at rank 0 alone", lambda: words(run(FedSGD, data if RANK == 0 else None, "spread.h5")))
    attempt("table", lambda: len(run(FedSGD, data, "table.h5").table()))
    attempt("early", lambda: early(data))
    attempt("broken", lambda: broken(data))
    attempt("refused", lambda: words(run(FedSGD, data, "refused.h5", tua=3)))
    attempt("different", lambda: words(run(FedSGD, data, "different.h5", gamma=0.1 + RANK)))
    other = data if RANK == 0 else zofl.Federation.of_clients(clients, test=samples(60, 45))
    attempt("planned", lambda: str(zofl.plan(FedSGD, "softmax", data, family="zo_hfl")) if RANK == 1 else early(data))
    attempt("other data", lambda: words(run(FedSGD, other, "other.h5")))
    attempt("data elsewhere", lambda: words(run("fedavg", data if RANK else None, "elsewhere.h5")))
    attempt("client", lambda: words(run("fedavg", data, "client.h5", gamma_local=1e300)))
    attempt("unread", lambda: words(run(Unread, data, "unread.h5")))
    attempt("unsummed", lambda: words(run(Unsummed, data, "unsummed.h5")))
    attempt("ended", lambda: ended(data))
    attempt("lead", lambda: zofl.lead(search, data))
    attempt("lead within", lambda: zofl.lead(lambda: zofl.lead(lambda: words(run(FedSGD, data, "within.h5")))))
    attempt("lead fails", lambda: zofl.lead(lambda: 1 / 0))
    attempt("pruned", lambda: pruned(data))
    attempt("again", lambda: words(run(FedSGD, data, "again.h5")))
    attempt("continued", lambda: words(continued(data)))
    run(FedSGD, data, "half-lead.h5", rounds=3)
    attempt("lead continues", lambda: zofl.lead(lambda: words(continued(data, loaded("half-lead.h5")))))
    (FOLDER / f"seen-{RANK}.json").write_text(json.dumps(SEEN))


def interrupted() -> None:
    """Rank 0 is interrupted while the others wait for it."""
    data = zofl.Federation.of_clients([samples(20, k) for k in range(4)], test=samples(60, 45))
    run(FedSGD, data, "interrupted.h5", callbacks=[Ends(interrupts=True)])


def absent() -> None:
    """One rank does not come."""
    from zofl_mpi.run.mpi import world

    world.MEETING, world.MEETING_ENDS = 1.0, 3.0
    if sys.argv[2] == "later":  # it has come once
        run(FedSGD, zofl.Federation.of_clients([samples(20, 1)], test=samples(60, 45)), "first.h5")
    if RANK != 1:
        run(FedSGD, zofl.Federation.of_clients([samples(20, 1)], test=samples(60, 45)), "absent.h5")
    time.sleep(60)


if __name__ == "__main__":
    main() if len(sys.argv) == 2 else interrupted() if sys.argv[2] == "interrupted" else absent()
