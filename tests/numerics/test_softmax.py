"""Softmax regression: derivatives by Taylor's theorem and autograd, kernels against the generic loop."""

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.numerics.first_order import COMPILED, KERNELS
from tests.numerics.samples import DATA, STREAMS, UNIT, WEIGHTS, C, N, batches, close, p, points, terms
from zofl_mpi.data import Dataset
from zofl_mpi.engine.setting import Method, Work
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.descent import descend
from zofl_mpi.problems.kernels import softmax as kernels
from zofl_mpi.problems.softmax import Softmax
from zofl_mpi.problems.terms import ProximalSteps


def softmax(**settings):
    """Arguments of `ProximalTerms` and of `Softmax`."""
    own = terms(**{name: settings.pop(name) for name in ("lam", "mu", "radius") if name in settings})
    return Softmax(p, C, weights=WEIGHTS, terms=own, **({"dtype": np.float64} | settings))


def gradient_h(problem, i, data, x, y, batch):
    """(k, n) the gradients of h_i(x, .) at the rows of y on one mini-batch."""
    own = np.stack([problem.gradient(row, data, batch) for row in y])
    return np.asarray(own + problem.terms.of_client(i)[0] * (y - x), problem.dtype)


def generic(problem, i, data, x, y, samples, steps):
    """Algorithm 2 as it is written."""
    return descend(
        y,
        lambda z, t: gradient_h(problem, i, data, x, z, samples[t]),
        steps=len(steps),
        stepsize=lambda t: steps[t],
        project=lambda z: problem.project(i, x, z),
    )


TOLERANCES = {np.float64: 1e-12, np.float32: 1e-4}
COMPUTED = [("numpy", dtype, name) for dtype in TOLERANCES for name in DATA]
COMPUTED += [("numba", np.float64, name) for name in DATA]  # each type of inputs and of points is compiled for seconds
COMPUTED += [("numba", np.float32, name) for name in DATA if name != "floats"]
EACH = pytest.mark.parametrize(
    ("kernel", "dtype", "name"), [pytest.param(*own, marks=[COMPILED] * (own[0] == "numba")) for own in COMPUTED]
)


@EACH
def test_descend_is_a_plain_loop(kernel, dtype, name):
    """Mutations: the shift with the inputs' factor s wrong, or its square; shift not shaped as the model; the
    hierarchical mu or radius; mu of the start in place of the displacement; a step too many."""
    problem, steps = softmax(dtype=dtype, kernel=kernel, mu=(2.0,), radius=(0.01,)), 0.3 / np.arange(1, 8)
    start, shift = points(2, problem.n, 1, dtype)
    kept = start.copy()
    for B, mu, against in ((1, 0.0, None), (1, 0.8, shift), (5, 0.0, None), (5, 0.8, shift)):
        found, y = problem.descend(DATA[name], start, batches(7, B), steps, mu=mu, shift=against), start
        for gamma, batch in zip(steps, batches(7, B), strict=True):
            g = problem.gradient(y.astype(dtype), DATA[name], batch)
            y = y - gamma * (g + mu * (y - start) + (0 if against is None else against))
        assert found.dtype == dtype and np.linalg.norm(y - start) > 1e-3
        close(found, y, TOLERANCES[dtype])
    assert np.array_equal(start, kept)


@EACH
@pytest.mark.parametrize("settings", [{"radius": (0.3, 0.2, np.inf)}, {"mu": (0.0,)}], ids=str)
def test_lower_is_the_generic_loop(kernel, dtype, settings, name):
    """Of two points together. Mutations: s for s^2; keep without mu; 1/B; another client's mu, radius; radius not
    scaled; order of steps; a softmax over the classes of all models; labels of the first model only; one norm for all
    rows."""
    problem = softmax(dtype=dtype, kernel=kernel, **settings)
    x, y = points(2, problem.n, 1, dtype), points(2, problem.n, 2, dtype)
    for B in (1, 2, 5, 33):
        samples, steps = batches(20, B), 0.5 / np.arange(1, 21)
        result = problem.solve_client(1, DATA[name], x, y, samples, steps)
        assert result.dtype == dtype
        close(result, generic(problem, 1, DATA[name], x, y, samples, steps), TOLERANCES[dtype])
        if settings.get("radius"):
            assert np.max(np.linalg.norm(result - x, axis=1)) > 0.19  # the constraint is active


