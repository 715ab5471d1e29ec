"""`Timetable`: who takes part in which round of split training, with which mini-batches and sizes of steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from zofl_mpi import Purpose, Setting
from zofl_mpi.numerics.schedules import Pace
from zofl_mpi.problems import Batch, Split
from zofl_mpi.rounds.base import Sampling


@final
@dataclass
class Timetable:
    """Rounds, local steps and mini-batches, a function of the seed and of these flags of `Training`."""

    setting: Setting[Split]
    batch: int
    h: int
    k: int
    lr_client: float
    beta: float
    order: Literal["interleave", "client_major"]
    merge: int
    pace: Pace
    participants: Sampling = field(init=False, repr=False, compare=False)  # S_r of round r, ascending
    # by `_past`: rounds done; how often, and when last, each client took part; the server's steps
    _known: tuple[int, dict[int, int], dict[int, int], int] = field(
        init=False, repr=False, compare=False, default=(0, {}, {}, 0)
    )

    def __post_init__(self) -> None:
        self.participants = Sampling(self.setting, self.beta)

    def groups(self, r: int) -> list[list[int]]:
        """S_r in groups that are asked one after the other, each in the order in which the server takes its uploads."""
        to = self.participants(r)
        if self.order == "client_major":
            return [[i] for i in to]
        return [self.setting.streams(Purpose.ORDER, r=r).permutation(to).tolist()]

    # --- a client

    def batches(self, i: int, r: int) -> Iterator[Batch]:
        """Positions of each of client i's local steps: passes over the data, each shuffled, its rest last."""
        setting, batch = self.setting, self.batch
        generator, left, size = setting.streams(Purpose.BATCH, r=r, i=i), self.steps(i), len(setting.data[i])
        while left > 0:
            order = generator.permutation(size)[: left * batch]
            starts = range(0, len(order), batch)
            yield from (order[start : start + batch] for start in starts)
            left -= len(starts)

    def samples(self, i: int, q: int) -> int:
        """Samples of local step q of client i."""
        size, batch = len(self.setting.data[i]), self.batch
        of_a_pass = -(-size // batch)
        return min(batch, size - q % of_a_pass * batch)

    def steps(self, i: int) -> int:
        """h of client i."""
        return self.h or -(-len(self.setting.data[i]) // self.batch)

    def uploads(self, q: int) -> bool:
        """Whether the smashed samples of local step q are uploaded."""
        return q % self.k == 0

    def client_size(self, r: int, i: int, q: int) -> float:
        """The size of local step q of client i in round r."""
        if self.pace.still:
            return self.lr_client
        return self.pace.client(self.lr_client, self._past(r)[0].get(i, 0) * self.steps(i) + q)

    # --- rounds before

    def latest(self, r: int) -> Mapping[int, int]:
        """{i: the last round before r in which client i took part}."""
        return self._past(r)[1]

    def uploads_before(self, r: int, i: int) -> int:
        """Uploads of client i before round r; 0 where no step size depends on their number."""
        return 0 if self.pace.still else self._past(r)[0].get(i, 0) * self._uploads(i)

    def server_steps_before(self, r: int) -> int:
        """The steps of a server with one part before round r; 0 where no step size depends on their number."""
        return 0 if self.pace.still else self._past(r)[2]

    def server_steps(self, r: int) -> int:
        """The steps of a server with one part in round r: of the q-th uploads each `merge`, for each q."""
        uploads = np.array([self._uploads(i) for i in self.participants(r)], np.int64)
        still = np.bincount(uploads)[:0:-1].cumsum()  # clients with more than q uploads, from the last q on
        return int((-(-still // self.merge)).sum())

    def _uploads(self, i: int) -> int:
        """Uploads of client i in a round."""
        return -(-self.steps(i) // self.k)

    def _past(self, r: int) -> tuple[dict[int, int], dict[int, int], int]:
        """How often, and when last, each client took part before round r, and the server's steps by then; the seed
        gives them, so no state keeps them.
        """
        done, counts, latest, steps = self._known
        if done != r:
            done, counts, latest, steps = (done, dict(counts), dict(latest), steps) if done < r else (0, {}, {}, 0)
            for earlier in range(done, r):
                steps += self.server_steps(earlier)
                for i in self.participants(earlier):
                    counts[i], latest[i] = counts.get(i, 0) + 1, earlier
            self._known = r, counts, latest, steps
        return counts, latest, steps
