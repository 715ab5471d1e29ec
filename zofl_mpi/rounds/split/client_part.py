"""The client's part theta_c where it travels without an auxiliary head."""

from __future__ import annotations

from dataclasses import replace

from zofl_mpi.problems import Split
from zofl_mpi.rounds.split.messages import Model, State, Update


def own_part(problem: Split, state: State, r: int) -> Model:
    """The message that begins a round: theta_c alone."""
    return Model(state.theta[: problem.n_client], state.buffers, r, state.moments)


def padded(problem: Split, message: Model) -> Model:
    """The message with a head in its place, which no step looks at."""
    theta = problem.placed(message.theta)
    whole = theta.new_zeros(problem.local.n)
    whole[: theta.numel()] = theta
    return replace(message, theta=whole)


def with_head(problem: Split, state: State, mean: Update) -> Update:
    """The mean of the clients' parts with the head as it was: theta_l whole."""
    whole = state.theta.clone()
    whole[: problem.n_client] = mean.theta
    return replace(mean, theta=whole)
