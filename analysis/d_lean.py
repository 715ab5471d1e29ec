"""Lean clients: who is ahead where some devices have no room for a backward pass, by accuracy, virtual minutes, joules.

python analysis/d_lean.py [--grid jobs/d_lean.toml jobs/d_lean_fedavg.toml] [--results DIR] [--out NAME] [--partial]

A way is a method and what becomes of clients without room: left out, or taking part, since the method needs no room or
takes the same gradient in parts. Without deadlines no iterate depends on speeds and bandwidths, so virtual time and
joules are computed for phones and sensors and four uplinks from one run each (`shared/virtual.py`). Prints tables of
accuracy, on all test samples and on the classes that only small devices hold, of costs and of who is ahead; writes
NAME.txt, NAME.csv (a row per place and way), NAME_virtual.csv (the same on each federation and uplink), NAME_map.csv,
NAME_memory.csv, and for each data set NAME_DATA.pdf and .png (accuracy, virtual minutes), NAME_map_DATA.pdf and
.png (who is ahead).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import LogLocator
from shared import figures, totals, wording
from shared.files import Report
from shared.groups import Array, Group, mean_sd, split
from shared.lean import APART, CASES, ROOM, UPLINKS, Line, Place, Way, family, lines_of
from shared.study import counts, spread, study
from shared.totals import Quantity
from shared.virtual import SIDES, in_less_memory

from zofl_mpi.report import palette

GRIDS = ["d_lean.toml", "d_lean_fedavg.toml"]
AXES = ("data", "room", "method")
TARGETS = {"cifar10": (25, 30)}
"""Test accuracies in % to which virtual time is counted, where they are not those of EASY."""
EASY = (70, 80)
PARTS = "accumulate:2"
REMEDIES = ("none", "checkpoint", PARTS, "accumulate:4")
WAYS = (
    Way("frozen client", "frozen", "none"),
    Way("DeComFL, 8 directions", "decomfl-8"),
    Way("HERON, 1, estimated head", "heron"),
    Way("HERON, 8, estimated head", "heron-8"),
    Way("HERON, 8 directions", "heron-head-8"),
    Way("HO-SFL, 8 directions", "ho_sfl-8"),
    Way("last stage exact", "exact"),
    Way("CSE-FSL, left out", "cse_fsl", "without"),
    Way("SFLV2, left out", "sflv2", "without"),
    Way("FedAvg, left out", "fedavg", "without"),
    Way("CSE-FSL, uploads only", "upload", "without"),
    Way("mixed, estimates", "mixed", "without"),
    Way("mixed, last stage", "mixed-exact", "without"),
    Way("CSE-FSL, all", "cse_fsl", "all", PARTS),
    Way("SFLV2, all", "sflv2", "all", PARTS),
    Way("FedAvg, all", "fedavg", "all", PARTS),
)
"""In the order of the tables; small devices take part in all but those that leave them out."""
POOLS: Mapping[str, tuple[str, ...]] = {
    "forward passes alone": ("last stage exact", "mixed, last stage", *(way.name for way in WAYS if way.memory)),
    "and the last stage's backward pass": tuple(way.name for way in WAYS if way.memory),
    "and a backward pass in two parts": (),
}
"""What fits into a small device, and the ways that do not."""
TAKING_PART = ("mixed", "mixed-exact", "upload")
"""Of first order where there is room, and otherwise where there is none."""
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "small devices left out": (palette.SKY, ("CSE-FSL, left out", "SFLV2, left out", "FedAvg, left out")),
    "uploads only": (palette.GREY, ("CSE-FSL, uploads only",)),
    "zeroth order": (palette.ORANGE, ("mixed, estimates", "HERON, 8 directions", "HO-SFL, 8 directions")),
    "last stage backpropagates": (palette.YELLOW, ("mixed, last stage", "last stage exact")),
    "backward passes in two parts": (palette.GREEN, ("CSE-FSL, all", "SFLV2, all", "FedAvg, all")),
}
"""What small devices do in a cell of the map: its colour, and the ways."""
OTHER = "another way"
SIGNIFICANT = 2.27  # deviations of a lead over which its 95 % t interval is above 0: two means of three seeds
FLAGS = {"h": "h", "beta": "participating fraction", "mu": "mu"}
NOTE = (
    "Test accuracy after the last round, mean ± sd over seeds; apart: small devices alone hold the classes 7 to 9, "
    "else all clients hold the same mix. left out: small devices take no part; all: they do, with each mini-batch in "
    "two parts; mixed: those with room backpropagate, the others estimate, or backpropagate through the last stage; "
    "uploads only: the others send smashed samples and do not train. HERON's head is exact where it is not said to be "
    "estimated. Minutes are virtual, to the first evaluation at these accuracies, uplinks of 0.1 and 10 Mbit/s, - if a "
    "seed does not get there; joules and KiB up of all clients in all rounds. The map: the highest accuracy at half "
    "the virtual time of CSE-FSL's rounds with everybody. Mini-batches of 32 samples, of 16 on CIFAR-10."
)


def report(groups: Sequence[Group]) -> Report:
    """The tables, the figures and the maps."""
    lines = list(lines_of(groups, WAYS))
    cells, needs = list(cells_of(lines)), list(steps(lines))
    by_data = split(lines, lambda line: line.place.data)
    tables = [table for own in by_data.values() for table in (accuracies(own), costs(own))]
    rows, times = [row(line) for line in lines], [r for line in lines for r in virtual(line)]
    more: dict[str, Any] = {
        "_virtual": times,
        "_map": [c.row for c in cells],
        "_memory": needs,
        **{f"_{data}": draw(rows, times, data) for data in by_data},
        **{f"_map_{data}": draw_map(cells, data) for data in by_data},
    }
    text = "\n\n".join([*tables, memory(needs), winners(cells)])
    return Report(text, note(lines), rows, more=more)


main = study("d_lean", __doc__, GRIDS, AXES, report, needed=("method", "room"))

# --- rows


def row(line: Line) -> dict[str, Any]:
    """A row of the CSV."""
    directions = [float(run.attrs.get("directions_per_parameter", math.nan)) for run in line.group.runs]
    sent = [run.clients["bytes_up"].sum() for run in line.group.runs]
    return {
        **line.place._asdict(),
        "way": line.way.name,
        "takes_part": "all" if line.way.room != "without" or line.way.method in TAKING_PART else "with room",
        **spread("accuracy", 100 * line.group.last("test_accuracy"), "_percent"),
        **spread("lacked", line.lacked, "_percent"),
        "directions_per_parameter": float(np.mean(directions)),
        "bytes_up": float(np.mean(sent)),
        "bytes_up_a_round": float(np.mean(sent)) / line.group.rounds,
        "step_bytes": line.step_bytes,
        **counts(line.group),
    }


def virtual(line: Line) -> Iterator[dict[str, Any]]:
    """The rows of NAME_virtual.csv: a way's times and joules on each federation and uplink."""
    for fleet in SIDES:
        for up in UPLINKS:
            told = {**line.place._asdict(), "way": line.way.name, "federation": fleet, "uplink": up}
            told |= spread("minutes", line.minutes(fleet, up)) | spread("joules", line.joules(fleet, up))
            for word, target in zip(("low", "high"), targets(line), strict=True):
                found = line.minutes_to(target, fleet, up)
                told |= {f"{word}_target": target, f"reached_{word}": int(np.isfinite(found).sum())}
                told |= spread(f"minutes_to_{word}", found if np.isfinite(found).all() else np.array([math.nan]))
            yield told


