"""A model in parts is that of transformers; LoRA by peft is LoRA by hand; the split methods train it, and only it."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from tests.numerics.lm_toy import (
    ALPHA,
    CONTEXT,
    DEPTH,
    END,
    RANK,
    VOCABULARY,
    WIDTH,
    Lora,
    moved,
    problem,
    setting,
    texts,
    tokens,
    whole,
)
from tests.numerics.split_methods import close, method, run, seeded, training
from tests.numerics.test_costs import step_of
from zofl_mpi.errors import UserError
from zofl_mpi.methods.heron import HERON
from zofl_mpi.methods.splitfed import SFLV2
from zofl_mpi.numerics.optimisers import Optimiser
from zofl_mpi.problems import adapters, lm, lm_checks, lm_models, split_lm
from zofl_mpi.problems.counting import Allocations
from zofl_mpi.problems.saving import recomputing
from zofl_mpi.problems.split_lm import SplitLM
from zofl_mpi.rounds.split import method as split_method
from zofl_mpi.rounds.split.costs import _counted, _trial, macs, peak_bytes, step_macs
from zofl_mpi.run.loop.local import LocalClients

BLOCK = 4 * RANK * WIDTH
"""Numbers of LoRA in a block: q and v, A and B."""
DATA = texts(12, 4)


def at(own: SplitLM, theta: torch.Tensor, theta_s: torch.Tensor) -> Any:
    """Both parts bound."""
    from contextlib import ExitStack

    stack = ExitStack()
    for manager in (own.evaluating(), own.client_side.bound_to(theta), own.server_side.bound_to(theta_s)):
        stack.enter_context(manager)
    return stack


def vectors(own: SplitLM) -> tuple[torch.Tensor, torch.Tensor]:
    return own.client_side.initial()[0], own.server_side.initial()[0]


def uncut(own: SplitLM, theta: torch.Tensor, theta_s: torch.Tensor) -> Lora:
    return Lora(torch.cat([theta[: own.n_client], theta_s]))


@pytest.mark.parametrize("cut", [1, 3])
def test_the_parts_one_after_the_other_are_the_whole_model(cut: int) -> None:
    """Each text alone and uncut, with LoRA by hand. Mutations: LoRA on k, its alpha, q and v exchanged; a mask that
    looks ahead; padding that is looked at; the context's tokens in the loss."""
    own = problem(cut)
    theta, theta_s = map(moved, vectors(own))
    reference = uncut(own, theta, theta_s)
    with torch.no_grad():
        losses = [reference.losses(DATA, k) for k in range(12)]
    with at(own, theta, theta_s):
        told = own.score(*own.samples(DATA, np.arange(12)))
        one = own.server_loss(own.smash((x := own.samples(DATA, np.array([3, 7])))[0]), x[1])
    assert told["nats"] == pytest.approx(float(torch.cat(losses).sum()), rel=1e-12)
    assert told["tokens"] == sum(map(len, losses))
    with torch.no_grad():
        smooth = torch.cat([reference.losses(DATA, k, 0.1) for k in (3, 7)])
    assert float(one) == pytest.approx(float(smooth.mean()), rel=1e-12)


def test_lora_begins_as_nothing_on_one_tensor_of_frozen_weights() -> None:
    """B = 0. Mutations: B drawn as A is; a copy of the embedding or of a block in the auxiliary, or in each client."""
    own = problem()
    theta, theta_s = vectors(own)
    text, _ = tokens(DATA, 0)
    every = torch.arange(len(text))
    with at(own, theta, theta_s), torch.no_grad():
        smashed = own.smash(text[None])
        found = own.parts.server(smashed, every)
        close(found, whole()(text[None]).logits[0])
        head = whole()
        del head.transformer.h[3]  # the auxiliary has the first of the server's two blocks
        close(own.parts.auxiliary(smashed, every), head(text[None]).logits[0])
    assert (theta.reshape(-1, RANK * WIDTH)[1::2] == 0).all() and (theta.reshape(-1, RANK * WIDTH)[::2] != 0).all()
    own = problem()
    client, auxiliary, server = cast(Any, own.parts[:3])
    assert client.body.wte.weight is auxiliary.last.unembedding.weight is server.last.unembedding.weight
    assert auxiliary.last.behind[0].weight is server.last.behind[0].weight
    assert auxiliary.segment.blocks[0].mlp.c_fc.weight is server.segment.blocks[0].mlp.c_fc.weight
    adapters = [part.segment.blocks[0].attn.c_attn.q.lora_A["default"].weight for part in (auxiliary, server)]
    assert adapters[0] is not adapters[1]


