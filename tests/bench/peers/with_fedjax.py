"""FedAvg of FedJAX, `fedjax.algorithms.fed_avg`, on the backend that the command line names: jit or pmap.

jit compiles a client's step, whose products XLA spreads over the cores. pmap computes as many clients at once as there
are devices, here one of XLA's virtual devices for each core.
"""

import sys
import time

import fedjax
import haiku as hk
import jax
import numpy as np

from tests.bench.peers.work import finish, load


def main() -> None:
    work = load()
    plan, classes = work.plan, work.classes
    images = plan.problem == "cnn"

    def channels_last(inputs: np.ndarray) -> np.ndarray:
        return inputs.reshape(-1, 28, 28, 1) if images else inputs

    def forward(batch):
        if not images:
            return hk.Linear(classes, with_bias=False)(batch["x"])
        layers = []
        for width in (16, 32):
            layers += [hk.Conv2D(width, 5), hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID"), jax.nn.relu]
        layers += [lambda h: h.transpose(0, 3, 1, 2), hk.Flatten()]  # torch's order, for the same first parameters
        return hk.Sequential([*layers, hk.Linear(128), jax.nn.relu, hk.Linear(classes)])(batch["x"])

    model = fedjax.create_model_from_haiku(
        hk.transform(forward),
        {"x": channels_last(work.test_x[:1]), "y": work.test_y[:1]},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
        {"accuracy": fedjax.metrics.Accuracy()},
    )
    fedjax.set_for_each_client_backend(sys.argv[3])
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(plan.step),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=plan.batch, num_epochs=None, num_steps=plan.steps),
    )
    data = [fedjax.ClientDataset({"x": channels_last(x), "y": y}) for x, y in work.clients]
    state, seconds = algorithm.init(filled(model.init(jax.random.PRNGKey(0)), work.x0)), []
    for r in range(plan.rounds):
        begin = time.perf_counter()
        keys = jax.random.split(jax.random.PRNGKey(plan.seed + 1 + r), len(data))
        state, _ = algorithm.apply(state, [(b"%d" % i, d, keys[i]) for i, d in enumerate(data)])
        jax.block_until_ready(state.params)
        seconds.append(time.perf_counter() - begin)
    test = fedjax.ClientDataset({"x": channels_last(work.test_x), "y": work.test_y})
    score = fedjax.evaluate_model(model, state.params, test.padded_batch(batch_size=1000))
    finish(seconds, float(score["accuracy"]))


def filled(tree, x0: np.ndarray):
    """The tree of haiku's parameters with torch's in it: taps are (O, I, H, W) there, matrices (O, I)."""
    found: dict[str, dict[str, jax.Array]] = {}
    at = 0
    for layer, parts in tree.items():
        found[layer] = {}
        for name in ("w", "b")[: len(parts)]:
            shape = parts[name].shape
            piece = x0[at : at + parts[name].size].reshape(*shape[-2:][::-1], *shape[:-2])
            found[layer][name] = jax.numpy.asarray(
                piece.transpose(*range(2, piece.ndim), 1, 0) if name == "w" else piece
            )
            at += piece.size
    return found


if __name__ == "__main__":
    main()