def targets(line: Line) -> tuple[int, int]:
    """Test accuracies in % to which a line's virtual time is counted."""
    return TARGETS.get(line.place.data, EASY)


# --- tables


def accuracies(own: Sequence[Line]) -> str:
    """Two tables of a data set: the last test accuracy by way and place, on all samples and on the lacked classes."""
    places = list(dict.fromkeys(line.place for line in own))
    columns = [f"{10 * p.small} % {'apart' * (p.classes == APART)}".strip() for p in places]
    on_all = {(line.way.name, line.place): told(100 * line.group.last("test_accuracy"), line.group) for line in own}
    on_three = {(line.way.name, line.place): told(line.lacked, line.group) for line in own}
    text = []
    for title, cells in (("test accuracy (%)", on_all), ("the same, classes 7 to 9", on_three)):
        names = [way.name for way in WAYS if any(key[0] == way.name for key in cells)]
        rows = [[name, *(cells.get((name, place), "") for place in places)] for name in names]
        text.append(wording.text_table([f"{wording.spelled(own[0].place.data)}, {title}", *columns], rows))
    return "\n\n".join(text)


def told(values: Array, group: Group) -> str:
    """A mean with its deviation."""
    return wording.percent(*mean_sd(values), group.note)


def costs(lines: Sequence[Line]) -> str:
    """Virtual minutes to fixed accuracies, and joules and bytes of all rounds, where six small devices lie apart."""
    own = [line for line in lines if line.place.small == 6 and line.place.classes == APART]
    rows = []
    for line in own:
        cells = []
        for fleet in SIDES:
            times = [float(line.minutes_to(t, fleet, up).mean()) for up in (1e5, 1e7) for t in targets(line)]
            cells += ["-" if not math.isfinite(t) else f"{t:.2f}" for t in times]
            cells.append(wording.digits(mean_sd(line.joules(fleet, 1e6))[0])[0])
        kept = row(line)
        rows.append(
            [line.way.name, *wording.digits(kept["bytes_up"] / 2**10, kept["directions_per_parameter"]), *cells]
        )
    header = [f"{wording.spelled(lines[0].place.data)}, 60 % small, apart", "KiB up", "directions"]
    low, high = targets(lines[0])
    for fleet in SIDES:
        header += [f"{fleet}, 0.1, {low} %", f"{high} %", f"10, {low} %", f"10, {high} %", "joules"]
    return wording.text_table(header, rows)


