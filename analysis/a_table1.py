"""[A] Table I: test accuracy after the last round, mean and standard deviation over seeds, beside the paper's numbers.

python analysis/a_table1.py [--grid jobs/a_table1.toml ...] [--results DIR] [--out NAME] [--partial]

Prints the table; writes NAME.csv (a row per data set, cell and method) and NAME.tex (booktabs).
"""

from collections.abc import Sequence

from shared import wording
from shared.files import Report
from shared.groups import Group, entries, split
from shared.paper import printed
from shared.study import ACCURACY, COUNTS, Column, entry, row, study, table, word


def title(groups: Sequence[Group]) -> str:
    """The caption."""
    return (
        "Test accuracy of the global model in % after the last round, mean ± standard deviation over seeds; paper: "
        f"[A] Table I. {wording.caption(groups)}."
    )


COLUMNS = (
    entry("data", "data", wording.data_of),
    entry("problem"),
    entry("cell", "cell"),
    entry("method", "method"),
    ACCURACY,
    Column(lambda g, _: {"paper_percent": printed(g)}, "paper (%)", lambda g, _: wording.plain(printed(g))),
    word("rounds", lambda group: str(group.rounds)),
    word("seeds", lambda group: str(len(group.runs))),
    COUNTS,
)


def text(groups: Sequence[Group]) -> str:
    """The table on screen: a row per data set, cell and method, a line between cells."""
    header, rule, *lines = table(COLUMNS, groups, left=3).split("\n")
    blocks = split(zip(groups, lines, strict=True), lambda pair: f"{wording.data_of(pair[0])}\n{pair[0].entry('cell')}")
    return "\n".join([header, rule, "\n\n".join("\n".join(line for _, line in block) for block in blocks.values())])


# --- LaTeX: methods below each other, cells beside each other, as in the paper


def latex(groups: Sequence[Group]) -> str:
    """A table for two columns, \\usepackage{booktabs}."""
    cells = entries(groups, "cell")
    names = [wording.latex(wording.cell_name(groups, cell)) for cell in cells]
    heads = " & ".join(f"\\multicolumn{{2}}{{c}}{{{name}}}" for name in names)
    rules = "".join(f"\\cmidrule(lr){{{2 * k + 2}-{2 * k + 3}}}" for k in range(len(cells)))
    lines = [
        "\\begin{table*}",
        "\\centering",
        f"\\caption{{{wording.latex(title(groups))}}}",
        f"\\begin{{tabular}}{{l{'rr' * len(cells)}rr}}",
        "\\toprule",
        f" & {heads} & & \\\\",
        rules,
        f" & {' & '.join(['here & paper'] * len(cells))} & rounds & seeds \\\\",
        *latex_blocks(groups, cells),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def latex_blocks(groups: Sequence[Group], cells: Sequence[str]) -> list[str]:
    """The lines of each data set, below its name."""
    lines = []
    for data, block in split(groups, wording.data_of).items():
        lines += [
            "\\midrule",
            f"\\multicolumn{{{2 * len(cells) + 3}}}{{l}}{{{wording.latex(wording.spelled(data))}}} \\\\",
        ]
        for method, found in split(block, lambda g: g.entry("method")).items():
            lines.append(latex_line(method, found, cells))
    return lines


def latex_line(method: str, groups: Sequence[Group], cells: Sequence[str]) -> str:
    """One method on one data set."""
    numbers = []
    for cell in cells:
        found = [g for g in groups if g.entry("cell") == cell]
        accuracy = wording.percent(*found[0].accuracy(), found[0].note) if found else "-"
        numbers += [accuracy, wording.plain(printed(found[0])) if found else "-"]
    counts = [wording.listed(g.rounds for g in groups), wording.listed(len(g.runs) for g in groups)]
    return " & ".join(map(wording.latex, [wording.method_name(method), *numbers, *counts])) + " \\\\"


def report(groups: Sequence[Group]) -> Report:
    """The table, also in LaTeX."""
    rows = [row(COLUMNS, group) for group in groups]
    return Report(text(groups), title(groups), rows, more={".tex": latex(groups)})


main = study("a_table1", __doc__, ["a_table1.toml"], ("data", "problem", "cell", "method"), report)

if __name__ == "__main__":
    main()
