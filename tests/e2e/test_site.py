"""The site of all pages (jobs/docs.sh): it builds without a broken link, and asks no network."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zofl_mpi
from tests.conftest import ROOT, run_process

pytest.importorskip("mkdocs", reason="the site needs the extra docs")


def site_pages() -> Any:
    """The module .docs/pages.py."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / ".docs/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The last command of jobs/docs.sh, with another configuration and folder."""
    words = shlex.split((ROOT / "jobs/docs.sh").read_text().splitlines()[-1].removeprefix("exec mkdocs"))
    words[words.index(".docs/mkdocs.yml")], words[words.index("$@") :] = str(config), ["-d", str(site)]
    return run_process([sys.executable, "-m", "mkdocs", *words], cwd=ROOT, env={"NO_MKDOCS_2_WARNING": "1"})


def test_the_page_of_flags_has_the_defaults_of_the_first_method_and_problem() -> None:
    """Mutation: those of the last ones, as `--method` server_sgd and `--problem` toy."""
    page = site_pages().flags_by_command()
    found = re.findall(r"\| `--(?:method|problem)` \| `'(\w+)'` \|", page)
    assert found == ["zo_hfl", "softmax", "fedrzo_nn", "relu_net", "heron", "split_cnn"]


def test_names_flags_and_intervals_are_not_broken() -> None:
    """Mutation: hyphens in commands, and blanks around a sign, at which a browser breaks a line."""
    html = site_pages().on_page_content("<code>a --b-c 1</code> <code>--d</code> 1.0 ± 2", None, None, None)
    name = '<span class="name">--b-c</span>'
    assert html == f'<code>a {name} 1</code> <code class="name">--d</code> 1.0\u00a0±\u00a02'


@pytest.mark.slow
def test_the_site_builds_with_every_page_and_figure_and_asks_no_network(tmp_path: Path) -> None:
    """Mutations: a page left out; fonts of the theme; a signature on one line, as without ruff."""
    done = built(ROOT / ".docs/mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    html = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages = re.sub(r"^\.(docs|github)/", "", pages, flags=re.M)
    wanted = {page.replace("README.md", "index.md").replace(".md", ".html") for page in pages.split()}
    assert wanted <= html.keys()
    for name, text in html.items():
        assert not re.search(r'<(?:script|img|iframe|source)[^>]*src="?https?:|<link[^>]*href="?https?:', text), name
    for path in tmp_path.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path
    for figure in (ROOT / "analysis/results").rglob("*.png"):
        assert f'{figure.name}"' in html["gallery.html"] and (tmp_path / figure.relative_to(ROOT)).is_file()
    for name in zofl_mpi.__all__:
        assert re.search(rf'<h2 id="zofl_mpi\.[\w.]*\b{name}"', html["reference/names.html"]), name
    signature = re.search(r"<code>.*?>HERON<.*?</code>", html["reference/methods.html"], re.DOTALL)
    assert signature is not None and signature[0].count("\n") > 3
    found = json.loads((tmp_path / "search/search_index.json").read_text())["docs"]
    assert any("directions per parameter" in each["text"] for each in found)
    assert "FedAvg leads by" in html["analysis/tutorial.html"] and "--gamma-local" in html["reference/flags.html"]
    searched(tmp_path)


FIRST = {
    "resume": "howto/resume.html",
    "own data": "howto/own_model_and_data.html",
    "4 GPUs": "howto/gpu_nodes.html",
    "debug": "howto/debug.html",
    "install": "howto/install.html",
    "slurm": "howto/slurm.html",
    "private": "howto/private_run.html",
    "bytes": "explain/bytes.html",
}
"""{words typed into the search: the page that must come first}."""


def searched(site: Path) -> None:
    """The site's search, run by node. Mutation: a name in the menu without the word that is asked for."""
    if shutil.which("node"):
        done = run_process(["node", str(ROOT / "tests/e2e/site_search.js"), str(site), *FIRST])
        assert json.loads(done.stdout) == FIRST, done.stderr


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    """To a file, to a heading of another page and of its own. Mutation: --quiet, which also stops the counting."""
    broken = ("nowhere.md", "zofl_mpi/INTERFACE.md#nowhere", "#nowhere")
    text = " ".join(f"[a]({link})" for link in broken)
    (tmp_path / "plant.py").write_text(
        f"def on_page_markdown(old, page, **_): return old + '{text}' if page.file.src_uri == 'CHANGELOG.md' else old"
    )
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT}/.docs/mkdocs.yml\ndocs_dir: {ROOT}/.docs/theme\nhooks: [{ROOT}/.docs/pages.py, plant.py]\n"
        "plugins: []\nnav: [{Start: [CHANGELOG.md, zofl_mpi/INTERFACE.md, zofl_mpi/run/README.md]}]\n"
    )
    done = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1, done.stderr
    for link in broken:
        assert f"CHANGELOG.md' contains a link '{link}'" in done.stderr, done.stderr


def test_a_figure_without_a_command_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = site_pages()
    assert "python analysis/a_fig2.py --axis mu" in pages.gallery()
    monkeypatch.setattr(pages, "figures", lambda: [ROOT / "analysis/results/z_new.png"])
    with pytest.raises(Exception, match=r"analysis/results/z_new\.png: no page, grid or script says which command"):
        pages.gallery()
