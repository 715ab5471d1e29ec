"""[A] Table I: test accuracy after the last round, mean and standard deviation over seeds, beside the paper's numbers.

python analysis/a_table1.py [--grid jobs/a_table1.toml ...] [--results DIR] [--out NAME] [--partial]

Prints the table; writes NAME.csv (a row per data set, cell and method) and NAME.tex (booktabs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import study
from study import Group


def main(words: list[str] | None = None) -> None:
    """Print and write the table; exit status 2 if a result is missing."""
    flags = study.parser("a_table1", __doc__, ["a_table1.toml"]).parse_args(words)
    with study.told("a_table1"):
        groups = study.read("a_table1", flags, ("data", "problem", "cell", "method"), ("method",))
        print(f"{text(groups)}\n\n{study.paragraph(title(groups))}\n")
        study.write_csv(flags.out, [row(group) for group in groups])
        study.write(flags.out.with_name(flags.out.name + ".tex"), latex(groups))


def title(groups: Sequence[Group]) -> str:
    """The caption."""
    return (
        "Test accuracy of the global model in % after the last round, mean ± standard deviation over seeds; paper: "
        f"[A] Table I. {study.caption(groups)}."
    )


def text(groups: Sequence[Group]) -> str:
    """The table on screen: a row per data set, cell and method, a line between cells."""
    blocks = study.split(groups, lambda g: f"{study.data_of(g)}\n{g.entry('cell')}")
    blank = [""] * len(HEADER)
    rows = [line for block in blocks.values() for line in (*map(words_of, block), blank)]
    return study.aligned(HEADER, rows[:-1], left=3)


HEADER = ("data", "cell", "method", "accuracy (%)", "paper (%)", "rounds", "seeds")


def words_of(group: Group) -> list[str]:
    """A row on screen."""
    accuracy = study.percent(*group.accuracy(), group.note)
    counts = [str(group.rounds), str(len(group.runs))]
    return [
        study.data_of(group),
        group.entry("cell"),
        group.entry("method"),
        accuracy,
        study.plain(group.paper),
        *counts,
    ]


def row(group: Group) -> dict[str, Any]:
    """A row of the CSV."""
    mean, sd = group.accuracy()
    return {
        "data": group.entry("data"),
        "problem": group.entry("problem"),
        "cell": group.entry("cell"),
        "method": group.entry("method"),
        "accuracy_mean_percent": mean,
        "accuracy_sd_percent": sd,
        "paper_percent": group.paper,
        "rounds": group.rounds,
        "seeds": len(group.runs),
        "seeds_planned": group.planned,
    }


# --- LaTeX: methods below each other, cells beside each other, as in the paper


def latex(groups: Sequence[Group]) -> str:
    """A table for two columns, \\usepackage{booktabs}."""
    cells = study.entries(groups, "cell")
    names = [study.latex(study.cell_name(groups, cell)) for cell in cells]
    heads = " & ".join(f"\\multicolumn{{2}}{{c}}{{{name}}}" for name in names)
    rules = "".join(f"\\cmidrule(lr){{{2 * k + 2}-{2 * k + 3}}}" for k in range(len(cells)))
    lines = [
        "\\begin{table*}",
        "\\centering",
        f"\\caption{{{study.latex(title(groups))}}}",
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
    for data, block in study.split(groups, study.data_of).items():
        lines += ["\\midrule", f"\\multicolumn{{{2 * len(cells) + 3}}}{{l}}{{{study.latex(study.spelled(data))}}} \\\\"]
        for method, found in study.split(block, lambda g: g.entry("method")).items():
            lines.append(latex_line(method, found, cells))
    return lines


def latex_line(method: str, groups: Sequence[Group], cells: Sequence[str]) -> str:
    """One method on one data set."""
    numbers = []
    for cell in cells:
        found = [g for g in groups if g.entry("cell") == cell]
        accuracy = study.percent(*found[0].accuracy(), found[0].note) if found else "-"
        numbers += [accuracy, study.plain(found[0].paper) if found else "-"]
    counts = [study.listed(g.rounds for g in groups), study.listed(len(g.runs) for g in groups)]
    return " & ".join(map(study.latex, [study.method_name(method), *numbers, *counts])) + " \\\\"


if __name__ == "__main__":
    main()
