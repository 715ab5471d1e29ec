"""[C] figure 7: the spectrum of the Hessian of the clients' local loss, its trace, norm and effective rank.

python analysis/c_fig7.py RESULT... [--samples 256] [--steps 80] [--probes 10] [--trace-probes 100] [--out NAME]

RESULT is a finished result of `python -m zofl_mpi.heron_sfl` whose method trains theta_l = (theta_c, theta_a) on the
local loss: heron, cse_fsl. Its data and network are made again from its configuration, the model that it began with
from its seed; each such beginning is shown once. The Hessian is that of the mean local loss on --samples samples, drawn
once without replacement from all that the clients hold, with BatchNorm's running statistics (at the beginning: mean 0,
variance 1). Density by stochastic Lanczos quadrature, trace by Hutchinson, |H|_2 by the Lanczos method: see
`analysis/shared/spectrum.py`.

Prints the table and what was done, writes NAME.txt, NAME.csv, NAME_density.csv, NAME.pdf and NAME.png. Costs
models x (probes x steps + trace-probes) Hessian products; one took 0.4 to 0.6 s with 64 samples of CIFAR-10 and a
client of width 8 in float32 on a shared core, four times as long in float64, where trace and norm differed by 1e-7.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from shared import command, figures, wording
from shared.files import Report
from shared.groups import Array
from shared.restore import OWN, setting_of, unfinished

from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose, Streams
from zofl_mpi.errors import UserError, demand
from zofl_mpi.numerics.zo import EstimateWithError
from zofl_mpi.run import records

FAMILY = "zofl_mpi.heron_sfl"
NAMES = {"heron": "HERON", "cse_fsl": "CSE-FSL"}
"""Methods that train on the local loss, as a reader knows them; one of a user's own is taken at its word."""
LOOSE = 0.01
"""A residual above this share of the norm is told."""
POINTS = 1001
ACROSS = 3
"""Panels side by side."""


class Model(NamedTuple):
    """A local part and the run that it is of.

    Attributes:
        name: as the figure tells it.
        run: the result that it is of.
        rounds: after how many; 0 before training.
        setting: in the precision and on the device of the products.
        theta, buffers: (n,) and (b,), on the device.
    """

    name: str
    run: records.Run
    rounds: int
    setting: Setting
    theta: Any
    buffers: Any


class Found(NamedTuple):
    """The spectrum of a model's Hessian.

    Attributes:
        loss: the local loss on the samples.
        spectrum: the quadratures.
        trace: Hutchinson's.
    """

    model: Model
    loss: float
    spectrum: Any
    trace: EstimateWithError

    @property
    def rank(self) -> EstimateWithError:
        """tr(H)/|H|_2."""
        from shared.spectrum import effective_rank

        return effective_rank(self.trace, self.spectrum.norm)


def report(given: Any) -> Report:
    """The table, the density and the figure."""
    for name, least in (("samples", 1), ("steps", 1), ("probes", 1), ("trace_probes", 2)):
        demand(getattr(given, name) >= least, name, getattr(given, name), f"a whole number, at least {least}")
    demand(0 < given.width < math.inf, "width", given.width, "a share of the norm, above 0")
    Streams(given.seed)
    models = [model for path in given.result for model in models_of(path, given)]
    found = [look_at(model, given) for model in without_repetitions(models)]
    command.tell("c_fig7", doubts(found))
    density = [point for f in found for point in points(f, given)]
    table = wording.text_table(HEADER, [words_of(f) for f in found])
    return Report(table, about(given), [row(f, given) for f in found], draw(found, given), {"_density": density})


FLAGS = {
    "result": {"type": Path, "nargs": "+", "help": "finished results of zofl_mpi.heron_sfl"},
    "--samples": command.flag(256, "of the clients' data"),
    "--steps": command.flag(80, "of each Lanczos run"),
    "--probes": command.flag(10, "Lanczos runs that are averaged"),
    "--trace-probes": command.flag(100, "of Hutchinson's trace"),
    "--width": command.flag(0.01, "of an eigenvalue's normal, in |H|_2"),
    "--seed": command.flag(1, "of samples, starts and probes"),
    "--dtype": command.flag("float32", "of a product", choices=("float32", "float64")),
    "--device": command.flag("auto", "where products are computed", choices=("auto", "cpu", "cuda")),
    "--data-dir": {"help": "the folder with the data set's files"},
    "--own": OWN,
}
main = command.script("c_fig7", __doc__, report, FLAGS)

# --- the models


