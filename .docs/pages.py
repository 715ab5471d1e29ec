"""Hook of mkdocs: takes the pages from where they lie in the repository, and adds tutorial, gallery and reference.

A page keeps its path in the repository, so that a link that works on GitHub works on the site: mkdocs follows it to the
page, or to a file of the repository, which is then part of the site. Links to folders go to the folder's README.md,
links to the notebook to the page made of it. On the site .docs/ and .github/ are left out of addresses.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from zofl_mpi.__main__ import FAMILIES
from zofl_mpi.run.command import flags, plan

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "analysis/results"
LINK = re.compile(r"(\]\()([^)#\s]+)([^)\s]*\))")
COMMAND = re.compile(r"(?:(?<=`)|^#? *)(python analysis/\S+\.py(?: [^`\n]*\\\n[^`\n]*| [^`\n]*)?)", re.MULTILINE)
TUTORIAL = "analysis/tutorial.ipynb"
HYPHENATED = re.compile(r"(?<![^\s>])(?=\S*-)[^\s<]{1,28}(?![^\s<])")
"""A word of a command that a browser would break at its hyphen."""
REFERENCE = {"methods": "methods", "problems": "problems", "rounds": "rounds", "numerics": "numerics"}
"""{page of the reference: package whose modules it lists}."""
LAST = "---\nsearch: {boost: 0.1}\n---\n\n"
"""The head of a page that the search shows after the others."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the navigation, the files that they link to, the gallery and the reference."""
    own = {"analysis/tutorial.md": tutorial, "gallery.md": gallery}
    own |= {"reference/names.md": public_names, "reference/flags.md": flags_by_command}
    own |= {f"reference/{page}.md": lambda package=package: modules(package) for page, package in REFERENCE.items()}
    pages = [path for path in listed(config.nav) if path not in own and (ROOT / path).exists()]
    for path in pages:
        page = File.generated(config, path, abs_src_path=str(ROOT / path), inclusion=InclusionLevel.INCLUDED)
        page.dest_uri = re.sub(r"^\.(docs|github)/", "", page.dest_uri)
        files.append(page)
    for path, content in own.items():
        files.append(File.generated(config, path, content=content()))
    linked = {target for path in pages for target in targets(path)} | {str(p.relative_to(ROOT)) for p in figures()}
    for path in sorted(linked - set(pages)):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """GitHub's dialect as Python-Markdown reads it: links to folders, bars within code in tables, lists after text."""
    here = PurePosixPath(page.file.src_uri).parent
    markdown = LINK.sub(lambda link: link[1] + leads_to(here, link[2]) + link[3], markdown)
    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if block.startswith("```") else dialect(block) for block in blocks)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keeps names, flags, files and intervals in text whole: they are not broken at a hyphen (site.css) or a sign."""
    html = re.sub(r"(?<=\d) ± (?=\d)", "\u00a0±\u00a0", html)
    html = re.sub(r"<code>(?=[^\s<]{1,28}</code>)", '<code class="name">', html)
    return re.sub(
        r"<code>[^<]*\s[^<]*</code>", lambda code: HYPHENATED.sub(r'<span class="name">\g<0></span>', code[0]), html
    )


def dialect(text: str) -> str:
    """Text outside of fenced blocks: no comments, a blank line before a list, no backslash before a bar in code."""
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), text)
    return re.sub(r"^(?!- |\s|\|)(.+\n)(?=- )", r"\1\n", text, flags=re.MULTILINE)


def listed(nav: Any) -> Iterator[str]:
    """The paths of the navigation."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(item)


def leads_to(here: PurePosixPath, target: str) -> str:
    """A link's target; of a folder, its page, of the notebook the page made of it."""
    if target.endswith(".ipynb"):
        return target.removesuffix(".ipynb") + ".md"
    folder = "://" not in target and (ROOT / here / target).is_dir()
    return f"{target.rstrip('/')}/README.md" if folder else target


