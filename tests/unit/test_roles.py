"""Defaults of problems and methods: from a base class, or by the adapter for a plain class of a user's own."""

import ast
import itertools
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.unit.made import complaint
from zofl_mpi import fedrzo, zo_hfl
from zofl_mpi.engine.roles import HOST, Backend, overridable, program_of
from zofl_mpi.engine.setting import Method, Setting
from zofl_mpi.engine.streams import Streams
from zofl_mpi.errors import UserError
from zofl_mpi.problems import Bilevel, Hierarchical, Lipschitz, SecondOrder, Smooth
from zofl_mpi.problems.base import BilevelProblem, Problem
from zofl_mpi.run.command.family import FAMILIES, family_of
from zofl_mpi.run.command.plan import groups_of, loads_of, method_of, problem_of, role_of
from zofl_mpi.settings.given import lacking, roles_of

PACKAGE = ROOT / "zofl_mpi"

if TYPE_CHECKING:  # mypy: each problem has its roles
    from zofl_mpi.problems.analytic.bilevel import BilevelBowls, Coupled, Saddle
    from zofl_mpi.problems.analytic.black_boxes import CVaR, Shares
    from zofl_mpi.problems.analytic.caps import Caps
    from zofl_mpi.problems.analytic.nonsmooth import Bowls, MaxAffine
    from zofl_mpi.problems.analytic.quadratic import Corner, Quadratic
    from zofl_mpi.problems.fair import Fair, FairSoftmax
    from zofl_mpi.problems.hyperparameter import Hyperparameter
    from zofl_mpi.problems.network import Network
    from zofl_mpi.problems.relu_net import ReLUNet
    from zofl_mpi.problems.softmax import Softmax

    hierarchical: Sequence[type[Hierarchical]] = (Softmax, Network, Quadratic, Corner, Caps)
    smooth: Sequence[type[Smooth]] = (Softmax, Network, Quadratic, ReLUNet, Bowls)
    lipschitz: Sequence[type[Lipschitz]] = (ReLUNet, Network, MaxAffine, Bowls)
    bilevel: Sequence[type[Bilevel]] = (Hyperparameter, Fair, FairSoftmax, BilevelBowls, Coupled, Saddle, CVaR, Shares)
    second_order: Sequence[type[SecondOrder]] = (Hyperparameter, BilevelBowls, Saddle)


OFFERED = {
    "zofl_mpi.zo_hfl": {
        "softmax": "Hierarchical, Smooth",
        "features": "Hierarchical, Smooth",
        "mlp": "Hierarchical, Smooth, Lipschitz",
        "cnn": "Hierarchical, Smooth, Lipschitz",
        "toy": "Hierarchical, Smooth",
        "corner": "Hierarchical",
        "caps": "Hierarchical",
    },
    "zofl_mpi.fedrzo": {
        "relu_net": "Smooth, Lipschitz",
        "mlp": "Hierarchical, Smooth, Lipschitz",
        "cnn": "Hierarchical, Smooth, Lipschitz",
        "hyperparameter": "Bilevel, SecondOrder",
        "fair": "Bilevel",
        "fair_softmax": "Bilevel",
        "max_affine": "Lipschitz",
        "bowls": "Smooth, Lipschitz",
        "bilevel_bowls": "Bilevel, SecondOrder",
        "saddle": "Bilevel, SecondOrder",
        "cvar": "Bilevel",
        "shares": "Bilevel",
        "coupled": "Bilevel",
    },
    "zofl_mpi.heron_sfl": dict.fromkeys(("split_cnn", "split_resnet", "split_mlp", "split_lm"), "Split"),
}
NEEDED = {"zo_hfl": "Hierarchical", "fedrzo_nn": "Lipschitz", "fedrzo_bl": "Bilevel", "fednest": "SecondOrder"}
"""By other methods than those of split learning: Smooth."""


@pytest.mark.parametrize("name", OFFERED)
def test_a_method_runs_on_the_problems_with_its_role_and_on_no_other(name: str) -> None:
    """Mutations: a role that a problem lacks, as derivatives that are made up; one that it has and does not offer;
    another sentence, or none."""
    family = family_of(name)
    assert OFFERED.keys() == set(FAMILIES) and OFFERED[name].keys() == family.PROBLEMS.keys()
    for method, (problem, offered) in itertools.product(family.METHODS, OFFERED[name].items()):
        needed = NEEDED.get(method, "Split" if name.endswith("heron_sfl") else "Smooth")
        if needed in offered.split(", "):
            assert groups_of(family, method, problem)
        else:
            told = f"--method {method} needs a {needed} problem; --problem {problem} offers {offered}"
            assert complaint(groups_of, family, method, problem) == told