def steps(lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """The rows of NAME_memory.csv: what a client's step needs, of first order also in less memory."""
    for data, own in split(lines, lambda line: line.place.data).items():
        there = {line.way.method: line for line in own if line.place.small == 0}
        for method, line in there.items():
            kinds = REMEDIES if line.way.memory else ("none",)
            run = line.group.runs[0]
            for kind in kinds:
                needs = line.needs[-1] if kind == "none" else in_less_memory(run, family(run), kind)
                size = {"step_bytes": needs.bytes, "fits": needs.bytes <= ROOM}
                macs = needs.macs * int(run.config["batch"])
                yield {"data": data, "method": method, "client_memory": kind, **size, "step_macs": macs}


def memory(rows: Sequence[Mapping[str, Any]]) -> str:
    """Bytes and multiply-accumulates of a client's step, and whether it fits into a small device."""
    names = {way.method: way.name.rpartition(", ")[0] if way.memory else way.name for way in WAYS}
    cells = []
    for r in rows:
        size = (f"{r['step_bytes'] / 2**10:.0f}", "yes" if r["fits"] else "no", *wording.digits(r["step_macs"] / 1e6))
        cells.append([wording.spelled(r["data"]), names[r["method"]], r["client_memory"], *size])
    header = ["a client's step", "method", "--client-memory", "KiB", f"fits into {ROOM / 2**10:.0f}", "M MAC"]
    return wording.text_table(header, cells, left=3)


# --- who is ahead


class Cell(NamedTuple):
    """A cell of the map: who has the highest accuracy when the time is over.

    Attributes:
        minutes: half of what CSE-FSL with everybody takes for its rounds.
        lead: over the next way, in points; deviations: the same over the root mean square of both deviations.
    """

    place: Place
    fleet: str
    pool: str
    uplink: float
    minutes: float
    best: str
    second: str
    accuracy: float
    lead: float
    deviations: float

    @property
    def row(self) -> dict[str, Any]:
        """A row of NAME_map.csv."""
        return {**self.place._asdict(), **{k: v for k, v in self._asdict().items() if k != "place"}}


def cells_of(lines: Sequence[Line]) -> Iterator[Cell]:
    """The cells of the map, where CSE-FSL with everybody has results."""
    for place in dict.fromkeys(line.place for line in lines):
        own = [line for line in lines if line.place == place]
        clock = [line for line in own if line.way.name == "CSE-FSL, all"]
        for fleet in SIDES if clock else ():
            for pool, without in POOLS.items():
                allowed = [line for line in own if place.small == 0 or line.way.name not in without]
                for up in UPLINKS if len(allowed) > 1 else ():
                    minutes = float(clock[0].minutes(fleet, up).mean()) / 2
                    ranked = [(mean_sd(line.accuracy_in(minutes, fleet, up)), line.way.name) for line in allowed]
                    ((one, sd), best), ((two, other), second) = sorted(ranked, reverse=True)[:2]
                    scale, lead = math.sqrt((sd**2 + other**2) / 2), one - two
                    deviations = lead / scale if scale else math.inf
                    yield Cell(place, fleet, pool, up, minutes, best, second, one, lead, deviations)


def winners(cells: Sequence[Cell]) -> str:
    """How many cells of the map each way has, by what fits."""
    rows = []
    for data, pool in dict.fromkeys((cell.place.data, cell.pool) for cell in cells):
        own = [cell for cell in cells if (cell.place.data, cell.pool) == (data, pool) and cell.place.small]
        for name in (way.name for way in WAYS):
            counted = [cell for cell in own if cell.best == name]
            clear = sum(cell.deviations >= 2 for cell in counted)
            if counted:
                rows.append([wording.spelled(data), pool, name, f"{len(counted)} of {len(own)}", str(clear)])
    return wording.text_table(
        ["the map", "what fits into a small device", "ahead", "cells", "by two deviations"], rows, left=3
    )


# --- figures


@figures.styled
def draw_map(cells: Sequence[Cell], data: str) -> Any:
    """Draws who is ahead: uplink x share of small devices, a panel for what fits (columns), case and federation."""
    own = [cell for cell in cells if cell.place.data == data and cell.place.small]
    rows = [(case, fleet) for case in CASES for fleet in SIDES]
    shares = sorted({cell.place.small for cell in own})
    figure, panels = figures.canvas(len(rows), len(POOLS), figures.PAGE, 1.35, sharex=True, sharey=True)
    for line, (case, fleet) in zip(panels, rows, strict=True):
        for panel, pool in zip(line, POOLS, strict=True):
            for cell in own:
                if (cell.place.classes, cell.fleet, cell.pool) == (case, fleet, pool):
                    _square(panel, UPLINKS.index(cell.uplink), shares.index(cell.place.small), cell)
            panel.set(xlim=(0, len(UPLINKS)), ylim=(0, max(len(shares), 1)))
            panel.set_xticks(np.arange(len(UPLINKS)) + 0.5, [f"{up / 1e6:g}" for up in UPLINKS])
            panel.set_yticks(np.arange(len(shares)) + 0.5, [f"{10 * small}" for small in shares])
            panel.grid(visible=False)
        line[0].set_ylabel(f"{fleet}, {case}\nsmall devices (%)")
    for panel, pool in zip(panels[0], POOLS, strict=True):
        panel.set_title(f"fits: {pool.removeprefix('and ')}", fontsize=7)
    for panel in panels[-1]:
        panel.set_xlabel("uplink (Mbit/s)")
    shown = {family_of(cell.best) for cell in own}
    handles = [Patch(facecolor=colour, label=name) for name, (colour, _) in FAMILIES.items() if name in shown]
    title = f"{wording.spelled(data)}: the most accurate at half of CSE-FSL's time, by what fits into a small device\n"
    title += "number: its lead over the next one, in standard deviations; bold: 95 % t interval above 0"
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, title=title, title_fontsize=8)
    return figure


