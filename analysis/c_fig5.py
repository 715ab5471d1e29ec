"""[C] figure 5: a language model's validation perplexity against rounds and against what was sent, of all methods.

python analysis/c_fig5.py [--grid jobs/c_lm.toml jobs/c_lm_random.toml] [--results DIR] [--out NAME] [--partial]

Bytes are those down and up of all clients, labels too; the models with which all begin are not among them. A row of
panels per start: from pretrained weights, and from random ones; on the right, less the frozen client's, seed by seed.
Prints, for each start and method, the perplexities after the last round, HERON's less it seed by seed, the perplexity
at the bytes of HERON's whole run, and the local loss. The frozen client decides what HERON's zeroth-order steps do:
then they train adapters of the auxiliary head alone, which the final model does not have.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from shared import figures
from shared.budgets import unit_of
from shared.groups import Array, Group, series, split
from shared.heron import LOCAL_LOSS, band, difference, name, place, titled
from shared.language import PERPLEXITY, caption, signed, start, told, until
from shared.split_costs import all_bytes
from shared.study import COUNTS, Study, alike, averaged, compared, entry, last, number

TEST, CONTROL = "test_perplexity", "heron-frozen"
LABELS = ("validation perplexity", "validation perplexity", "less frozen client's")
NOTE = (
    "perplexity: of the whole network over the tokens of completions. HERON less it: the differences of the last "
    "validation perplexities of the same seed; negative: HERON is better. at HERON's bytes: validation perplexity at "
    "the last evaluated round until which no more was sent than in all of HERON's rounds. local loss: what the clients "
    "train on, by the auxiliary head (SplitLoRA has none; DeComFL by the whole network), mean over clients and steps "
    "of the first and of the last round."
)


def at_bytes(group: Group, heron: Group | None) -> Array:
    """(seeds,) validation perplexities at the bytes of HERON's whole run; none where it has no results."""
    if heron is None or not heron.runs or not group.runs:
        return np.array([])
    return until(group, float(all_bytes(heron)[-1]))


# --- figure


@figures.styled
def draw(groups: Sequence[Group]) -> Any:
    """Draws a row of panels per start: against rounds, against bytes, and less the control, seed by seed."""
    rows = split(groups, start)
    scale, unit = unit_of(max(float(all_bytes(g)[-1]) for g in groups if g.runs))
    figure, panels = figures.canvas(len(rows), 3, figures.PAGE, 2.3, sharex="col")
    for line, (title, found) in zip(panels, rows.items(), strict=True):
        for group in sorted(found, key=place):
            if group.runs:
                curves(line, group, alike(group, groups, "start", method=CONTROL), scale)
        titled(line[0], title, found, name, 40)
        for panel, label in zip(line, LABELS, strict=True):
            panel.set(ylabel=label, xlim=(0, None))
    for panel, label in zip(panels[-1], ("rounds", f"sent, with labels ({unit})", "rounds"), strict=True):
        panel.set_xlabel(label)
    figures.legend(figure, panels, 3, "line: mean over seeds; band: least to largest difference")
    return figure


def curves(panels: Any, group: Group, control: Group | None, scale: float) -> None:
    """Draws a method's line in the panels of a row.

    Perplexities have no band: it would be that of the texts of the reports, which each seed draws for itself.
    """
    at, values = group.curve(PERPLEXITY)
    mean = values.mean(axis=0, keepdims=True)
    band(panels[0], at, mean, group)
    band(panels[1], all_bytes(group)[at - 1] / scale, mean, group)
    if control is not None and control.runs:
        band(panels[2], at, paired(group, control), group)


def paired(group: Group, control: Group) -> Any:
    """(seeds, k) perplexities at each evaluated round less the control's of the same seed."""
    mine, theirs = group.seeds, control.seeds
    both = sorted(mine.keys() & theirs.keys())
    less = np.stack([series(mine[s], PERPLEXITY) - series(theirs[s], PERPLEXITY) for s in both])
    return less[:, ~np.isnan(less).any(axis=0)]


STUDY = Study(
    "c_fig5",
    __doc__,
    grids=["c_lm.toml", "c_lm_random.toml"],
    axes=("start", "method"),
    columns=(
        entry("start", "start", start),
        entry("method", "method", name),
        averaged("validation_perplexity", lambda group, _: group.last(PERPLEXITY), "validation", told),
        averaged("test_perplexity", lambda group, _: group.last(TEST), "test", told),
        compared("heron_less_it", "HERON less it", lambda g, heron: difference(heron, g, PERPLEXITY), signed),
        number("bytes", last(all_bytes), "MiB", 2**20),
        averaged("at_herons_bytes", at_bytes, "at HERON's bytes", told),
        *LOCAL_LOSS,
        COUNTS,
    ),
    control=lambda group, groups: alike(group, groups, "start", method="heron"),
    note=lambda groups: f"{NOTE} {caption(groups)}.",
    draw=draw,
)
main = STUDY.main

if __name__ == "__main__":
    main()
