"""Names of methods, data sets and grid axes in figures and tables, and LaTeX escapes."""

from collections.abc import Mapping, Sequence
from typing import Any

from zofl_mpi.errors import plain
from zofl_mpi.report.facts import CELL

DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
METHODS = {
    "zo_hfl": "ZO-HFL",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "server_sgd": "server SGD",
    "fedavg+server": "FedAvg + server",
}
"""Names in tables and figures, in their display order; others appear as in the grid."""
SYMBOLS = {"alpha": "α", "beta": "β", "tau": "τ", "lam": "λ"}
"""Symbols of axes that are flags."""
LATEX = {
    "±": r"$\pm$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "−": "$-$",
    "\\": r"\textbackslash{}",
} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: "\\" + letter for letter in "_%&#$" + "{}"},
}


def label_of(where: Mapping[str, str], flags: Mapping[str, Any]) -> str:
    """A group's name from its {axis: entry}; a number is preceded by its axis, and "none" is omitted."""
    words = []
    for axis, entry in where.items():
        if axis == "cell" and {"alpha", "beta"} <= flags.keys():
            words.append(f"α {flags['alpha']}, β {flags['beta']}")
        elif entry.lstrip("+-.")[:1].isdigit() or entry in ("true", "false"):
            words.append(f"{SYMBOLS.get(axis, axis)} {entry}")
        elif entry not in ("", "none") and not entry.endswith("-none"):
            words.append(METHODS.get(entry, DATA.get(entry, entry)))
    return plain(", ".join(words) or "all runs", CELL)


def latex(text: str) -> str:
    """A text with LaTeX's special characters escaped."""
    return "".join(LATEX.get(letter, letter) for letter in text)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in plain text: the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    sides = ["<" if k < left else ">" for k in range(len(header))]
    return "\n".join(
        "  ".join(f"{word:{side}{width}}" for word, side, width in zip(line, sides, widths, strict=True)).rstrip()
        for line in lines
    )