def family_of(way: str) -> str:
    """What small devices do by it."""
    return next((name for name, (_, ways) in FAMILIES.items() if way in ways), OTHER)


def _square(panel: Any, x: int, y: int, cell: Cell) -> None:
    """A cell: its colour is the family's, its words are the method and its lead."""
    colour, _ = FAMILIES.get(family_of(cell.best), ("white", ()))
    panel.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, edgecolor="white"))
    lead = f"{cell.deviations:.1f}" if cell.deviations < 99 else ">99"
    method = cell.best.partition(",")[0].replace("last stage exact", "exact")
    weight = "bold" if cell.deviations > SIGNIFICANT else "normal"
    panel.text(x + 0.5, y + 0.5, f"{method}\n{lead}", ha="center", va="center", size=6, weight=weight, linespacing=1)


def draw(rows: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]], data: str) -> Any:
    """Draws accuracy and the virtual minutes to the low target, six of ten devices small; rows of the two CSVs."""
    key = ("data", "classes", "small", "way")
    found = {(*(r[k] for k in key), r["uplink"]): r for r in times if r["federation"] == "phones"}
    own = [r for r in rows if (r["data"], r["small"]) == (data, 6)]
    target = next((f"{r['low_target']:g}" for r in times if r["data"] == data), "-")

    def minutes(up: float, what: str) -> Callable[[Mapping[str, Any]], float]:
        return lambda r: float(found[*(r[k] for k in key), up][f"minutes_to_low_{what}"])

    quantities = [Quantity("test accuracy (%)", itemgetter("accuracy_mean_percent"), itemgetter("accuracy_sd_percent"))]
    for up in (1e5, 1e6, 1e8):
        label = f"minutes to {target} %,\n{up / 1e6:g} Mbit/s up"
        quantities.append(Quantity(label, minutes(up, "mean"), minutes(up, "sd"), log=True))
    blocks = {f"{wording.spelled(data)}, {case}": [r for r in own if r["classes"] == case] for case in CASES}
    title = "phones, 60 % small; dot: mean over seeds; bar: 95 % t interval; no dot: not all seeds get there"
    figure = totals.draw({case: of for case, of in blocks.items() if of}, itemgetter("way"), quantities, title)
    clocks = [panel for panel in figure.axes if panel.get_xscale() == "log"]
    ends = np.array([panel.get_xlim() for panel in clocks])
    for panel in clocks:
        panel.set_xlim(ends[:, 0].min(), ends[:, 1].max())
        if ends.max() > 500 * ends.min():  # labels of a third of a decade would touch
            panel.xaxis.set_major_locator(LogLocator(numticks=50))
    return figure


def note(lines: Sequence[Line]) -> str:
    """What the tables tell."""
    return f"{NOTE} {wording.caption([line.group for line in lines], flags=FLAGS)}."


if __name__ == "__main__":
    main()
