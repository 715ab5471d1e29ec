"""FedAvg as a loop by hand: the models of all clients in one tensor, so that one product serves all of them.

Softmax regression by its gradient in closed form and torch.bmm, the CNN by torch.func's vmap of grad. With the word
`plain` as one writes it without a framework: one client after the other, autograd, optim.SGD.
"""

import sys
import time

import torch

from tests.bench.peers.work import Work, finish, load


def main() -> None:
    work = load()
    plan = work.plan
    torch.manual_seed(plan.seed)
    x, y = torch.from_numpy(work.shaped(work.x)), torch.from_numpy(work.y)
    ends = torch.from_numpy(work.ends)
    sizes = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype))
    m, starts, weights = len(ends), ends - sizes, sizes / sizes.sum()
    module = network(work)
    state = {name: p.detach().clone() for name, p in module.named_parameters()}

    def loss(params: dict[str, torch.Tensor], inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(module, params, inputs)
        return torch.nn.functional.cross_entropy(logits, labels)

    gradients = torch.func.vmap(torch.func.grad(loss))

    def in_turn() -> dict[str, torch.Tensor]:
        total = {name: torch.zeros_like(p) for name, p in state.items()}
        for weight, low, size in zip(weights, starts, sizes, strict=True):
            module.load_state_dict(state)
            rule = torch.optim.SGD(module.parameters(), plan.step)
            for _ in range(plan.steps):
                rows = low + torch.randint(int(size), (plan.batch,))
                rule.zero_grad()
                torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
                rule.step()
            for name, p in module.named_parameters():
                total[name] += weight * p.detach()
        return total

    def together() -> dict[str, torch.Tensor]:
        models = {name: p.expand(m, *p.shape).clone() for name, p in state.items()}
        for _ in range(plan.steps):
            rows = starts[:, None] + (torch.rand(m, plan.batch, dtype=torch.float64) * sizes[:, None]).long()
            inputs, labels = x[rows], y[rows]
            if plan.problem == "softmax":
                W = models["weight"]  # (m, C, 784)
                residuals = torch.softmax(torch.bmm(inputs, W.mT), dim=2)
                residuals.scatter_add_(2, labels[:, :, None], -torch.ones(m, plan.batch, 1))
                W.baddbmm_(residuals.mT, inputs, alpha=-plan.step / plan.batch)
            else:
                for name, g in gradients(models, inputs, labels).items():
                    models[name].sub_(g, alpha=plan.step)
        return {name: torch.tensordot(weights, p, 1) for name, p in models.items()}

    seconds = []
    for _ in range(plan.rounds):
        begin = time.perf_counter()
        state = in_turn() if "plain" in sys.argv[3:] else together()
        seconds.append(time.perf_counter() - begin)
    module.load_state_dict(state)
    with torch.no_grad():
        right = module(torch.from_numpy(work.shaped(work.test_x))).argmax(1).numpy() == work.test_y
    finish(seconds, float(right.mean()))


def network(work: Work) -> torch.nn.Module:
    """Softmax regression or the package's small CNN, with the work's first parameters."""
    if work.plan.problem == "cnn":
        from zofl_mpi.problems.models import CNN

        module: torch.nn.Module = CNN((1, 28, 28), work.classes)
    else:
        module = torch.nn.Linear(work.x.shape[1], work.classes, bias=False)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(work.x0), module.parameters())
    return module


if __name__ == "__main__":
    main()
