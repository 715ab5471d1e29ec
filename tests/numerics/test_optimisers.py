"""SGD, Adam and AdamW on flat tensors against torch's own, bit for bit (its loops over single tensors); transformers'
AdamW by hand.
"""

import math
from typing import Any

import pytest
import torch

from tests.numerics.split_methods import torchs
from zofl_mpi.errors import UserError
from zofl_mpi.numerics.optimisers import Optimiser, copied

RULES: list[dict[str, Any]] = [
    {"optimiser": "sgd"},
    {"optimiser": "sgd", "weight_decay": 0.1},
    {"optimiser": "sgd", "momentum": 0.9},
    {"optimiser": "sgd", "momentum": 0.5, "weight_decay": 0.1},
    {"optimiser": "adam"},
    {"optimiser": "adam", "weight_decay": 0.1},
    {"optimiser": "adamw", "weight_decay": 0.0},
    {"optimiser": "adamw", "weight_decay": 0.1},
]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: "-".join(map(str, rule.values())))
def test_twenty_steps_are_torchs_to_the_bit(rule: dict[str, Any], dtype: torch.dtype) -> None:
    """Gradients of sizes from 1e-6 to 1; one entry's gradient is always 0. Mutations: 0.999 for 0.9; no correction of a
    bias; eps inside the root; momentum times (1 - momentum); the decay after the momentum; AdamW's decay in the
    gradient, without the step size, or after the step."""
    start, gradients = drawn(33, dtype=dtype), drawn(20, 33, dtype=dtype, seed=2) * torch.logspace(-6, 0, 33)
    gradients[:, 5] = 0
    theirs, ours = torch.nn.Parameter(start.clone()), start.clone()
    reference, memory = torchs([theirs], Optimiser(**rule), 0.05), dict[str, Any]()
    for g in gradients.to(dtype):
        kept = g.clone()
        theirs.grad = g.clone()
        reference.step()
        Optimiser(**rule).step(ours, g, memory, 0.05)
        assert torch.equal(ours, theirs.detach()) and torch.equal(g, kept)
    assert not torch.equal(ours, start)


def test_three_steps_of_transformers_adamw_by_hand() -> None:
    """m_t = 0.9 m + 0.1 g, v_t = 0.999 v + 0.001 g^2; x - lr sqrt(1 - 0.999^t) / (1 - 0.9^t) m_t / (sqrt(v_t) + 1e-6),
    times 1 - lr wd. Gradients down to 1e-7, beside which its eps is large; the last one is 0. Mutations: eps after the
    correction, of 1e-8, or in the root; no correction of a bias; the decay before the step, or in the gradient."""
    lr, decay, start = 0.1, 0.5, [1.0, -2.0, 3.0]
    gradients = [[1.0, -1e-4, 1e-7], [0.5, 2e-4, -3e-7], [0.0, 0.0, 0.0]]
    theta, memory = torch.tensor(start, dtype=torch.float64), dict[str, Any]()
    x, m, v = list(start), [0.0] * 3, [0.0] * 3
    for t, g in enumerate(gradients, 1):
        Optimiser("adamw_transformers", weight_decay=decay).step(theta, torch.tensor(g).double(), memory, lr)
        for k, own in enumerate(torch.tensor(g).double().tolist()):
            m[k], v[k] = 0.9 * m[k] + 0.1 * own, 0.999 * v[k] + 0.001 * own**2
            size = lr * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            x[k] = (x[k] - size * m[k] / (math.sqrt(v[k]) + 1e-6)) * (1 - lr * decay)
        assert theta.tolist() == pytest.approx(x, rel=1e-13)
    assert Optimiser("adamw_transformers").memory_bytes(3, 8) == 2 * 3 * 8 + 8


@pytest.mark.parametrize("rule", [RULES[2], RULES[4]], ids=["momentum", "adam"])
def test_a_slice_moves_alone_and_a_step_of_size_0_changes_no_bit(rule: dict[str, Any]) -> None:
    theta, g = drawn(10), drawn(4, seed=4)
    start, memory = theta.clone(), dict[str, Any]()
    Optimiser(**rule).step(theta[3:7], g, memory, 0.0)
    assert torch.equal(theta, start)
    Optimiser(**rule).step(theta[3:7], g, memory, 0.1)
    moved = theta != start
    assert moved[3:7].all() and not moved[:3].any() and not moved[7:].any()


def test_a_copy_of_moments_has_tensors_of_its_own() -> None:
    """Mutation: the tensors themselves, which the next step moves in place."""
    own: dict[str, Any] = {"first": torch.zeros(4), "t": 3.0}
    copy = copied(own)
    Optimiser("adam").step(torch.zeros(4), torch.ones(4), copy | {"second": torch.zeros(4)}, 0.1)
    assert copy["first"].tolist() != [0.0] * 4 and own["first"].tolist() == [0.0] * 4 and copy["t"] == own["t"]


@pytest.mark.parametrize("rule", [RULES[2], RULES[4]], ids=["momentum", "adam"])
def test_moments_follow_theta_to_its_device(rule: dict[str, Any]) -> None:
    """From a checkpoint they come to the host. "meta" stands for a GPU. Mutation: moments used where they are."""
    memory: dict[str, Any] = {"first": torch.zeros(4), "second": torch.zeros(4), "t": 3}
    theta = torch.zeros(4, device="meta")
    Optimiser(**rule).step(theta, torch.zeros(4, device="meta"), memory, 0.1)
    assert memory["first"].device == theta.device


def test_a_momentum_of_1_is_refused() -> None:
    """Other numbers: tests/unit/test_ranges.py. Mutation: a sum that never forgets."""
    with pytest.raises(UserError, match=r"--momentum 1\.0: must be a number from 0 to below 1"):
        Optimiser(momentum=1.0)
