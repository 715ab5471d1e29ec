"""Where forward-only clients pay: the share of the gap between a frozen and a first-order client that each closes.

python analysis/c_pays.py [--grid jobs/c_pays.toml] [--results DIR] [--out NAME] [--partial]

Each method has its best step, chosen by the validation part. The gap is that between a frozen random client and SFLV2
(first order through the cut), seed by seed: share = (method - frozen) / (SFLV2 - frozen). Prints for each setting that
table with bytes, multiply-accumulates and memory, how far estimates point along the gradient, what methods that differ
in one thing are apart, all steps that were tried, and what a model's way up costs with shared random numbers, computed
and not run; writes NAME.txt, NAME.csv, NAME_pairs.csv, NAME_steps.csv, NAME_uplink.csv, NAME.pdf and .png (accuracy
against rounds, bytes, work), NAME_memory.pdf and .png (against memory of a client's step, from forward passes only to
first order), NAME_estimates.pdf and .png (cosine and points won against forward passes of a step).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from shared import choosing, command, edges, wording
from shared.choosing import step
from shared.files import Report
from shared.groups import Group, split
from shared.pays import (
    FIRST,
    FROZEN,
    STEPS,
    chosen,
    cosine_rule,
    costs,
    name,
    paired,
    setting,
    sizes,
    spelled,
    validated,
    work,
)
from shared.pays_estimates import angles, differences, differences_table, estimates_table
from shared.pays_figures import budgets, estimates, memory
from shared.reading import read
from shared.split_costs import all_bytes
from shared.study import accuracy, counts, last, spread

AXES = ("setting", "method", *STEPS)
NOTE = (
    "Test accuracy after the last round, mean ± sd over seeds; gain and share of the gap seed by seed, the gap being "
    "SFLV2 less the frozen client. MiB: down and up of all clients in all rounds, labels too. G MAC: "
    "multiply-accumulates of all clients' steps, a backward pass as two forward passes. peak: bytes live at once in a "
    "client's step beyond its model; again: if it computes its blocks again in the backward pass. passes: "
    "multiply-accumulates of a client's step over those of a forward pass of its part; with signs for each sample, or "
    "jvp (derivatives along directions by forward-mode differentiation, without mu), a pass takes products twice. "
    "cosine: of a client's step direction with its gradient in theta_c, mean over evaluations, ± sd over seeds; rule: "
    "sqrt(P/(P+d+1)), a root mean square, of which the mean is 0.80 for one direction and 0.97 for eight. The frozen "
    "client was run as HERON, whose costs it shows; one that is frozen for good needs one pass and sends no model."
)
UPLINK = (
    "Computed, not run: bytes up of a client's model in a round, beside those of its smashed samples. coefficients: "
    "first-order clients send K coefficients of their update on random directions of a shared seed (Ferret, "
    "arXiv:2409.06277), 4 bytes each and 8 for the seed; cosine: of what the server makes of them with the update, "
    "about sqrt(K/(K+d+1)); of --uplink seeds: of each step's estimate with its gradient."
)


def report(flags: Any) -> Report:
    """The tables and the figures."""
    groups = read("c_pays", flags, AXES, ("setting", "method"))
    best = chosen(groups, choosing.step_axes(flags, STEPS.__contains__))
    places = split([g for g, _ in best], setting)
    rows = [row(g, ends, places[setting(g)]) for g, ends in best]
    tried, ways = [tried_row(g, best) for g in groups], [w for found in places.values() for w in uplinks(found)]
    pairs = list(differences(places))
    at_edge = edges.told([f"{name(g)} ({step(g, STEPS)}), {setting(g)}" for g, ends in best if ends])
    parts = [table(rows), gaps(places), estimates_table(rows), differences_table(pairs), again(places)]
    parts += [steps_table(tried), at_edge, uplink_table(ways), wording.paragraph(UPLINK)]
    more = {"_steps": tried, "_uplink": ways, "_pairs": pairs}
    more |= {"_memory": memory(rows), "_estimates": estimates(rows)}
    note = f"{NOTE} {wording.caption([g for g, _ in best], flags=FLAGS)}."
    return Report("\n\n".join(parts), note, rows, budgets(places), more)


main = command.script("c_pays", __doc__, report, grids=["c_pays.toml"])
FLAGS = {"m": "m", "h": "h", "batch": "batch", "channels": "channels", "mu": "mu"}


def of(groups: Sequence[Group], method: str) -> Group | None:
    """A setting's group of a method; None where it has no results."""
    return next((g for g in groups if g.entry("method") == method and g.runs), None)


# --- the comparison


