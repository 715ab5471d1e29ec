"""The split methods on a problem that is no image: texts of differing length, a loss and a score for each token.

The problem is written against the protocol `Split` and its base class alone, as one of a user's own would be.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.numerics.split_methods import SPLIT, STREAMS, method, put, run, seeded, training
from zofl_mpi.engine.setting import Setting
from zofl_mpi.engine.streams import Purpose
from zofl_mpi.errors import UserError
from zofl_mpi.methods.fsl_sage import FSLSAGE
from zofl_mpi.problems import Split
from zofl_mpi.problems.flat import Flat
from zofl_mpi.rounds.split.messages import Smashed
from zofl_mpi.rounds.split.server import RecentUploads, in_order
from zofl_mpi.run.loop.local import LocalClients

WORDS, WIDTH, LONGEST, NONE = 11, 4, 9, -100
SIZES, TEST = (6, 10, 15), 7


@dataclass(frozen=True)
class Texts:
    tokens: tuple[np.ndarray[Any, Any], ...]

    def __len__(self) -> int:
        return len(self.tokens)


class Words(Split):
    """Predicts each token from the one before it. Batches are padded to their longest text."""

    allows_batch_of_one, equal_sizes, smashed_shape = True, False, (LONGEST - 1, WIDTH)
    device = arithmetic = "cpu"

    def __init__(self) -> None:
        self.client, self.auxiliary, self.server = (part.double() for part in seeded(parts))
        self.client_side, self.server_side = Flat([self.client, self.auxiliary]), Flat([self.server])

    @property
    def n_client(self) -> int:
        return self.client_side.sizes()[0]

    def samples(self, data: Texts, positions: Any) -> tuple[Tensor, Tensor]:
        texts = [data.tokens[i] for i in positions]
        length = max(map(len, texts)) - 1
        inputs, labels = np.zeros((len(texts), length), np.int64), np.full((len(texts), length), NONE)
        for row, text in enumerate(texts):
            inputs[row, : len(text) - 1], labels[row, : len(text) - 1] = text[:-1], text[1:]
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def augmentation(self, kind: str) -> Any:
        raise UserError(f"--augment {kind}: texts are no images")

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(count, LONGEST - 1, dtype=torch.int64), torch.zeros(count, LONGEST - 1, dtype=torch.int64)

    def upload_bytes(self, data: Texts, positions: Any) -> int:
        return self.label_bytes(data, positions) * WIDTH

    def label_bytes(self, data: Texts, positions: Any) -> int:
        return 8 * len(positions) * (max(len(data.tokens[i]) for i in positions) - 1)

    def kernel_name(self, batch_size: int) -> str:
        return "torch cpu"

    def to_device(self, value: Tensor) -> Tensor:
        return value

    def smash(self, inputs: Tensor) -> Tensor:
        return self.client(inputs)  # type: ignore[no-any-return]

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return loss_of(self.auxiliary(smashed), labels)

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return loss_of(self.server(smashed), labels)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with torch.no_grad():
            yield

    def score(self, inputs: Tensor, labels: Tensor) -> dict[str, float]:
        tokens = int((labels != NONE).sum())
        return {"tokens": tokens, "nats": tokens * float(self.server_loss(self.client(inputs), labels))}

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {"loss": sums["nats"] / sums["tokens"]}


def parts() -> tuple[nn.Module, nn.Module, nn.Module]:
    client = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    return client, nn.Linear(WIDTH, WORDS), nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, WORDS))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NONE)


def texts_setting(clients: int = 3) -> Setting[Split]:
    generator = STREAMS(Purpose.SYNTHETIC)

    def texts(count: int) -> Texts:
        lengths = generator.integers(2, LONGEST + 1, count)
        return Texts(tuple(generator.integers(0, WORDS, length) for length in lengths))

    *data, test = (texts(size) for size in (*SIZES, TEST))
    return Setting(Words(), STREAMS, tuple(data[:clients]), None, test, None, np.dtype(np.float64))


@pytest.mark.parametrize("cls", SPLIT)
def test_the_bytes_of_padded_batches_are_announced(cls: Any) -> None:
    """Round by round they differ. Mutations: every batch as long as the longest text; the lengths of round 0, kept."""
    of = method(cls, training(texts_setting(), h=0))
    clients = LocalClients(list(of.setting.data), method=of)
    state, each, labels = of.start(), [], []
    for r in range(3):
        state = of.round(state, r, clients)
        row, _ = clients.account()
        each.append(int(row.bytes_down.sum() + row.bytes_up.sum()))
        labels.append(state.label_bytes)
        plan = of.plan(r + 1)
        gib, own = (
            float(plan[f"GiB in {r + 1} rounds: {name}"].split("(")[1].split()[0])
            for name in ("all but labels", "labels")
        )
        assert gib * (r + 1) * 2**30 == pytest.approx(sum(each), rel=1e-4)
        assert own * (r + 1) * 2**30 == pytest.approx(sum(labels), rel=1e-4)
        heads = 3 * int(plan.get("further bytes down, each client, every 10 rounds", 0))
        assert plan["bytes down and up, all clients, a round"] + heads == each[0]
        assert plan["bytes of labels, all clients, a round"] == labels[0]
    assert len(set(labels)) > 1


@pytest.mark.parametrize("cls", SPLIT)
def test_a_report_weighs_every_token_alike(cls: Any) -> None:
    """Texts of 1 to 8 predicted tokens over three clients. Mutations: a mean over clients, batches or texts."""
    of = method(cls, training(texts_setting()))
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 1, clients=clients)
    client, _, server = (part.double() for part in seeded(parts))
    put(client, state.theta[: of.setting.problem.n_client], state.buffers)
    put(server, state.theta_s, state.buffers_s)
    losses: list[float] = []
    with torch.no_grad():
        for text in of.setting.test.tokens:
            logits = server(client(torch.from_numpy(text[:-1])))
            losses += cross_entropy(logits, torch.from_numpy(text[1:]), reduction="none").tolist()
    report = of.evaluate(state, 0, clients)
    assert report.test_loss == pytest.approx(math.fsum(losses) / len(losses), rel=1e-12)
    assert report.test_accuracy is None


@pytest.mark.parametrize("buffer", [7, 1000])
def test_sage_keeps_the_newest_texts_in_the_mini_batches_in_which_they_came(buffer: int) -> None:
    """Of two rounds. Mutations: the oldest; a mini-batch too many; texts of one beside labels of another."""
    plan = training(texts_setting())
    of = method(FSLSAGE, plan, buffer=buffer, l=100)
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 2, clients=clients)
    for i, data in enumerate(of.setting.data):
        sent = [of.setting.problem.samples(data, b)[1] for r in range(2) for b in plan.batches(i, r)]
        labels, smashed = (in_order(kept[str(i)]) for kept in (state.labels, state.smashed))
        assert sum(map(len, labels)) == min(buffer, 2 * len(data))
        newest = sent[-len(labels) :]
        newest[0] = newest[0][-len(labels[0]) :]
        assert all(torch.equal(a, b) for a, b in zip(labels, newest, strict=True))
        assert [s.shape[:2] for s in smashed] == [y.shape for y in labels]


def test_sage_aligns_on_every_mini_batch_of_its_texts() -> None:
    """The loss is the sum over the mini-batches, each with its own mean; 20 epochs halve it. The order of a
    checkpoint's names, 10 before 2, changes neither that nor what is kept. Mutations: that order; the last mini-batch
    alone; padding in the means; the mini-batches of labels in another order than those of texts."""
    of = method(FSLSAGE, training(texts_setting()), align_epochs=20, align_lr=0.05, l=4)
    clients = LocalClients(list(of.setting.data), method=of)
    state = run(of, 4, clients=clients)
    assert max(len(uploads) for uploads in state.labels.values()) > 10
    expected = []
    for i in range(3):
        _, head, server = (part.double() for part in seeded(parts))
        put(head, state.heads[str(i)], state.buffers)
        put(server, state.theta_s, state.buffers_s)
        uploads = list(zip(in_order(state.smashed[str(i)]), in_order(state.labels[str(i)]), strict=True))
        total = 0.0
        for s, y in uploads:
            leaf, here = s.clone().requires_grad_(), y != NONE
            slopes = [torch.autograd.grad(cross_entropy(part(leaf)[here], y[here]), leaf)[0] for part in (head, server)]
            total += float((slopes[0] - slopes[1]).square().sum())
        expected.append(total)
    for kept in (state.labels, state.smashed):
        kept.update({i: dict(sorted(uploads.items())) for i, uploads in kept.items()})
    numbered = [state.labels["2"][str(number)] for number in range(len(state.labels["2"]))]
    small = RecentUploads(state.smashed, state.labels, 3 + sum(map(len, numbered[-2:])), equal_sizes=False)
    small.add(2, Smashed(torch.zeros(3, 4, WIDTH), torch.zeros(3, 4, dtype=torch.int64)))
    *kept, _ = (labels for _, labels in small.uploads(2))
    assert len(kept) == 2 and all(torch.equal(a, b) for a, b in zip(kept, numbered[-2:], strict=True))
    heads, recent = dict(state.heads), RecentUploads(state.smashed, state.labels, of.buffer, equal_sizes=False)
    main = of.server(state, 4)
    before = [of.align(main, recent, heads, i) for i in range(3)]
    assert before == pytest.approx(expected, rel=1e-9)
    assert max(of.align(main, recent, heads, i) / before[i] for i in range(3)) < 0.5


class Attention(nn.Module):
    """A head with torch's fused attention, whose gradient has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None]  # one head: without its axis torch multiplies matrices
        return self.words(nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0])  # type: ignore[no-any-return]


def test_a_head_with_attention_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: the fused kernels, which refuse a second derivative."""
    made = parts
    monkeypatch.setitem(globals(), "parts", lambda: (made()[0], Attention(), made()[2]))
    state = run(method(FSLSAGE, training(texts_setting()), align_epochs=2, align_lr=0.05, l=1), 2)
    assert 0 < state.alignment_loss < math.inf