def models_of(path: Path, given: argparse.Namespace) -> Iterator[Model]:
    """Yields the model that a result began with, and the one that it ends with.

    Raises:
        UserError: it is not finished, trains no local loss, has diverged, or its data or network are no longer those.
    """
    import torch

    run = records.load(path)
    method = str(run.config.get("method", ""))
    if "theta_s" not in run.final and run.attrs.get("status") == "done":
        raise UserError(f"{path} is no result of {FAMILY}: it holds no split network")
    if method not in NAMES and ":" not in method:
        known = " and ".join(NAMES)
        raise UserError(f"{path} is of --method {method}, which does not train on the local loss; {known} do")
    if not run.final:
        raise UserError(unfinished(run))
    precise = {"dtype": given.dtype, "data_dir": given.data_dir, "bf16": False}
    setting, of = setting_of(run, FAMILY, given.device, given.own, **precise)
    start = of.start()
    last = [torch.from_numpy(np.array(run.final[key])).to(start.theta) for key in ("theta", "buffers")]
    if not all(bool(torch.isfinite(value).all()) for value in last):
        raise UserError(f"{path}: its last model has diverged, it is not finite")
    first = f"before training, seed {run.config['seed']}"
    yield Model(first, run, 0, setting, start.theta, start.buffers)
    after = f"{NAMES.get(method, method)}, {run.length} round{'' if run.length == 1 else 's'}"
    yield Model(after, run, run.length, setting, *last)


def without_repetitions(models: Sequence[Model]) -> list[Model]:
    """The models, each beginning once, before the first result that has it."""
    kept: list[Model] = []
    for model in models:
        if model.rounds or not any(same_beginning(model, other) for other in kept):
            kept.append(model)
    return kept


def same_beginning(one: Model, other: Model) -> bool:
    """Whether both are the same model before training (the fingerprint tells), with the same samples at the clients."""
    if one.rounds or other.rounds or one.setting.fingerprint != other.setting.fingerprint:
        return False
    held, others = (together(model.setting.data).rows for model in (one, other))
    return np.array_equal(np.asarray(held), np.asarray(others))


def look_at(model: Model, given: argparse.Namespace) -> Found:
    """Computes the spectrum of a model's local loss; says on stderr how long that will take."""
    from shared.spectrum import local_hessian, spectrum, trace

    problem, n, streams = model.setting.problem, len(model.theta), Streams(given.seed)
    x, labels = samples(model.setting, given.samples, streams)
    with problem.evaluating(), problem.client_side.bound_to(model.theta, model.buffers):
        loss = float(problem.local_loss(problem.smash(x), labels))
    with local_hessian(problem, model.theta, model.buffers, x, labels) as apply:
        began = time.monotonic()
        told = trace(apply, n, streams, given.trace_probes, problem.device)
        each = (time.monotonic() - began) / given.trace_probes
        left = each * given.steps * given.probes
        command.tell("c_fig7", [f"{model.name}: {each:.2g} s a product, about {left:.0f} s for the density"])
        return Found(model, loss, spectrum(apply, n, streams, given.steps, given.probes, problem.device), told)


def samples(setting: Setting, count: int, streams: Streams) -> tuple[Any, Any]:
    """Inputs and labels of `count` samples, drawn without replacement from all that the clients hold.

    Raises:
        UserError: they hold fewer.
    """
    from shared.spectrum import SAMPLES

    whole = together(setting.data)
    demand(count <= len(whole), "samples", count, f"at most {len(whole)}, what the clients hold")
    drawn = streams(Purpose.SPECTRUM, r=SAMPLES).choice(len(whole), count, replace=False)
    return setting.problem.samples(whole, np.sort(drawn))  # type: ignore[no-any-return]


def together(data: Sequence[Dataset]) -> Dataset:
    """All clients' samples, client by client; they share one table of samples."""
    rows = [np.arange(len(own.labels)) if own.rows is None else own.rows for own in data]
    return replace(data[0], rows=np.concatenate(rows))


# --- words


def positive(found: Found) -> EstimateWithError:
    """tr(H_+)/|H|_2 of the nearest matrix without negative eigenvalues; from the quadratures."""
    part, norm = found.spectrum.trace_of(lambda t: np.maximum(t, 0)), found.spectrum.norm.value
    return EstimateWithError(part.value / norm, part.error / norm) if norm else EstimateWithError(math.nan, math.nan)


def row(found: Found, given: argparse.Namespace) -> dict[str, Any]:
    """A row of the CSV; errors are standard errors over probes."""
    model, norm, rank, upper = found.model, found.spectrum.norm, found.rank, positive(found)
    smallest, largest = found.spectrum.ends
    return {
        "model": model.name,
        "method": model.run.config["method"],
        "result": model.run.path.name,
        "rounds": model.rounds,
        "seed_run": model.run.config["seed"],
        "parameters": len(model.theta),
        "samples": given.samples,
        "local_loss": found.loss,
        "trace": found.trace.value,
        "trace_error": found.trace.error,
        "norm": norm.value,
        "norm_residual": norm.residual,
        "eigenvalue_smallest": float(smallest),
        "eigenvalue_largest": float(largest),
        "effective_rank": rank.value,
        "effective_rank_error": rank.error,
        "effective_rank_positive": upper.value,
        "effective_rank_positive_error": upper.error,
        "steps": given.steps,
        "probes": given.probes,
        "trace_probes": given.trace_probes,
        "dtype": given.dtype,
        "seed": given.seed,
    }