@pytest.mark.parametrize("cls", [HERON, SFLV2])
def test_only_lora_moves(cls: Any) -> None:
    """Mutations: a weight that is not frozen; a gradient that is kept on one."""
    plan = training(setting())
    own = plan.problem
    frozen = [p for part in own.parts[:3] for p in part.parameters() if not p.requires_grad]
    before = [p.clone() for p in frozen]
    state, start = run(method(cls, plan), 2), method(cls, plan).start()
    assert all(torch.equal(a, b) and b.grad is None for a, b in zip(before, frozen, strict=True))
    assert not torch.equal(state.theta, start.theta) and not torch.equal(state.theta_s, start.theta_s)
    assert len(state.theta) == 3 * BLOCK


def test_sflv2_with_one_client_is_training_of_the_whole_model() -> None:
    """LoRA by hand, one text after the other, torch's Adam, smoothed labels; after each round the same numbers.
    Mutations: padding in the loss; smoothing left out; the server's step before the gradient at the cut."""
    plan = training(setting(clients=1), optimiser=Optimiser())
    of = method(SFLV2, plan)
    state = of.start()
    reference = uncut(plan.problem, state.theta, state.theta_s)
    rule = torch.optim.Adam([reference.theta], 0.05, foreach=False)
    clients = LocalClients(list(plan.setting.data), method=of)
    for r in range(2):
        for positions in plan.batches(0, r):
            rule.zero_grad()
            torch.cat([reference.losses(plan.setting.data[0], int(k), 0.1) for k in positions]).mean().backward()
            rule.step()
        state = of.round(state, r, clients)
        joined = torch.cat([state.theta[: plan.problem.n_client], state.theta_s])
        np.testing.assert_allclose(joined, reference.theta.detach(), rtol=0, atol=1e-9)
    start = of.start()
    assert float((joined - torch.cat([start.theta[: plan.problem.n_client], start.theta_s])).abs().max()) > 0.05


# --- reports


def test_perplexities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over tokens, and over batches of 4 texts, the last of 1; shares of three clients. By hand, without smoothing. In
    blocks of 8 and logits of 4 texts at once. Mutations: smoothing in reports; a mean over texts; batches of other
    sizes, of each client's own texts, or cut by a block; a last text that nobody scores; validation scored as test."""
    monkeypatch.setattr(split_method, "EVALUATION_SAMPLES", 8)
    monkeypatch.setattr(split_lm, "REPORTED_AT_ONCE", 4)
    of = method(HERON, training(replace(setting(), test=texts(37, 8))))
    own = of.setting.problem
    state = run(of, 1)
    told = of.evaluate(state, 0, LocalClients(list(of.setting.data), method=of))
    reference = uncut(own, state.theta, state.theta_s)
    for name, data in (("test", of.setting.test), ("validation", of.setting.validation)):
        with torch.no_grad():
            losses = [reference.losses(data, k) for k in range(len(data))]
            right = sum(int((guessed(reference, data, k)).sum()) for k in range(len(data)))
        loss = float(torch.cat(losses).mean())
        assert getattr(told, f"{name}_loss") == pytest.approx(loss, rel=1e-12)
        assert getattr(told, f"{name}_perplexity") == pytest.approx(math.exp(loss), rel=1e-12)
        assert getattr(told, f"{name}_accuracy") == pytest.approx(right / len(torch.cat(losses)), rel=1e-12)
        means = [float(torch.cat(losses[k : k + 4]).mean()) for k in range(0, len(data), 4)]
        assert getattr(told, f"{name}_perplexity_batches") == pytest.approx(math.exp(np.mean(means)), rel=1e-12)
    assert told.test_loss != told.validation_loss
    told = problem().quality({"tokens": 1, "nats": 800.0, "hits": 0, "batches": 1, "means": 800.0})
    assert told["perplexity"] == told["perplexity_batches"] == math.inf


def guessed(reference: Lora, data: Any, k: int) -> torch.Tensor:
    """Whether each token of the completion of text k is the likeliest."""
    text, context = tokens(data, k)
    return reference.logits(text[:-1])[context - 1 :].argmax(1) == text[context:]


