"""check_method finds each mistake of `faulty`, and none in a method of the package."""

from tests.e2e.faulty import FAULTS, Sound
from tests.e2e.made import *
from zofl_mpi import fedrzo, heron_sfl, zo_hfl
from zofl_mpi.api import processes
from zofl_mpi.api.checking import check_all, check_method
from zofl_mpi.api.findings import Checked
from zofl_mpi.api.processes import Call
from zofl_mpi.run import flags
from zofl_mpi.run.plan import groups_of, role_of

PROBLEMS = {"Bilevel": "bilevel_bowls", "SecondOrder": "saddle", "Split": "split_mlp", "Lipschitz": "bowls"}
"""{role: the smallest problem that plays it}; else the family's own."""
TINY = {"tau": 2, "T_lower": 2, "h": 2, "batch": 4}
"""Flags, of methods that have them, by which a round is short."""


def ours() -> dict[str, Call]:
    """Every method of the package, once, on a small problem."""
    found = dict[str, Call]()
    for family in (zo_hfl, fedrzo, heron_sfl):
        for name, cls in family.METHODS.items():
            problem = PROBLEMS.get(role_of(cls) or "", "toy" if family is zo_hfl else "bowls")
            known = flags.flags_of(groups_of(family, name, problem))
            tiny = {flag: value for flag, value in TINY.items() if flag in known}
            found.setdefault(name, Call(name, problem, None, family.__name__.removeprefix("zofl_mpi."), tiny))
    return found


@pytest.fixture(scope="module")
def findings() -> dict[str, Checked]:
    """What is found in all of them, by name; a start of processes serves all."""
    calls = {cls.__name__: Call(cls, "toy", None, "", {"n": 3}) for cls in FAULTS} | ours()
    return dict(zip(calls, check_all(list(calls.values())), strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("method", FAULTS, ids=lambda cls: cls.__name__)
def test_each_mistake_is_found_by_its_own_check(method: type[Sound], findings: dict[str, Checked]) -> None:
    """Mutations: any of the checks left out; a process that is not new; ranks that share a process."""
    found = findings[method.__name__]
    assert set(found.failed) == FAULTS[method], str(found)
    assert all(bool(each.advice) == (each.status == "failed") for each in found.findings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ours())
def test_nothing_is_found_in_our_own_methods(name: str, findings: dict[str, Checked]) -> None:
    """Mutation: planned bytes of a message that has changed since, in any method."""
    found = findings[name]
    assert found.ok, str(found)
    assert [each.name for each in found.findings if each.status == "not checked"] == [], str(found)
