"""Small data in memory, and the method that a user writes first."""

from dataclasses import dataclass

import numpy as np
import pytest

import zofl_mpi as zofl


def samples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A table of 8 columns, whose class is the sign of the first."""
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int)


@pytest.fixture(scope="session")
def data() -> zofl.Federation:
    clients = {"A": samples(50, 1), "B": samples(80, 2), "C": samples(30, 3)}
    return zofl.Federation.of_clients(clients, server=samples(40, 4), test=samples(60, 5), validation=0.1)


@dataclass(frozen=True)
class Model:
    x: np.ndarray
    r: int = 0


@dataclass(frozen=True)
class Gradient:
    g: np.ndarray


@dataclass(frozen=True)
class Report:
    test_accuracy: float = zofl.column("1", "share of test samples that x classifies correctly")


@dataclass(frozen=True)
class FedSGD(zofl.Method[Model]):
    """One mini-batch gradient of each client a round, averaged."""

    setting: zofl.Setting
    gamma: float = 0.5

    def start(self):
        return Model(self.setting.first_model())

    def round(self, model, r, clients):
        return Model(model.x - self.gamma * clients.mean(self.gradient, model).g, r + 1)

    def gradient(self, client, model):
        batch = self.setting.streams(zofl.Purpose.BATCH, r=model.r, i=client.i).integers(len(client.data), size=16)
        return Gradient(self.setting.problem.gradient(model.x, client.data, batch))

    def evaluate(self, model, r, clients):
        return Report(self.setting.problem.score(model.x, self.setting.test)["accuracy"])
