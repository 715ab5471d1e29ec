"""GPT-2's activation and the texts' counts by their formulas."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.numerics.gpt2_toy import END, VOCABULARY, whole
from zofl_mpi.problems import gpt2


@pytest.mark.parametrize("stored", [False, True], ids=["random", "stored"])
def test_the_activation_is_gpt_2s(tmp_path: Path, stored: bool) -> None:
    """GELU by tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), up to 5e-4 away from the exact one.

    Mutations: the exact GELU, a ReLU, SiLU; dropout.
    """
    if stored:
        whole().float().save_pretrained(tmp_path)
        model = gpt2.stored_model(str(tmp_path))
    else:
        model = gpt2.random_model("tiny", VOCABULARY, END)
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    expected = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    for block in model.transformer.h:
        assert torch.allclose(block.mlp.act(x), expected, rtol=1e-12, atol=1e-12)
    assert {getattr(model.config, name) for name in gpt2.OFF} == {0.0}