@pytest.mark.parametrize(("cls", "kind"), [(HERON, "float64"), (SFLV2, "bf16")])
def test_the_bytes_of_uploads_are_announced(cls: Any, kind: str) -> None:
    """Mutations: all batches as long as the longest text; bfloat16 that travels as float32."""
    dtype = "float32" if kind == "bf16" else kind
    of = method(cls, training(setting(problem(dtype=dtype, bf16=kind == "bf16"), dtype=dtype)))
    clients = LocalClients(list(of.setting.data), method=of)
    of.round(of.start(), 0, clients)
    row, _ = clients.account()
    assert int(row.bytes_down.sum() + row.bytes_up.sum()) == of.plan(1)["bytes down and up, all clients, a round"]


# --- costs


def test_a_client_that_computes_its_blocks_again_needs_less_memory_and_more_products() -> None:
    """One forward pass of the blocks and the logits more than plain backpropagation, but for the blocks' last product,
    which no gradient looks at; a backward pass through frozen weights. Mutations: nothing recomputed; the blocks alone;
    a backward pass that counts as two forward ones."""
    own = problem(2, 2)
    forward, backward = step_of(own, "forward"), step_of(own, "auxiliary")
    plain, once = peak_bytes(*backward, 8), step_macs(*backward)
    with recomputing(own.blocks):
        again, again_macs = peak_bytes(*backward, 8), step_macs(*backward) - once
    assert peak_bytes(*forward, 8) < again < 0.6 * plain
    client, head, _ = macs(own)
    unembedding = 9 * WIDTH * VOCABULARY
    blocks = client + head - unembedding
    assert again_macs == blocks - 4 * (CONTEXT - 2) * 4 * WIDTH**2 + unembedding
    assert 2 * (client + head) - 0.3 * blocks < once < 2.7 * (client + head)
    assert step_macs(*forward) == client + head


def test_logits_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and its gradient stay; a pass without a graph then holds one piece of them, not those of all positions.
    Mutations: a mean of the pieces' means; the last, shorter piece forgotten."""
    own = problem()
    theta, _ = map(moved, vectors(own))
    x, labels = own.samples(DATA, np.arange(5))
    found, rows = [], list[int]()
    own.parts.auxiliary.last.register_forward_hook(lambda part, given, losses: rows.append(len(losses)))
    for logits in (lm.LOGITS, 7 * VOCABULARY):
        monkeypatch.setattr(lm, "LOGITS", logits)
        with own.client_side.bound_to(theta):
            loss = own.local_loss(own.smash(x), labels)
            found.append((loss.detach(), own.client_side.gradient(loss)))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])
    assert rows[0] == sum(rows[1:]) > 14 and max(rows[1:]) == 7


