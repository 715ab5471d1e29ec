"""SplitLoRA: split fine-tuning of a language model, of which low-rank adapters alone train.

Lin, Hu, Zhang, Chen, Fang, Chen, Li, Vepakomma, Gao, "SplitLoRA: A Split Parameter-Efficient Fine-Tuning Framework for
Large Language Models", arXiv:2407.00952.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from zofl_mpi.engine.clients import Clients
from zofl_mpi.engine.fields import part
from zofl_mpi.rounds.split.lockstep import LockstepMethod
from zofl_mpi.rounds.split.messages import State
from zofl_mpi.rounds.split.training import Training


@final
@dataclass(frozen=True)
class SplitLoRA(LockstepMethod):
    """SFLV2 with the defaults of SplitLoRA's code; what trains and travels is what the problem leaves to train.

    On a language model with adapters, W x + (alpha/r) B A x, these are the entries of A and B: theta_c and theta_s are
    flat vectors of nothing else. The average of the clients' parts is thus that of their A and that of their B, which
    is not the average of the products B A; so it is in the code.

    The code averages every 100 steps, uniformly, from a snapshot of the clients' adapters that it takes before the
    step, so that the average is one step old and the newest step is lost; here h = 100 local steps end and then their
    results are averaged. Optimisers are kept, at both sides. Its sizes then fall linearly (--schedule linear, with the
    number of steps as --decay-steps); here they stay after the warm-up unless this is asked for. The clients take
    their turns in an order drawn anew each round.
    """

    training: Training = part(
        batch=8,
        h=100,
        lr_client=2e-4,
        lr_server=2e-4,
        optimiser="adamw_transformers",
        weight_decay=0.01,
        warmup=500,
        weights="uniform",
    )

    def round(self, state: State, r: int, clients: Clients) -> State:
        """Fine-tuning and aggregation stage of the paper."""
        return self.one_server(state, r, clients)