def row(group: Group, ends: Sequence[str], place: Sequence[Group]) -> dict[str, Any]:
    """A row of the CSV.

    Args:
        ends: axes along which the best step is at an edge.
        place: the best groups of the same setting.
    """
    frozen, first = of(place, FROZEN), of(place, FIRST)
    gain, gap = paired(group, frozen, first) if group.runs and frozen and first else (np.empty(0), np.empty(0))
    return {
        "setting": setting(group),
        "method": group.entry("method"),
        "step": step(group, STEPS),
        "at_edge": " ".join(ends),
        **accuracy(group),
        **spread("gain", gain),
        "gain_by_seed": " ".join(f"{value:.4f}" for value in gain),
        **spread("share", 100 * gain / gap, "_percent"),
        "bytes": last(all_bytes)(group, None),
        "client_macs": last(work)(group, None),
        "client_peak_bytes": costs(group)["peak"],
        "client_peak_again_bytes": costs(group)["peak_again"],
        **angles(group),
        **counts(group),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting and method."""
    lines = []
    for r in rows:
        sizes_ = (r["bytes"] / 2**20, r["client_macs"] / 1e9, r["client_peak_bytes"] / 2**20)
        where = (r["setting"], spelled(r["method"]), r["step"] + edges.MARK * bool(r["at_edge"]))
        gained = (wording.mean_of(r, "gain", ""), wording.mean_of(r, "share"))
        told = wording.mean_of(r, "accuracy", note=wording.seeds_of(r))
        lines.append([*where, told, *gained, *wording.digits(*sizes_)])
    header = ("setting", "method", "step", "accuracy (%)", "gain", "share (%)", "MiB", "G MAC", "peak, MiB")
    return wording.text_table(header, lines, left=3)


def gaps(places: Mapping[str, Sequence[Group]]) -> str:
    """What first-order clients are ahead of the frozen one, seed by seed."""
    lines = []
    for title, found in places.items():
        frozen, first, local = (of(found, m) for m in (FROZEN, FIRST, "cse_fsl"))
        if frozen and first and local:
            through, own = paired(first, frozen, first)[0], paired(local, frozen, first)[0]
            lines.append([title, *(", ".join(f"{v:.2f}" for v in values) for values in (through, own))])
    return wording.text_table(("ahead of the frozen client, points, seed by seed", "SFLV2", "CSE-FSL"), lines)


def again(places: Mapping[str, Sequence[Group]]) -> str:
    """Memory and work of first-order clients that compute their blocks again."""
    lines = []
    for title, found in places.items():
        for group in found:
            kept = costs(group)
            if not math.isnan(kept["peak_again"]):
                peaks = (kept["peak"] / 2**20, kept["peak_again"] / 2**20)
                work = (kept["macs_counted"] / 1e6, kept["macs_again"] / 1e6)
                lines.append([title, name(group), *wording.digits(*peaks, *work)])
    header = ("a first-order client's step", "method", "peak, MiB", "again", "M MAC as computed", "again")
    return wording.text_table(header, lines, left=2)


# --- steps that were tried


def tried_row(group: Group, best: Sequence[tuple[Group, Sequence[str]]]) -> dict[str, Any]:
    """A row of NAME_steps.csv."""
    first = [validated(run) for run in group.runs[:1]]
    return {
        "setting": setting(group),
        "method": group.entry("method"),
        "step": step(group, STEPS),
        "validation_percent": first[0] if first else math.nan,
        "best": any(g is group for g, _ in best),
        "seeds": len(group.runs),
    }


def steps_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting and method: each step with its accuracy on the validation part, seed 1, the best with *."""
    lines = []
    for same in split(rows, lambda r: f"{r['setting']}\n{r['method']}").values():
        words = [f"{r['step']}: {wording.plain(r['validation_percent'])}{' *' * r['best']}" for r in same]
        lines.append([same[0]["setting"], spelled(same[0]["method"]), "; ".join(words)])
    return wording.text_table(("setting", "method", "accuracy on the validation part, seed 1, by step"), lines, left=3)


# --- the way up


def uplinks(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """The rows of NAME_uplink.csv of a setting: how a model comes up, computed."""
    there = of(groups, FIRST)
    if there is None:
        return
    config = there.config
    client, head, smashed = sizes(config)
    h, each = int(config["h"]), 4
    samples = h * int(config["batch"]) * smashed * each

    def line(method: str, way: str, numbers: int, size: int, angle: float) -> dict[str, Any]:
        where = {"setting": setting(there), "method": method, "uplink": way, "numbers": numbers}
        return {**where, "bytes": size, "smashed_bytes": samples, "cosine": angle}

    both = client + head
    yield line("cse_fsl", "dense", both, each * both, 1.0)
    yield line("sflv2", "dense", client, each * client, 1.0)
    yield line("heron", "seeds", h, 8 * h, cosine_rule(1, both))
    yield line("heron-head", "seeds", h + head, 8 * h + each * head, cosine_rule(1, client))
    yield line("ho_sfl", "seeds", h, 8 * h, cosine_rule(1, client))
    for method, d in (("cse_fsl", both), ("sflv2", client)):
        half = math.ceil((d + 1) / 3)  # K of a cosine of 1/2
        for k in (2 * h - 2, half):
            yield line(method, "coefficients", k, each * k + 8, cosine_rule(k, d))


def uplink_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row per setting, method and way up."""
    lines = []
    for r in rows:
        numbers = wording.digits(r["bytes"] / 2**10, r["smashed_bytes"] / 2**10, r["cosine"])
        lines.append([r["setting"], spelled(r["method"]), r["uplink"], str(r["numbers"]), *numbers])
    header = ("setting", "method", "uplink", "numbers", "KiB up", "smashed, KiB", "cosine")
    return wording.text_table(header, lines, left=3)


if __name__ == "__main__":
    main()