class Base(Protocol):
    """A role with one member that has a default."""

    @overridable
    def colour(self) -> str:
        """What it looks like."""
        return f"that of {type(self).__name__}"

    def size(self, n: int) -> int:
        return n


@dataclass(frozen=True)
class WithField(Base):
    colour: str
    n: int


class WithMember(Base):
    colour = "red"


class WithProperty(Base):
    @property
    def colour(self) -> str:
        return "blue"


def test_a_field_a_member_and_a_property_replace_a_default() -> None:
    """Mutations: a plain property, which refuses the field's value; one that a dataclass takes for its default."""
    assert (WithField("green", 2).colour, WithMember().colour, WithProperty().colour) == ("green", "red", "blue")
    assert replace(WithField("green", 2), n=3).colour == "green"
    with pytest.raises(TypeError, match="colour"):
        WithField(n=2)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Least(Problem):
    """The members that a `Lipschitz` problem needs, and no more."""

    n: int = 2

    def losses(self, i: int, x: Any, data: Any, batch: Any = None) -> Any:
        return np.zeros(len(x))

    def project(self, i: int, x: Any) -> Any:
        return x


@dataclass(frozen=True)
class LeastBilevel(Least, BilevelProblem):
    """The members that a `Bilevel` problem needs."""

    n_lower: int = 3
    f = gradient_h = curvature = None


def test_what_a_problem_leaves_out_has_a_default() -> None:
    problem: Any = Least()
    assert (problem.kernel_name(8), problem.x0, problem.constrained, problem.lipschitz) == ("own", "zero", False, None)
    assert (problem.device, problem.batched_clients, problem.smooth_twin, problem.hits) == ("cpu", 1, False, None)
    assert np.isnan(problem.flops_evaluation(8)) and problem.score(np.zeros(2), [1]) == {}
    drawn = np.random.default_rng(1).standard_normal(2)
    np.testing.assert_array_equal(problem.initial(np.random.default_rng(1)), 0.01 * drawn)
    assert BilevelProblem not in type(problem).__mro__
    lower: Any = LeastBilevel()
    assert (lower.solution, lower.project_lower, lower.solution_only) == (None, None, False)
    assert lower.initial_lower().tolist() == [0.0] * 3 and lower.parts("all") == ("all", "all")


def test_defaults_and_stubs_of_a_base_are_no_members_of_a_class() -> None:
    """Mutation: a class that inherits a role is taken to have all of its functions."""

    @dataclass(frozen=True)
    class Half(Smooth):
        def loss(self, x: Any, data: Any) -> float:
            return 0.0

    assert lacking(Half)["Smooth"] == ["n", "gradient", "flops", "score"]
    assert lacking(Least)["Lipschitz"] == [] and lacking(LeastBilevel)["Bilevel"] == []
    assert list(roles_of(LeastBilevel)) == ["Lipschitz", "Bilevel"]


