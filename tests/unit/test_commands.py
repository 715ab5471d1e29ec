"""`python -m zofl_mpi` lists what can be typed."""

from importlib import import_module

from tests.conftest import ROOT
from zofl_mpi.__main__ import FAMILIES, TOOLS, lines

PACKAGE = ROOT / "zofl_mpi"


def test_every_command_method_and_problem_has_its_place() -> None:
    """Mutations: a module that runs is in no list; a family's last method is left out; a line without a text."""
    runs = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for file in PACKAGE.rglob("*.py")
        if 'if __name__ == "__main__"' in file.read_text()
    }
    assert runs - {"zofl_mpi"} == {*FAMILIES, *TOOLS}
    listed = list(lines())
    for command in runs - {"zofl_mpi"}:
        assert sum(line.split()[:3] == ["python", "-m", command] and len(line.split()) > 4 for line in listed) == 1
    for name in FAMILIES:
        family, start = import_module(name), next(k for k, line in enumerate(listed) if f"-m {name} " in line)
        methods = listed[start + 1 : start + 1 + len(family.METHODS)]
        assert [line.split()[:2] for line in methods] == [["--method", method] for method in family.METHODS]
        assert all(len(line.split()) > 3 for line in methods)
        assert listed[start + 1 + len(family.METHODS)].split(maxsplit=1)[1] == ", ".join(family.PROBLEMS)