@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_of_steps_do_not_show(kernel, monkeypatch):
    """One step a block, or all in one: equal to rounding, since BLAS sees a batch at other addresses. Mutations: t
    counted within the block; a stale end of the buffer."""
    problem = softmax(kernel=kernel)
    x, results = points(2, problem.n), []
    for size in (1, 5 * p * 8 * 3, 2**20):
        monkeypatch.setattr("zofl_mpi.problems.kernels.softmax.BLOCK_BYTES", size)
        results.append(problem.solve_client(0, UNIT, x, x, batches(31, 5), np.full(31, 0.2)))
    close(results[1], results[0])
    close(results[2], results[0])


def test_products_in_pieces_are_the_whole_product(monkeypatch):
    """Mutations: a piece left out or taken twice, also where the pieces are not equal."""
    problem = softmax(kernel="numpy")
    x = points(2, problem.n)
    whole = problem.solve_client(0, UNIT, x, x, batches(10, 33), np.full(10, 0.2))
    for size in (1, 2 * C * p * 10, 2 * C * p * 5, 2 * C * 33 * 3):
        monkeypatch.setattr("zofl_mpi.problems.kernels.softmax.SMALL_PRODUCT", size)
        close(problem.solve_client(0, UNIT, x, x, batches(10, 33), np.full(10, 0.2)), whole)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["bytes in [0, 1]", "per feature"])
def test_radius_zero_and_no_steps_leave_what_they_should_bit_for_bit(kernel, name):
    """Mutation: returning (s x) / s."""
    problem = softmax(kernel=kernel, dtype=np.float32, radius=(0.0,))
    x, y = points(200, problem.n, 1, np.float32), points(200, problem.n, 2, np.float32)
    assert np.array_equal(problem.solve_client(0, DATA[name], x, y, batches(5, 3), np.full(5, 0.1)), x)
    for end in (
        lambda *none: problem.solve_client(0, DATA[name], x, y, *none),
        lambda *none: problem.descend(UNIT, y[0], *none),
    ):
        same = end(batches(0, 3), np.zeros(0))
        assert np.array_equal(same, y if same.ndim > 1 else y[0])
        assert not np.shares_memory(same, y)


