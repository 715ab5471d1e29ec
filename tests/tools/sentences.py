"""Length of the pages' sentences: words, sentences, and the share of more than 30 words.

python -m tests.tools.sentences                  a line for each page, and their sum
python -m tests.tools.sentences --long README.md the sentences of more than 30 words
python -m tests.tools.sentences --code           docstrings of zofl_mpi with a fault, each with its fault
"""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.conftest import ROOT

MOST = 30
"""Words of a sentence at most."""
BLOCKS = r"^```.*?^```$|<!--.*?-->"
END = re.compile(r"(?<=[.!?])[)\"”*_]*\s+(?=[A-Z`\"(*\[0-9])|\n\s*\n|\n(?=\s*(?:[-*] |\d+\. |#|\|))")
ABBREVIATIONS = r"\b(al|e\.g|i\.e|vs|cf|No|St)\."
SECTION = re.compile(r"(Args|Attributes|Raises|Returns):$")
FORMULA = r"\S*[_^=<>*/|\[\]{}+]\S*|\b\w\b"
QUESTIONS = {"That", "What", "When", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why", "How", "So", "Such"}
"""First words that make a riddle of a docstring: it begins with a noun or a verb."""


def pages() -> list[str]:
    """The pages of the repository, without the changelog, the generated interface and the results."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(
        {name for name in found if (ROOT / name).exists()}
        - {name for name in found if name.startswith("analysis/results/")}
        - {"CHANGELOG.md", "zofl_mpi/INTERFACE.md"}
    )


def prose(text: str) -> str:
    """A page without code blocks and comments: a code span is one word, a link its words."""
    text = re.sub(BLOCKS, "\n\n", text, flags=re.S | re.M)
    text = re.sub(r"`[^`\n]*`", "Code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(ABBREVIATIONS, r"\1", text)


def sentences(text: str) -> Iterator[str]:
    """Sentences; a heading, an item of a list and a part of a table's cell end one."""
    for part in END.split(prose(text)):
        for cell in re.split(r" \| |; ", part) if part.lstrip().startswith("|") else [part]:
            words = re.findall(r"[^\W_][\w'’./,-]*", cell)
            if words:
                yield " ".join(cell.split())


def length(sentence: str) -> int:
    """Words of a sentence; signs of formulas are none."""
    return len(re.findall(r"[^\W\d_][\w'’-]*|\d[\d,.]*", sentence))


def too_long(text: str) -> list[str]:
    """The sentences of more than MOST words."""
    return [sentence for sentence in sentences(text) if length(sentence) > MOST]


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of the docstrings of a module, its classes, functions, constants and fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def entries(text: str) -> str:
    """A docstring as a page: sections' entries and their values as paragraphs, without formulas' lines and tables."""
    lines = inspect.cleandoc(text).split("\n")
    kept, section = [lines[0]], False
    for line in lines[1:]:
        if re.search(r"\S  +\S", line):
            kept.append("")
        elif not line.startswith(" "):
            section = bool(SECTION.fullmatch(line))
            kept.append("" if section else line)
        elif section:
            kept += ["", line.strip().partition(": ")[2]] if line[4:5] != " " else [line.strip()]
            kept[-1] = kept[-1].replace("; ", "\n\n").removesuffix(";")
        else:
            kept.append("")
    return re.sub(r"(?<=[.!?]) +(?=[a-z(])", "\n\n", "\n".join(kept))


def faults(source: str) -> list[str]:
    """Docstrings that begin with one of QUESTIONS, and sentences of more than MOST words: LINE: text."""
    found = list[str]()
    for number, text in docstrings(source):
        if text.split()[:1] and text.split()[0].strip(",:") in QUESTIONS:
            found.append(f"{number}: {text.splitlines()[0]}")
        for sentence in sentences(entries(text)):
            words = length(re.sub(FORMULA, "", sentence))
            if words > MOST:
                found.append(f"{number}: {words} words: {sentence}")
    return found


def main(words: list[str]) -> None:
    if words == ["--code"]:
        for path in sorted((ROOT / "zofl_mpi").rglob("*.py")):
            for fault in faults(path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(ROOT)}:{fault}")
        return
    shown = "--long" in words
    sums = [0, 0, 0]
    for name in [word for word in words if word != "--long"] or pages():
        text = (ROOT / name).read_text(encoding="utf-8")
        lengths = [length(sentence) for sentence in sentences(text)]
        counts = [sum(lengths), len(lengths), sum(n > MOST for n in lengths)]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        print(f"{name:44} {counts[0]:6,} words, {counts[1]:4} sentences, {counts[2]:3} of more than {MOST}")
        for sentence in too_long(text) if shown else ():
            print(f"    {length(sentence)}: {sentence}")
    share = f"{sums[2] / sums[1]:.1%}"
    print(f"{'all':44} {sums[0]:6,} words, {sums[1]:4} sentences, {sums[2]:3} = {share} of more than {MOST}")


if __name__ == "__main__":
    main(sys.argv[1:])
