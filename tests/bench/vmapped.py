"""What torch.func.vmap would gain in a step of a small network by forward passes, and what it would cost.

    python -m tests.bench.vmapped

10 clients, each along 16 directions that all share, a network of 1,482 parameters, batches of 32, one thread. Compared
with the passes of each client alone, its modules bound to the perturbed parameters: vmap over clients, at a model that
they share or one of their own, and over clients and directions at once. Prints CPU milliseconds, by how much each is
faster, and whether its losses have the bits of a pass alone.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

CLIENTS, DIRECTIONS, BATCH, TURNS = 10, 16, 32, 7


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)).requires_grad_(
        False
    )
    names, bound = [name for name, _ in net.named_parameters()], list(net.parameters())
    x, y = torch.randn(CLIENTS, BATCH, 64), torch.randint(0, 10, (CLIENTS, BATCH))
    models = [[p + 1e-3 * torch.randn_like(p) for p in bound] for _ in range(DIRECTIONS)]

    def loss(model: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(net, dict(zip(names, model, strict=True)), (x,)), y)

    def alone() -> Tensor:
        found = []
        for i in range(CLIENTS):
            for model in models:
                for parameter, value in zip(bound, model, strict=True):
                    parameter.data = value
                found.append(cross_entropy(net(x[i]), y[i]))
        return torch.stack(found).view(CLIENTS, DIRECTIONS)

    def shared() -> Tensor:
        clients = vmap(loss, in_dims=(None, 0, 0))
        return torch.stack([clients(model, x, y) for model in models], 1)

    def own() -> Tensor:
        clients = vmap(loss)
        copies = ([v.expand(CLIENTS, *v.shape).contiguous() for v in model] for model in models)
        return torch.stack([clients(model, x, y) for model in copies], 1)

    def both() -> Tensor:
        stacked = [torch.stack(values) for values in zip(*models, strict=True)]
        return vmap(vmap(loss, in_dims=(0, None, None)), in_dims=(None, 0, 0))(stacked, x, y)

    with torch.no_grad():
        right, base = alone(), least(alone)
        for work in (alone, shared, own, both):
            seconds, same = least(work), torch.equal(work(), right)
            print(f"{work.__name__:8}{1e3 * seconds:8.2f} ms{base / seconds:7.2f}   same bits: {same}")


def least(work: Callable[[], Tensor]) -> float:
    """CPU seconds, the least of some turns."""
    found = []
    for _ in range(TURNS):
        since = time.process_time()
        work()
        found.append(time.process_time() - since)
    return min(found)


if __name__ == "__main__":
    main()