def test_kernels_compute_with_copies_wherever_the_callers_arrays_lie(monkeypatch):
    """Received messages lie anywhere. Mutations: views of the caller's arrays; points that are not the caller's."""
    problem, seen = softmax(kernel="numpy", dtype=np.float32), []
    memory = np.empty(2 * problem.n + 16, np.float32)
    kept = lambda x, d, *_: seen.append((x.copy(), np.shares_memory(x, memory) or np.shares_memory(d, memory)))  # noqa: E731
    monkeypatch.setitem(kernels.KERNELS, "numpy", kept)
    for offset in range(9):
        x = memory[offset : offset + 2 * problem.n].reshape(2, -1)
        x[:] = points(2, problem.n)
        problem.solve_client(0, UNIT, x, x, batches(20, 5), np.full(20, 0.1))
        assert not seen[-1][1]
        np.testing.assert_array_equal(seen[-1][0], seen[0][0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_large_logits_overflow_nowhere(kernel):
    """Mutation: no subtraction of the largest logit."""
    problem = softmax(kernel=kernel, dtype=np.float32)
    x = 1e4 * points(2, problem.n, dtype=np.float32)
    assert np.isfinite(problem.f1(x[0], UNIT))
    assert np.isfinite(problem.gradient_f1(x[0], UNIT, np.arange(N))).all()
    for B in (1, 9):
        assert np.isfinite(problem.solve_client(0, UNIT, x, x, batches(5, B), np.full(5, 0.1))).all()


def test_f2_carries_the_number_of_clients_and_positions_are_checked():
    """f_{2,i} = m rho_i lam/2 |x - y|^2, in float64. Mutations: no m; no 1/2; rho of another client; a float32
    difference."""
    problem = softmax(dtype=np.float32)
    x, y = points(2, problem.n, dtype=np.float32)
    expected = 3 * 0.35 * 0.4 * sum((float(a) - float(b)) ** 2 for a, b in zip(x, y, strict=True))
    assert abs(problem.f2(1, x, y) / expected - 1) < 1e-14
    problem = softmax()
    x = points(1, problem.n)
    for position in (-1, N):
        with pytest.raises(IndexError, match=f"0..{N - 1}"):
            problem.solve_client(0, UNIT, x, x, np.array([[0, position]]), np.ones(1))


MODELS = [(10, 64), (10, 170), (62, 64), (10, 784), (62, 784), (2, 2048), (2, 2049), (10, 3072), (1, 4095), (4, 1024)]


@pytest.mark.parametrize(("classes", "features"), MODELS)
def test_auto_follows_from_sizes_and_what_is_installed(classes, features, monkeypatch):
    """Mutations: a bound that moves; batch, clients or data that count; a kernel that is named and not computed."""
    monkeypatch.setattr(kernels, "numba_installed", lambda: True)
    name = "numba" if classes * features >= 4096 and features <= 2048 else "numpy"
    for clients in (1, 1000):
        problem = Softmax(features, classes, weights=np.ones(clients) / clients)
        assert [problem.kernel_name(B) for B in (1, 10**5)] == [name, name]
        assert {problem.kernel_for(Work(B), data).name for B in (1, 10**5) for data in (UNIT, None)} == {name}
        assert problem.kernel_for(Work(8), UNIT).reason.startswith(f"{name}, as for n = {classes * features}")
    monkeypatch.setattr(kernels, "numba_installed", lambda: False)
    assert problem.kernel_for(Work(8), UNIT) == ("numpy", "numpy: numba is not installed", "")


def test_what_a_kernel_follows_from_has_no_place_for_a_runs_length():
    """Mutation: rounds, or what grows with them, among what a method states for this choice."""
    assert [field.name for field in dataclasses.fields(Work)] == ["batch"]
    assert list(inspect.signature(Method.work).parameters) == ["self"]


def test_the_kernel_that_is_named_is_computed(monkeypatch):
    """Mutation: the record names one kernel, another computes."""
    computed = []
    for name in kernels.KERNELS:
        monkeypatch.setitem(kernels.KERNELS, name, lambda *_, name=name: computed.append(name))
    monkeypatch.setattr(kernels, "numba_installed", lambda: True)
    x = points(2, softmax().n)
    for least, name in ((10**9, "numpy"), (1, "numba")):
        monkeypatch.setattr(kernels, "COMPILED_FROM_N", least)
        softmax().solve_client(0, UNIT, x, x, batches(1, 4), np.ones(1))
        assert softmax().kernel_name(4) == name == computed.pop()
    monkeypatch.setattr(kernels, "numba_installed", lambda: False)
    with pytest.raises(UserError, match=r"zofl_mpi\[fast\]"):
        softmax(kernel="numba")


def test_a_run_that_goes_on_keeps_its_kernel_where_it_can(monkeypatch):
    """Mutations: a name that no kernel has; the compiled one without numba; one that is chosen anew."""
    for there in (True, False):
        monkeypatch.setattr("zofl_mpi.problems.softmax.numba_installed", lambda: there)  # noqa: B023
        names = [softmax().kernel_for(Work(32), UNIT, before).name for before in ("numpy", "numba", "numba-blas", "")]
        assert names == ["numpy", "numba" if there else "numpy", "numpy", "numpy"]
    assert softmax(kernel="numpy").kernel_for(Work(32), UNIT, "numba") == ("numpy", "", "")


def test_importing_the_problem_loads_neither_torch_nor_numba():
    """Eleven ranks start on two cores."""
    imports = "import zofl_mpi.problems.softmax, zofl_mpi.problems.analytic.quadratic, zofl_mpi.numerics.zo, sys"
    code = f"{imports}; print(sys.modules.keys() & {{'torch', 'numba'}})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@COMPILED
@pytest.mark.parametrize("bounds", ["free", "shifted", "in a ball"])
@pytest.mark.parametrize(
    ("features", "classes", "models"), [(16, 2, 1), (50, 3, 1), (50, 3, 2), (7, 3, 3), (65, 10, 2)]
)
def test_the_compiled_kernels_tiles_are_the_steps_of_numpys(features, classes, models, bounds):
    """Sizes that fill no tile, no vector, no piece; y and not x at the start. Mutations: one vector too few; a row or
    column left out or moved twice; the decay at each piece, or after the shift; x + d made too early, or not after the
    projection; a residual's place in its group of four."""
    generator = STREAMS(Purpose.SYNTHETIC, t=features)
    inputs = generator.integers(0, 256, (80, features), dtype=np.uint8)
    inputs.flags.writeable = False
    data = Dataset(inputs, generator.integers(0, classes, 80), classes, scale=1 / 255)
    x, y, shift = generator.standard_normal((3, models, features * classes))
    radius = 0.9 * np.linalg.norm(y - x, axis=1).min() if bounds == "in a ball" else np.inf
    for size in (1, 3, 4, 7, 32, 33, 50, 64, 70, 71):
        steps, sizes = generator.integers(0, 80, (4, size)), np.full(4, 0.2)
        numpy, compiled = (
            Softmax(features, classes, weights=np.ones(1), kernel=kernel, dtype=np.float64).after_steps(
                x, y, ProximalSteps(data, steps, sizes, 0.7, radius, shift if bounds == "shifted" else None)
            )
            for kernel in ("numpy", "numba")
        )
        np.testing.assert_allclose(compiled, numpy, rtol=0, atol=1e-12)


@COMPILED
def test_the_compiled_kernel_is_prepared():
    """Mutations: another kernel; other types than those of the run, which would be compiled again."""
    from zofl_mpi.problems.kernels import softmax_numba

    problem, x = softmax(dtype=np.float32), np.zeros((2, C * p), np.float32)
    problem.prepare("numpy", UNIT)
    problem.prepare("numba", UNIT)
    before = list(softmax_numba.advance.signatures)
    problem.solve_client(0, UNIT, x, x, batches(3, 4), np.full(3, 0.1))
    assert softmax_numba.advance.signatures == before != []


@pytest.mark.slow
@COMPILED
def test_the_process_that_compiles_and_those_that_load_have_the_same_bits(tmp_path):
    """Mutation: functions called by the compiled one instead of becoming part of it."""
    code = (
        "import numpy as np; from tests.numerics.test_softmax import STREAMS, Dataset, Purpose, Softmax\n"
        "g = STREAMS(Purpose.BATCH); data = Dataset(g.integers(0, 256, (90, 784), np.uint8), g.integers(0, 10, 90), 10,"
        "scale=1 / 255)\n"
        "ends = [Softmax(784, 10, weights=np.ones(1), kernel='numba').descend(data, np.zeros(7840, np.float32),"
        "g.integers(0, 90, (20, B)), np.full(20, 0.1)) for B in (1, 7, 32, 64)]\n"
        "print(np.stack(ends).tobytes().hex())"
    )
    told = []
    for seed in ("0", "1"):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        told.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert any(tmp_path.rglob("*.nbc"))
    assert told[0] == told[1] and len(told[0]) > 4 * 7840 * 8


def halves(values: Any) -> float:
    """Half of the sum of numbers of whatever type."""
    total = 0.0
    for value in values:
        total += value / 2
    return total


def test_code_for_other_types_under_ones_number_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two processes may leave that compiled at once. Mutation: whatever lies in the file is run."""
    numba = pytest.importorskip("numba")
    from zofl_mpi.problems.kernels.softmax_numba import compiled

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    wide, narrow = np.arange(100.0), np.arange(100, dtype=np.float32)
    first = compiled(halves)
    assert first(narrow) == first(wide) == 2475
    one, two = sorted(tmp_path.rglob("*.nbc"))
    for old, new in ((one, tmp_path / "kept"), (two, one), (tmp_path / "kept", two)):
        old.rename(new)
    for fresh in (True, False):  # compiled again; then found
        again = compiled(halves)
        kernels.compile_for(again, [wide])
        assert again(wide) == 2475 and bool(again.stats.cache_misses) is fresh
