"""FedAvg of pfl-research, `pfl.algorithm.federated_averaging`, in one process or in several that torchrun starts.

A user's data set of a round is the samples of its steps, drawn when pfl asks for it.
"""

import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from tests.bench.peers.stacked import network
from tests.bench.peers.work import finish, load


class Net(torch.nn.Module):
    """The network, with the two methods that pfl asks for."""

    def __init__(self, layers: torch.nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        right = (self.layers(inputs).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}


class Stopwatch(TrainingProcessCallback):
    """The times at which rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.ends.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    work = load()
    plan = work.plan
    torch.manual_seed(plan.seed)
    generator = np.random.default_rng([plan.seed, pytorch_ops.distributed.global_rank])
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in work.clients]

    def drawn(i: int) -> PyTorchTensorDataset:
        x, y = data[i]
        rows = torch.from_numpy(generator.integers(len(y), size=plan.steps * plan.batch))
        return PyTorchTensorDataset((x[rows], y[rows]))

    users = FederatedDataset(drawn, get_user_sampler("minimize_reuse", range(len(data))))
    net, watch = Net(network(work)), Stopwatch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=plan.rounds,
            evaluation_frequency=plan.rounds,
            train_cohort_size=len(data),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=plan.step, local_batch_size=plan.batch),
        NNEvalHyperParams(local_batch_size=None),
        [watch],
    )
    test = torch.from_numpy(work.shaped(work.test_x)), torch.from_numpy(work.test_y)
    if pytorch_ops.distributed.global_rank == 0:
        finish([0.0, *np.diff(watch.ends)], net.metrics(*test)["accuracy"].overall_value)


if __name__ == "__main__":
    main()
