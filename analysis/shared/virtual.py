"""Virtual seconds and joules of a run on other devices than its own, and its accuracy on some classes.

Without deadlines, and with the same clients taking part, no iterate depends on the devices: speeds and bandwidths only
say how long a round takes. So one run stands for all of them.

    known = rebuilt(run, "zofl_mpi.heron_sfl")
    seconds, joules = known.spent(federation("phones", m=10, small=3, up=1e6)).T  # (R,) each, since the start
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from shared.groups import Array
from shared.restore import setting_of
from zofl_mpi.engine.fleet import DeviceClass, Fleet, Needs, RoundWork
from zofl_mpi.run import devices, records

SIDES = {"phones": (("flagship", "middle"), ("simple", "old")), "sensors": (("gateway", "board"), ("microcontroller",))}
"""Of a file of devices: the classes of clients that have room for a backward pass, and of those that have none."""


class Federation(NamedTuple):
    """The device of each client, and the server's multiply-accumulates a second."""

    clients: tuple[DeviceClass, ...]
    server: float


def federation(name: str, m: int, small: int, up: float = 0.0) -> Federation:
    """m clients with the devices of a file; the first `small` have those without room, each side's classes in turn.

    Args:
        up: bits a second up from all of them, and down at least as many; 0: as the file says.
    """
    classes, server = devices.read(name)
    known, (room, none) = {each.name: each for each in classes}, SIDES[name]
    names = [side[i % len(side)] for i in range(m) for side in [none if i < small else room]]
    found = (known[word] for word in names)
    return Federation(tuple(replace(c, up=up, down=max(c.down, up)) if up else c for c in found), server)


@final
@dataclass(frozen=True)
class Rebuilt:
    """A result's method, with the work of its rounds.

    Attributes:
        way: (m,) the way in which each client takes its steps, -1 where it cannot; see `Fleet`.
        works: of each round.
    """

    run: records.Run
    method: Any
    way: Any
    needs: tuple[Needs, ...]
    works: tuple[RoundWork, ...]

    def round_work(self, r: int, clients: Sequence[int] | None = None) -> RoundWork:
        """What round r asks of its participants."""
        return self.works[r]

    def spent(self, there: Federation, needs: Sequence[Needs] = (), way: Any = None) -> Array:
        """(R, 2) virtual seconds and joules so far, on these devices.

        Args:
            needs: of the ways to take a step, and `way` (m,) each client's, where they are not the run's own.
        """
        roomy = [replace(each, memory=math.inf, available=1.0) for each in there.clients]
        fleet = Fleet(roomy, np.arange(len(roomy)), self.method.setting.streams, server_speed=there.server)
        fleet.bind(self, needs or self.needs)
        fleet.way = self.way if way is None else way
        sums = (fleet.columns(done) for done in range(1, len(self.works) + 1))
        return np.array([(each.virtual_seconds, each.joules) for each in sums])

    def accuracy_on(self, labels: Sequence[int]) -> float:
        """The last model's accuracy on the test samples of these classes."""
        setting, final = self.method.setting, self.run.final
        problem, test = setting.problem, setting.test
        chosen = test.subset(np.flatnonzero(np.isin(test.labels[test.rows], labels)))
        if "theta" not in final:
            return float(problem.score(final["x"], chosen)["accuracy"])
        import torch

        theta, buffers, theta_s, buffers_s = (
            torch.as_tensor(np.asarray(final[k])) for k in ("theta", "buffers", "theta_s", "buffers_s")
        )
        with (
            problem.evaluating(),
            problem.client_side.bound_to(theta, buffers),
            problem.server_side.bound_to(theta_s, buffers_s),
        ):
            sums = problem.score(*problem.samples(chosen, np.arange(len(chosen))))
        return float(problem.quality({name: float(value) for name, value in sums.items()})["accuracy"])


def rebuilt(run: records.Run, family: str, measured: dict[str, Sequence[Needs]] | None = None) -> Rebuilt:
    """A result's method, made anew from a configuration of one's own; see `setting_of`.

    Args:
        measured: what a step needs, by configuration, kept for runs that differ in seed, data and devices alone.
    """
    own = [str(run.config[name]) for name in ("method", "problem", "data", "devices")]
    setting, method = setting_of(run, family, own=own)
    key = repr([run.config | dict.fromkeys(("seed", "data", "devices")), setting.problem.input_shape])
    measured = {} if measured is None else measured
    if key not in measured:
        measured[key] = method.device_needs()
    fleet = setting.fleet
    assert fleet is not None, "a result with --devices"
    fleet.bind(method, measured[key])
    works = tuple(method.round_work(r) for r in range(run.length))
    return Rebuilt(run, method, fleet.way, fleet.needs, works)


def in_less_memory(run: records.Run, family: str, memory: str) -> Needs:
    """What a step of a run's method needs with that --client-memory."""
    lean = replace(run, config=run.config | {"client_memory": memory})
    return rebuilt(lean, family).needs[-1]
