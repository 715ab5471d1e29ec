"""[C] figure 6: the final loss of HERON and of CSE-FSL against the depth of the auxiliary head, for several cuts.

python analysis/c_fig6.py [--grid jobs/c_fig6.toml] [--results DIR] [--out NAME] [--partial]

Two panels: the validation loss of the whole network less that of the cut's control, whose client part does not train,
so that the head's depth has no influence on the whole network; and the local loss, of the auxiliary head in training. A
line for each cut and method. [C] tells one "final training loss". Prints both losses after the last round and,
seed by seed, less the control's.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from shared import figures, wording
from shared.groups import Group, split
from shared.heron import NAMES, difference, name
from shared.language import LOSS, caption, signed, told
from shared.study import COUNTS, Column, Study, averaged, compared, entry, word

from zofl_mpi.report.groups import t_half_width

PANELS = {
    "less_frozen": "validation loss less a frozen client's,\nseed by seed (nat)",
    "local_loss": "local loss, last round (nat)",
}
CONTROL = "heron-frozen"
NOTE = (
    "validation loss: cross-entropy of a completion's token by the whole network. less frozen: the differences to the "
    "last validation loss of the control of the same cut and seed, whatever the head. local loss: what the clients see "
    "by the auxiliary head, mean over clients and steps of the last round."
)


def cut(group: Group) -> int:
    """Blocks at the client."""
    return int(group.config["cut"])


def depth(group: Group) -> int:
    """Blocks of the auxiliary head."""
    return int(group.config.get("auxiliary_blocks", group.config.get("auxiliary-blocks", 1)))  # of a result; of a grid


def size(group: Group) -> str:
    """Size of the client's part: 1 block at the client."""
    return f"{cut(group)} block{'' if cut(group) == 1 else 's'} at the client"


def control(group: Group, groups: Sequence[Group]) -> Group | None:
    """The control of the same cut; None where there is none, or the group is it."""
    found = [g for g in groups if g.entry("method") == CONTROL and cut(g) == cut(group)]
    return None if not found or found[0] is group else found[0]


# --- figure


@figures.styled
def draw(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws the two panels, of the rows of the CSV: a line for each cut and method."""
    there = [r for r in rows if r["seeds"] and r["method"] != CONTROL]
    note = wording.listed(filter(None, map(wording.seeds_of, rows)))
    lines = split(there, lambda r: f"{NAMES[r['method']]}, {r['cut']:g} block{'s' * (r['cut'] != 1)} at the client")
    figure, panels = figures.canvas(1, len(PANELS), figures.PAGE, 2.5)
    for panel, (column, label) in zip(panels.flat, PANELS.items(), strict=True):
        for k, (own, found) in enumerate(lines.items()):
            line = sorted(found, key=itemgetter("auxiliary_blocks"))
            x = [r["auxiliary_blocks"] + 0.06 * (k - (len(lines) - 1) / 2) for r in line]  # side by side
            halves = [t_half_width(r[f"{column}_sd"], int(r["seeds"])) for r in line]
            figures.barred(panel, x, [r[f"{column}_mean"] for r in line], halves, label=own, **figures.look(k))
        panel.set(xlabel="blocks of the auxiliary head", ylabel=label)
        panel.set_xticks(sorted({int(r["auxiliary_blocks"]) for r in there}))
    panels[0, 0].axhline(0, color="0.5", linewidth=0.8)
    panels[0, 0].set_title(note, loc="left")
    figures.legend(figure, panels, 2, "mean over seeds; bar: 95 % t interval")
    return figure


STUDY: Study = Study(
    "c_fig6",
    __doc__,
    grids=["c_fig6.toml"],
    axes=("cut", "depth", "method"),
    columns=(
        word("client's part", size),
        Column(lambda group, _: {"cut": cut(group), "auxiliary_blocks": depth(group)}),
        entry("method", "method", name),
        word("blocks of the head", lambda group: "any" if group.entry("method") == CONTROL else str(depth(group))),
        averaged("validation_loss", lambda group, _: group.last(LOSS), "validation loss", told),
        compared("less_frozen", "less frozen", lambda g, frozen: difference(g, frozen, LOSS), signed),
        averaged("local_loss", lambda group, _: group.last("local_loss"), "local loss", told),
        COUNTS,
    ),
    control=control,
    note=lambda groups: f"{NOTE} {caption(groups, ('auxiliary_blocks',))}.",
    draw=lambda groups: draw(STUDY.rows(groups)),
)
main = STUDY.main

if __name__ == "__main__":
    main()
