"""The client's part theta_c where it travels without an auxiliary head."""

from __future__ import annotations

from dataclasses import replace

from zofl_mpi.rounds.split.client import kept
from zofl_mpi.rounds.split.messages import Model, State, Update
from zofl_mpi.rounds.split.training import Training
from zofl_mpi.run.clients import Client
from zofl_mpi.run.setting import Setting


def own_part(setting: Setting, state: State, r: int) -> Model:
    """The message that begins a round: theta_c alone."""
    return Model(state.theta[: setting.problem.n_client], state.buffers, r, state.moments)


def padded(setting: Setting, message: Model) -> Model:
    """The message with a head in its place, which no step looks at."""
    theta = setting.problem.placed(message.theta)
    whole = theta.new_zeros(setting.problem.local.n)
    whole[: theta.numel()] = theta
    return replace(message, theta=whole)


def own_update(setting: Setting, training: Training, client: Client) -> Update:
    """theta_c after the local steps."""
    whole = kept(training, client)
    return replace(whole, theta=whole.theta[: setting.problem.n_client].clone())


def with_head(setting: Setting, state: State, mean: Update) -> Update:
    """The mean of the clients' parts with the head as it was: theta_l whole."""
    new = state.theta.clone()
    new[: setting.problem.n_client] = mean.theta
    return replace(mean, theta=new)