def shown(file: str, pattern: str) -> str:
    """The Python block of a README that has this text in it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.S)
    return next(block for block in blocks if pattern in block)


def test_the_readmes_method_has_the_defaults(written: Callable[[str], str]) -> None:
    """FedSGD as the README shows it. Mutation: a member without a default."""
    cls: Any = method_of(zo_hfl, f"{written(shown('README.md', 'class FedSGD'))}:FedSGD")
    of = cls(Setting(Least(), Streams(1), ([1, 2],)), gamma=0.25)
    assert (of.kernel, of.grows_with, of.costs(), of.needs, role_of(cls)) == ("", (), {}, None, None)
    assert of.plan(3) == {"clients": 1}
    assert (of.work(), loads_of(of), of.backend.batched_clients, of.gamma) == (None, None, 1, 0.25)
    assert of.start().x.shape == (2,)


def test_the_readmes_problem_has_the_defaults(written: Callable[[str], str]) -> None:
    """CVaR as its page shows it is the class that was named, with a base. Mutation: one that is made at run time."""
    module = written(shown(".docs/howto/own_problem.md", "class CVaR"))
    choice = problem_of(fedrzo, f"{module}:CVaR")
    assert list(choice.roles) == ["Lipschitz"]
    (cls,) = (cls for cls in choice.groups.values() if cls.__name__ == "CVaR")
    assert cls is sys.modules[module].CVaR and pickle.loads(pickle.dumps(cls)) is cls
    assert cls(None).kernel_name(64) == "own"


@final
@dataclass(frozen=True)
class Finished(Method[Any]):
    """A class that nobody may inherit."""

    setting: Setting[Any]

    def start(self) -> Any: ...

    def round(self, state: Any, r: int, clients: Any) -> Any: ...

    def evaluate(self, state: Any, r: int, clients: Any) -> Any: ...


def test_a_method_of_ones_own_is_the_class_that_was_named() -> None:
    """No subclass of it, so that `is` and pickle hold, and @final. Mutation: a class that is made at run time."""
    found = method_of(fedrzo, f"{__name__}:Finished")
    assert found is Finished and pickle.loads(pickle.dumps(found)) is Finished
    with pytest.raises(UserError, match=r"Least is no method, it lacks the base class, as in class Least\(zofl_mpi.M"):
        method_of(fedrzo, f"{__name__}:Least")


def test_a_method_says_where_it_computes_by_its_problem() -> None:
    @dataclass(frozen=True)
    class Many(Backend):
        batched_clients: int = 5
        device: str = "cuda:1"

    @dataclass(frozen=True)
    class Steps(Method[Any]):
        setting: Setting[Any]

    made: Any = Steps
    of = made(Setting(Many(), Streams(1), ()))
    assert (program_of(of).backend.batched_clients, program_of(of).backend.device) == (5, "cuda:1")
    assert (program_of(None).backend, program_of(object()).backend, HOST.batched_clients) == (HOST, HOST, 1)
    for needs, role in ((Bilevel, "Bilevel"), ("Bilevel", "Bilevel"), (None, None)):
        made.needs = needs
        assert role_of(made) == role


ALLOWED = {
    "errors.py": {"argv"},  # of sys, which has none while Python starts
    "api/arguments.py": {"choice", "name"},  # of whatever a script gives
    "api/simulation.py": {"on_end"},  # of a callback
    "api/ranks.py": {"__qualname__", "__globals__"},  # of whatever is sent
    "api/processes.py": {"__module__", "__qualname__"},  # likewise
    "data/memory.py": {"detach", "column_names", "__len__", "__getitem__"},  # likewise
    "engine/batching.py": {"call"},  # thread-local
    "engine/device.py": {"sched_getaffinity", "mallopt"},  # of this system
    "engine/memory.py": {"features"},  # of the data, of whatever kind
    "engine/hidden.py": {"__dict__", "__get__"},  # of anybody's class
    "engine/setting.py": {"drawn"},  # likewise
    "engine/lazy.py": {"__spec__", "_initializing"},  # of torch while it is imported
    "numerics/optimisers.py": {"clone"},  # tensors and arrays
    "problems/adapters.py": {"get_delta_weight", "get_base_layer"},  # peft's layers
    "problems/lm_files.py": {"backend_tokenizer", "quantization_config"},  # transformers' tokeniser and configuration
    "problems/lm_models.py": {"max_position_embeddings"},  # a configuration of transformers
    "problems/objective.py": {"reduction", "__qualname__"},  # torch's losses, and whatever a script gives
    "problems/split_lm.py": {"predicted"},  # a note on a tensor
    "settings/calls.py": {"__name__"},  # of whatever a script gives
    "rounds/split/server.py": {"double"},  # tensors and numbers
    "run/mpi/communicator.py": {"rank", "size", "Test"},  # communicators and requests
    "api/checking.py": {"__dict__"},  # of anybody's class
    "run/command/flags.py": {"USED_WITH"},  # of a class of flags
    "run/command/imported.py": {"choice"},  # an object of a user's module
    "run/loop/questions.py": {"__self__"},  # the object of a bound method
    "settings/split_lm.py": {"trained_on"},  # a model's configuration, maybe of others
}
"""Names that are looked up on objects of Python, of libraries or of the system; none on a problem or a method."""


def looked_up(source: str) -> set[str]:
    """The names, written out, that `getattr` and `hasattr` are called with."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) > 1]
    named = [call.args[1] for call in calls if isinstance(call.func, ast.Name) and call.func.id in LOOKUPS]
    return {name.value for name in named if isinstance(name, ast.Constant)}


LOOKUPS = ("getattr", "hasattr")


def test_no_capability_is_looked_up_by_name() -> None:
    for file in PACKAGE.rglob("*.py"):
        assert looked_up(file.read_text()) <= ALLOWED.get(file.relative_to(PACKAGE).as_posix(), set()), file
    assert looked_up("if hasattr(problem, 'device'):\n    getattr(method, 'plan', None)") == {"device", "plan"}
