"""Classes of client devices (`--devices`), from a TOML file or by a built-in name.

[server]
speed = 1e13              # multiply-accumulates per second; default: the server takes no time

[class.phone]             # fields of `engine.fleet.DeviceClass`; default: no cost, no limit
share = 0.9               # or clients = [0, 3], or labels = [7, 8, 9]
speed = 2e10
memory = 2.56e8
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zofl_mpi.engine.fleet import DeviceClass, Fleet
from zofl_mpi.engine.ledger import bytes_in_words
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.engine.world import World, at_server, run_or_fail_all
from zofl_mpi.errors import UserError, check_one_of, demand, nearest, warn
from zofl_mpi.run.command.flags import read_toml
from zofl_mpi.run.loop.screen import aligned

FOLDER = Path(__file__).parent
NAMES = ("phones", "sensors", "silos")
"""Built-in files, listed to spare each rank a look into the folder."""
CHOICES = ("share", "clients", "labels")
POSITIVE = ("speed", "memory", "down", "up")
MAX_CLASSES = 100  # classes
LARGEST_NUMBER = 1e30
"""Maximum value of a class's number: sums and products of these stay finite."""


def read(name: str) -> tuple[tuple[DeviceClass, ...], float]:
    """Device classes and the server's speed, from a file or one of NAMES; UserError: missing or malformed."""
    if not name.endswith(".toml") and name not in NAMES:
        raise UserError(f"--devices {name}: must be one of {', '.join(NAMES)}, or a file .toml{nearest(name, NAMES)}")
    where = f"--devices {name}"
    table = read_toml(FOLDER / f"{name}.toml" if name in NAMES else name, "--devices ")
    _check_keys(table, ("class", "server"), where)
    server, kinds = table.get("server", {}), table.get("class", {})
    if not isinstance(server, dict) or not isinstance(kinds, dict) or not 0 < len(kinds) <= MAX_CLASSES:
        raise UserError(
            f"{where}: must have a table [class.NAME] for each class of devices, at most {MAX_CLASSES} of them"
        )
    _check_keys(server, ("speed",), f"{where}, [server]")
    speed = _number(server, "speed", f"{where}, [server]", math.inf)
    classes = tuple(_class(kind, values, f"{where}, [class.{kind}]") for kind, values in kinds.items())
    total = math.fsum(each.share for each in classes)
    if any(each.share for each in classes) and not math.isclose(total, 1, abs_tol=1e-6):
        raise UserError(f"{where}: the shares of its classes add up to {total:g}; they must add up to 1")
    return classes, speed


def equipped(world: World, setting: Setting[Any], name: str, deadline: float, over_select: float) -> Setting[Any]:
    """The setting with client devices from that file, read at rank 0; "" for none.

    UserError: a limit without devices, or a class that names missing clients or labels.
    """
    if not name:
        demand(deadline == 0, "deadline", deadline, "0 without --devices")
        demand(over_select == 1, "over_select", over_select, "1 without --devices")
        return setting
    classes, speed = world.bcast(at_server(world, lambda: read(name)))
    of = run_or_fail_all(world, lambda: _of(setting, classes))
    fleet = Fleet(classes, of, setting.streams, deadline or math.inf, over_select, speed)
    text = json.dumps([[asdict(each) for each in classes], speed])
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return replace(setting, fleet=fleet, fingerprint=f"{setting.fingerprint}, devices {digest}")


def bind(world: World, method: Method[Any], name: str, speaks: bool) -> None:
    """Pass the method's needs, measured at rank 0, to the clients' devices; if it `speaks`, print who is excluded."""
    fleet = method.setting.fleet
    if fleet is None:
        return
    needs = world.bcast(at_server(world, method.device_needs))
    if not needs:
        base = "zofl_mpi.rounds.base.EstimatesCost"
        remedy = f"let it inherit {base} and state its effort, or give it device_needs and round_work"
        raise UserError(f"--devices: --method {name} does not state its clients' work; {remedy}")
    if not all(math.isfinite(each.macs + each.server_macs) for each in needs):
        raise UserError("--devices: the problem does not state its operations (flops, flops_evaluation); take another")
    run_or_fail_all(world, lambda: fleet.bind(method, needs))
    for row in fleet.class_rows() if world.rank == 0 and speaks else ():
        if row["lacks"]:
            warn(
                f"--devices: the {row['clients']} clients of class {row['class']} take no part: a step needs "
                f"{fleet.least:.4g} bytes, {row['lacks']:.4g} more than they have"
            )


