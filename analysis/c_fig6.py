"""[C] figure 6: the final loss of HERON and of CSE-FSL against the depth of the auxiliary head, for several cuts.

python analysis/c_fig6.py [--grid jobs/c_fig6.toml] [--results DIR] [--out NAME] [--partial]

Two panels: the validation loss of the whole network, and the local loss, of the auxiliary head in training. A line for
each cut and method, and a level line for each cut's control, whose client part does not train, so that the head's depth
has no influence on the whole network. [C] tells one "final training loss". Prints both losses after the last round and,
seed by seed, less the control's.
"""

from collections.abc import Sequence
from typing import Any

from shared import figures
from shared.groups import Group, split
from shared.heron import difference, name, titled
from shared.language import LOSS, caption, signed, told
from shared.study import COUNTS, Column, Study, averaged, compared, entry, word

PANELS = {LOSS: "validation loss (nat)", "local_loss": "local loss, last round (nat)"}
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
def draw(groups: Sequence[Group]) -> Any:
    """Draws the two panels side by side; a line for each cut and method, a level line for each cut's control."""
    there = [g for g in groups if g.runs]
    lines = split([g for g in there if g.entry("method") != CONTROL], lambda g: f"{name(g)}, {size(g)}")
    figure, panels = figures.canvas(1, len(PANELS), figures.PAGE, 2.5)
    for panel, (column, label) in zip(panels.flat, PANELS.items(), strict=True):
        for k, (own, found) in enumerate(lines.items()):
            line(panel, column, sorted(found, key=depth), own, k)
        if column == LOSS:
            level(panel, [g for g in there if g.entry("method") == CONTROL], len(lines))
        panel.set(xlabel="blocks of the auxiliary head", ylabel=label)
        panel.set_xticks(sorted({depth(g) for g in there}))
    titled(panels[0, 0], "", groups, lambda g: f"{name(g)}, {size(g)}, {depth(g)}")
    figures.legend(figure, panels, 2)
    return figure


def line(panel: Any, column: str, groups: Sequence[Group], label: str, k: int) -> None:
    """Draws the points of a line: mean, and the range where all have the same number of seeds."""
    values = [group.last(column) for group in groups]
    x = [depth(group) for group in groups]
    looks = figures.look(k)
    panel.plot(x, [v.mean() for v in values], label=label, **looks)
    panel.fill_between(
        x, [v.min() for v in values], [v.max() for v in values], color=looks["color"], alpha=0.15, linewidth=0
    )


def level(panel: Any, groups: Sequence[Group], first: int) -> None:
    """Draws a control's mean as a level line, for each cut."""
    for k, group in enumerate(groups, first):
        looks = figures.look(k) | {"marker": ""}
        panel.axhline(group.last(LOSS).mean(), label=f"{name(group)}, {size(group)}", **looks)


STUDY = Study(
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
    draw=draw,
)
main = STUDY.main

if __name__ == "__main__":
    main()