HEADER = ("model", "n", "loss", "tr(H)", "|H|_2", "residual", "smallest", "largest", "tr(H)/|H|_2", "tr(H+)/|H|_2")


def words_of(found: Found) -> list[str]:
    """The cells of a row on screen."""
    norm, ends = found.spectrum.norm, found.spectrum.ends
    return [
        found.model.name,
        str(len(found.model.theta)),
        *wording.digits(found.loss),
        uncertain(found.trace),
        *wording.digits(norm.value),
        f"{norm.residual:.1e}",
        *wording.digits(*ends),
        uncertain(found.rank),
        uncertain(positive(found)),
    ]


def uncertain(estimate: EstimateWithError) -> str:
    """A number as 12.3 ± 0.4: the error to two digits, the value to the same place; - for none."""
    value, error = estimate
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return wording.digits(value)[0]
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{places}f} ± {error:.{places}f}"


def doubts(found: Sequence[Found]) -> list[str]:
    """A sentence for each norm that the Lanczos runs have not settled."""
    return [
        f"{f.model.name}: |H|_2 is known to {f.spectrum.norm.residual:.2g} of {f.spectrum.norm.value:.3g} only; "
        "take more --steps"
        for f in found
        if f.spectrum.norm.residual > LOOSE * f.spectrum.norm.value
    ]


def about(given: argparse.Namespace) -> str:
    """The note: what was computed."""
    return (
        f"Hessian of the mean local loss (auxiliary head) with respect to theta_c and theta_a on {given.samples} "
        f"samples of the clients, drawn by seed {given.seed}; BatchNorm with its running statistics; products in "
        f"{given.dtype}. Density: {given.probes} Lanczos runs of {given.steps} steps with full orthogonalisation in "
        f"float64, each eigenvalue a normal of standard deviation {given.width:g} |H|_2. Trace: {given.trace_probes} "
        "Hutchinson probes. ±: one standard error over probes, which says nothing of other samples or seeds of the "
        "run. |H|_2, smallest and largest: extreme Ritz values, known to the residual. H+: H without its negative "
        "eigenvalues, from the density."
    )


# --- figure


def grid_of(found: Found, width: float) -> tuple[Array, Array]:
    """(points,) eigenvalues and (probes, points) the density there."""
    (low, high), sigma = found.spectrum.ends, width * found.spectrum.norm.value
    at = np.linspace(low - 6 * sigma, high + 6 * sigma, POINTS)
    return at, found.spectrum.density(at, sigma)


def points(found: Found, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the points of the drawn density: mean, least and largest over the Lanczos runs."""
    at, values = grid_of(found, given.width)
    columns = zip(at, values.mean(axis=0), values.min(axis=0), values.max(axis=0), strict=True)
    for point, average, least, largest in columns:
        yield {
            "model": found.model.name,
            "result": found.model.run.path.name,
            "eigenvalue": float(point),
            "density": float(average),
            "density_least": float(least),
            "density_largest": float(largest),
        }


@figures.styled
def draw(found: Sequence[Found], given: argparse.Namespace) -> Any:
    """Draws a panel a model: the density on a logarithmic scale, down to a tenth of a single eigenvalue's height."""
    across = min(ACROSS, len(found))
    down = -(-len(found) // across)
    figure, panels = figures.canvas(down, across, figures.PAGE if across > 1 else figures.COLUMN, 2.2)
    for panel, one in zip(panels.flat, found, strict=False):
        curve(panel, one, given.width)
    for panel in panels.flat[len(found) :]:
        panel.set_axis_off()
    for panel in panels[:, 0]:
        panel.set_ylabel("density of eigenvalues")
    shown = f"line: mean over {given.probes} Lanczos runs; band: least to largest"
    figures.legend(figure, panels, 2, shown if given.probes > 1 else "one Lanczos run")
    return figure


def curve(panel: Any, found: Found, width: float) -> None:
    """Draws a model's panel."""
    at, values = grid_of(found, width)
    norm, n = found.spectrum.norm.value, len(found.model.theta)
    single = 1 / (n * width * norm * math.sqrt(2 * math.pi)) if norm else 0.0
    colour, floor = figures.LOOKS[0][0], single / 10
    panel.plot(at, values.mean(axis=0), color=colour, linewidth=1.1)
    if len(values) > 1:
        low, high = (np.maximum(edge, floor / 10) for edge in (values.min(axis=0), values.max(axis=0)))
        panel.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.axhline(single, color="0.4", linestyle=":", linewidth=0.8, label="height of a single eigenvalue")
    panel.set(yscale="log", ylim=(floor, 10 * values.max()), xlabel="eigenvalue", xlim=(at[0], at[-1]))
    rank = uncertain(found.rank)
    panel.set_title(f"{found.model.name}\ntr(H) = {uncertain(found.trace)}\ntr(H)/|H|$_2$ = {rank}", loc="left")


if __name__ == "__main__":
    main()