def _of(setting: Setting[Any], classes: tuple[DeviceClass, ...]) -> NDArray[np.int64]:
    """(m,) class of each client: the one that lists it or its commonest label, else drawn by the shares."""
    m, counts = setting.m, setting.counts
    edges = np.cumsum([each.share for each in classes])
    drawn = np.searchsorted(edges, setting.streams(Purpose.DEVICES).random(m) * edges[-1], side="right")
    of = np.minimum(drawn, len(classes) - 1) if edges[-1] else np.full(m, -1)
    for k, each in enumerate(classes):
        if each.labels:
            demand(counts is not None, "devices", each.name, "without labels: these data have none")
            assert counts is not None
            demand(max(each.labels) < counts.shape[1], "devices", each.name, f"of labels below {counts.shape[1]}")
            of[np.isin(counts.argmax(axis=1), each.labels)] = k
    for k, each in enumerate(classes):
        demand(max(each.clients, default=0) < m, "devices", each.name, f"of clients below {m} (--m)")
        of[list(each.clients)] = k
    if (of < 0).any():
        left = np.flatnonzero(of < 0)
        raise UserError(f"--devices: {len(left)} clients have no class, {left[0]} among them; give a class a share")
    return of


def _class(name: str, values: Any, where: str) -> DeviceClass:
    known = {f.name for f in fields(DeviceClass)} - {"name"}
    if not isinstance(values, dict):
        raise UserError(f"{where}: must be a table of numbers")
    _check_keys(values, known, where)
    if len(chosen := [key for key in CHOICES if key in values]) != 1:
        raise UserError(f"{where}: has {' and '.join(chosen) or 'nothing'} of {', '.join(CHOICES)}; it must have one")
    if "speed" not in values:
        raise UserError(f"{where}: has no speed, multiply-accumulates a second")
    lists: dict[str, Any] = {key: _whole(values[key], f"{where}, {key}") for key in CHOICES[1:] if key in values}
    usual, single = DeviceClass("", 1.0), known - set(CHOICES[1:])
    numbers: dict[str, Any] = {key: _number(values, key, where, getattr(usual, key)) for key in single}
    for key in ("available", "share"):
        if not (numbers[key] <= 1 and (numbers[key] > 0 or key == "share")):
            raise UserError(f"{where}: {key} = {numbers[key]:g}; must be above 0 and at most 1")
    return DeviceClass(name=name, **numbers, **lists)


def _number(values: Mapping[str, Any], key: str, where: str, usual: float) -> float:
    value, positive = values.get(key, usual), key in POSITIVE
    fits = type(value) in (int, float) and value >= 0 and (value or not positive)
    if not fits or (value > LARGEST_NUMBER and value != math.inf):
        allowed = f"a number {'above' if positive else 'of at least'} 0, at most {LARGEST_NUMBER:g}"
        raise UserError(f"{where}: {key} = {str(value)[:60]}; must be {allowed}")
    return float(value)


def _whole(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(v) is int and 0 <= v < 2**31 for v in value):
        raise UserError(f"{where}: must be a list of whole numbers, at least 0")
    return tuple(value)


def _check_keys(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key in table:
        check_one_of(sorted(known), key, "key", f"{where}: ")


# --- --dry-run

LOOKED_AT = 1 << 20
"""Maximum number of participations that --dry-run counts; longer runs are sampled at equal distances."""


def table(fleet: Fleet, rounds: int, width: int | None) -> str:
    """Lines of --dry-run: cost of round 0 for a client of each class, hours and joules of the whole run."""
    titles = ("class", "clients", "takes part", "latency", "down", "compute", "up", "total", "joules")
    rows = [titles]
    for row in fleet.class_rows():
        part = f"lacks {bytes_in_words(round(row['lacks']))}" if row["lacks"] else "yes"
        shown = [f"{row[name]:.3g}" if name in row else "-" for name in titles[3:]]
        rows.append((row["class"], str(row["clients"]), part, *shown))
    needed = bytes_in_words(round(fleet.least)) if fleet.least else "memory that is not known"
    taken, spent = fleet.sampled(rounds, LOOKED_AT)
    whole = "" if taken == rounds else f", by {taken} rounds"
    hours = f"virtual hours of {rounds} rounds{whole}"
    lines = [f"a client's step needs {needed}; virtual seconds of a client in round 0, and joules:"]
    lines.append(aligned(rows, width, str.rjust))
    lines += [f"{hours:46} {spent.virtual_seconds / 3600:.4g}", f"{'joules of all clients':46} {spent.joules:.4g}"]
    return "\n".join(lines)