@pytest.mark.parametrize("step", ["forward", "auxiliary"])
def test_the_account_of_many_texts_is_that_of_computing_them(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two and three texts, in pieces of the logits as for all. Mutations: pieces of the few; one piece."""
    monkeypatch.setattr(lm, "LOGITS", 16 * VOCABULARY)
    own = problem()
    computed = _counted(*step_of(own, step), 16, Allocations(), _trial).peak + 16 * (CONTEXT - 2) * 8
    assert own.targets * 16 % 16 == 0  # a piece is a whole number of positions of each text
    assert peak_bytes(*step_of(own, step), 16) == computed
    assert own.parts.auxiliary.pieces == own.parts.server.pieces == 0


def test_attention_is_counted() -> None:
    """12 d^2 of a block, LoRA, and 2 T d of attention a token, all T x T of it. Mutation: attention left out."""
    own = problem(1)
    t = CONTEXT - 2
    assert macs(own)[0] == t * (12 * WIDTH**2 + BLOCK + 2 * t * WIDTH)


# --- the whole model again


def test_frozen_weights_are_stored_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of weights that each pass rounds anew. Mutations: embeddings or norms rounded; LoRA rounded; a
    matrix of its own for each part; float64 rounded; a joined model of two kinds of numbers."""

    def found() -> tuple[SplitLM, list[bytes]]:
        own = problem(dtype="float32", bf16=True)
        theta, theta_s = (moved(vector).float() for vector in vectors(own))
        x, labels = own.samples(DATA, np.arange(5))
        with own.client_side.bound_to(theta), own.server_side.bound_to(theta_s):
            smashed = own.smash(x)
            losses = own.local_loss(smashed, labels), own.server_loss(smashed.detach(), labels)
            slopes = own.client_side.gradient(losses[0]), own.server_side.gradient(losses[1])
        return own, [each.detach().float().numpy().tobytes() for each in (smashed, *losses, *slopes)]

    own, narrow = found()
    frozen = [p for part in own.parts[:3] for p in part.parameters() if p.dtype == torch.bfloat16]
    assert len({id(p) for p in frozen}) == len({p.data_ptr() for p in frozen}) == DEPTH * 12 + 1
    assert {p.dtype for p in own.full_model(*vectors(own)).parameters()} == {torch.float32}
    monkeypatch.setattr(split_lm, "narrow_frozen", lambda parts: None)
    assert found()[1] == narrow
    monkeypatch.undo()
    assert not [p for p in problem(bf16=True).parts.client.parameters() if p.dtype == torch.bfloat16]


@pytest.mark.parametrize("train", ["all", "lora"])
def test_a_model_that_is_kept_is_read_again(tmp_path: Any, train: Any) -> None:
    """Untied after --train all, and so in its configuration. Mutation: the unembedding tied when it is read."""
    own = problem(train=train)
    theta, theta_s = map(moved, vectors(own))
    own.full_model(theta, theta_s).save_pretrained(tmp_path)
    model = lm_models.stored_model(str(tmp_path)).double()
    assert (model.lm_head.weight is model.transformer.wte.weight) == (train == "lora")
    seeded(lambda: adapters.add_lora(model, RANK, ALPHA))  # type: ignore[func-returns-value,return-value]
    logits = lm_checks.own_logits(model, CONTEXT - 2, "kept")
    other = SplitLM(lm.cut_model(model, lm.outline(model), 1, 0, logits), CONTEXT - 2, 9, dtype="float64")
    with at(own, theta, theta_s):
        told = own.score(*own.samples(DATA, np.arange(12)))
    with at(other, *vectors(other)):
        found = other.score(*other.samples(DATA, np.arange(12)))
    assert found["nats"] == pytest.approx(told["nats"], rel=1e-5)  # kept in float32, read in float32


def test_all_parameters_train() -> None:
    """The embedding and the unembedding move apart. With one client it is training of the whole, untied model."""
    plan = training(setting(problem(1, 0, train="all"), clients=1))
    state = run(method(SFLV2, plan), 1)
    net = whole()
    net.lm_head.weight = torch.nn.Parameter(net.lm_head.weight.detach().clone())
    rule = torch.optim.SGD(net.parameters(), 0.05, momentum=0.5, weight_decay=0.01, foreach=False)
    data = plan.setting.data[0]
    for positions in plan.batches(0, 0):
        rule.zero_grad()
        losses = []
        for k in positions:
            text, context = tokens(data, int(k))
            logits = net(text[None, :-1]).logits[0, context - 1 :]
            losses.append(
                torch.nn.functional.cross_entropy(logits, text[context:], reduction="none", label_smoothing=0.1)
            )
        torch.cat(losses).mean().backward()
        rule.step()
    made = plan.problem.full_model(state.theta, state.theta_s)
    for (name, value), other in zip(net.state_dict().items(), made.state_dict().values(), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-12, err_msg=name)


# --- bad input


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: problem(4, 0), "--cut 4: must be from 1 to 3: the model has 4 blocks"),
        (lambda: problem(3, 2), "--auxiliary-blocks 2: must be from 0 to 1: after --cut 3 of 4 blocks the server has"),
        (lambda: training(setting(), augment="crop-flip"), "--augment crop-flip: texts are no images"),
    ],
)
def test_what_the_model_has_not_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


def test_the_activation_of_random_weights_is_gpt_2s() -> None:
    """GELU by tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), up to 5e-4 away from the exact one. Stored
    models: test_lm_families.py. Mutations: the exact GELU, a ReLU, SiLU; dropout."""
    model = lm_models.random_model(lm_models.random_config("tiny"), VOCABULARY, END)
    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    expected = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    for block in model.transformer.h:
        assert torch.allclose(block.mlp.act(x), expected, rtol=1e-12, atol=1e-12)
    assert {m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)} == {0.0}