def targets(page: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    place = (ROOT / page).parent
    for _, target, _ in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        path = (place / leads_to(PurePosixPath(page).parent, target)).resolve()
        if "://" not in target and path.is_file() and path.is_relative_to(ROOT):
            yield path.relative_to(ROOT).as_posix()


def tutorial() -> str:
    """The notebook as a page: its text and code, without output."""
    cells = json.loads((ROOT / TUTORIAL).read_text(encoding="utf-8"))["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for text, kind in texts) + "\n"


def flags_by_command() -> str:
    """Every flag of every method and problem, by command and group, with default and meaning."""
    parts = [f"{LAST}# Flags\n\nAlso keys of `--config` and of grids. Ranges: `--help`."]
    for name in FAMILIES:
        family = import_module(name)
        groups: dict[str, dict[str, flags.Leaf]] = {}
        for method, cls in family.METHODS.items():
            for problem in (key for key, choice in family.PROBLEMS.items() if cls.needs.__name__ in choice.roles):
                for title, owner in plan.groups_of(family, method, problem).items():
                    title = f"--method {method}" if title == "method" else title
                    known = groups.setdefault(title, {})
                    for leaf in flags.leaves(owner):  # the family's first method and problem are its defaults
                        known.setdefault(leaf.name, leaf)
        parts.append(f"## python -m {name}")
        for title, leaves in groups.items():
            rows = [
                f"| `--{flags.flag(leaf.name)}` | `{leaf.default!r}` | {cell(leaf.text)} |" for leaf in leaves.values()
            ]
            parts.append("\n".join([f"**{title}**\n", "| flag | default | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def figures() -> list[Path]:
    """The figures that are kept, in the order of their names."""
    return sorted(KEPT.rglob("*.png"))


def gallery() -> str:
    """Every figure of analysis/results with the command that draws it (PluginError: one has none)."""
    known = [(path, command) for path in sources() for command in commands(path)]
    parts = ["# Gallery\n\nEvery figure that is kept in the repository, with the command that draws it."]
    for figure in figures():
        found = drawn_by(figure, known)
        if found is None:
            raise PluginError(f"{figure.relative_to(ROOT)}: no page, grid or script says which command draws it")
        path, command = found
        script = re.findall(r"analysis/\S+\.py", command)[0]
        title = (ROOT / script).read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0]
        runs = f" The runs: `{path.relative_to(ROOT)}`." if path.suffix == ".toml" else ""
        name = figure.relative_to(ROOT).as_posix()
        parts += [f"## {figure.stem}", f"{title}{runs}", f"```bash\n{command}\n```", f"![{title}]({name})"]
    return "\n\n".join(parts) + "\n"


def sources() -> Iterator[Path]:
    """Where commands of figures stand, the more special first."""
    yield from sorted((ROOT / "jobs").glob("*.toml"))
    yield from sorted((ROOT / "analysis").glob("*.py"))
    yield from sorted(KEPT.glob("*.md"))


def commands(path: Path) -> Iterator[str]:
    """The commands of the scripts of analysis/ in a grid's head, a script's docstring or a page."""
    text = path.read_text(encoding="utf-8")
    text = text.split('"""')[1] if path.suffix == ".py" else text
    for command in COMMAND.findall(text):
        plain = re.sub(r"\\\n#? *", " ", command)
        plain = re.sub(r"\s+#.*", "", re.sub(r"\s*\[[^\]]*\]?", "", plain))  # what may be left out; a comment
        yield re.sub(r"\s+", " ", plain).strip()


def drawn_by(figure: Path, known: list[tuple[Path, str]]) -> tuple[Path, str] | None:
    """The command that names the figure, else the first one of which a file's name begins the figure's."""
    stem = figure.stem
    for path, command in known:
        if re.search(rf"--out analysis/results/{stem}$", command):
            return path, command
    best: tuple[int, Path, str] | None = None
    for path, command in known:
        if "--out " in command:
            continue  # of another figure
        words = {Path(word).stem for word in command.split()}
        length = max((len(word) for word in words if f"{stem}_".startswith(f"{word}_")), default=0)
        if length > (best[0] if best else 0):
            best = (length, path, command)
    return best[1:] if best else None


@cache
def public() -> dict[str, str]:
    """{name of `zofl_mpi.__all__`: where it is defined}."""
    package = griffe.load("zofl_mpi", search_paths=[ROOT], resolve_aliases=True)
    found = {str(name): package[str(name)] for name in package.exports or ()}
    return {name: (target.final_target if target.is_alias else target).path for name, target in found.items()}


def public_names() -> str:
    """`zofl_mpi.__all__`, each name where it is defined, from its docstring."""
    entries = [f"::: {path}" for _, path in sorted(public().items(), key=lambda item: item[0].lower())]
    return "\n\n".join(["# Public names\n\n`from zofl_mpi import ...`", *entries]) + "\n"


def modules(package: str) -> str:
    """Every module of a package with its classes and functions, but for those on the page of public names."""
    paths = sorted((ROOT / "zofl_mpi" / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    entries = []
    for name in names:
        elsewhere = [f'"!^{path.rpartition(".")[2]}$"' for path in public().values() if path.rpartition(".")[0] == name]
        filters = ", ".join(['"!^_"', *elsewhere])
        entries.append(f"::: {name}\n    options: {{show_root_full_path: true, filters: [{filters}]}}")
    return "\n\n".join([f"{LAST}# {package.capitalize()}", *entries]) + "\n"
