"""Split language model (see `Split`), [C] VI-C, on texts of a context and its completion.

A loss is the mean cross-entropy of the completion tokens of a batch, each predicted from all tokens before it. Training
losses, zeroth-order ones too, use label smoothing; reports do not. Texts are padded on the right to the batch's
longest. Attention is causal: padding affects no token of the loss, and needs no mask.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from zofl_mpi.data import Dataset, texts
from zofl_mpi.errors import UserError, demand
from zofl_mpi.problems import Batch
from zofl_mpi.problems.adapters import merge
from zofl_mpi.problems.device_cache import to_device
from zofl_mpi.problems.flat import Flat
from zofl_mpi.problems.lm import CAUSAL, LastBlocks, SplitModel, narrow_frozen
from zofl_mpi.problems.split import TorchSplit

NONE = texts.NONE  # label of positions without loss: contexts and padding
REPORTED_AT_ONCE = 32  # texts per computation of a report's logits


@final
@dataclass(frozen=True)
class SplitLM(TorchSplit):
    """A `Split` problem of a language model.

    Methods hold its vectors. Frozen weights are in no vector; with `bf16`, those of products are stored in bfloat16.
    """

    allows_batch_of_one: ClassVar[bool] = True
    equal_sizes: ClassVar[bool] = False
    report_batch: ClassVar[int] = 4  # as in validation batches of LoRA's and SplitLoRA's codes
    parts: SplitModel  # client, auxiliary and server, in `dtype`, on `device`
    longest: int  # T, input tokens of the longest text
    targets: int  # largest number of completion tokens of a text
    label_smoothing: float = 0.1  # share of a label spread over the whole vocabulary, in training losses
    choices: int = 1  # completions of each text; a report scores all, training uses the right one

    def __post_init__(self) -> None:
        demand(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "from 0 to below 1")
        for part in self.parts[:3]:
            part.eval()  # only switches off transformers' own gradient checkpointing
        if self.bf16 and self.dtype == "float32":  # autocast leaves float64 as it is
            narrow_frozen(self.parts)
        client_side = Flat([self.parts.client, self.parts.auxiliary], True, self.tf32)
        # tied embeddings have one matrix, which the client's side binds
        server_side = Flat([self.parts.server], True, self.tf32, without=client_side.parameters)
        vars(self).update(client_side=client_side, server_side=server_side)

    # --- sizes

    @property
    def smashed_shape(self) -> tuple[int, int]:
        return self.longest, int(self.parts.model.config.get_text_config().hidden_size)

    def upload_bytes(self, data: Dataset, positions: Batch) -> int:
        itemsize = 2 if self.bf16 else np.dtype(self.dtype).itemsize
        return self._padded(data, positions) * self.smashed_shape[1] * itemsize

    def label_bytes(self, data: Dataset, positions: Batch) -> int:
        return 8 * self._padded(data, positions)  # includes contexts and padding

    def _padded(self, data: Dataset, positions: Batch) -> int:
        """Number of positions of a batch; its texts are padded to the longest."""
        return len(positions) * (int(texts.lengths(data, positions).max()) - 1)

    @cached_property
    def blocks(self) -> list[nn.Module]:
        head = self.parts.auxiliary
        return [*self.parts.client.blocks, *head.segment.blocks, head.last]

    @contextmanager
    def pieces_like_batch_of(self, batch: int) -> Iterator[None]:
        """Context manager: computes logits in as many pieces as for `batch` texts of maximum length."""
        heads = (self.parts.auxiliary, self.parts.server)
        for head in heads:
            head.pieces = head.pieces_of(batch * self.targets)
        try:
            yield
        finally:
            for head in heads:
                head.pieces = 0

    # --- batches

    def samples(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Tokens (B, T) and labels (B, T), `NONE` without loss, on the device."""
        tokens, labels = texts.batch(data, positions)
        return to_device(torch.from_numpy(tokens), self.device), self._noted(torch.from_numpy(labels))

    def evaluation_samples(self, data: Dataset, positions: Batch) -> tuple[Tensor, Tensor]:
        """Tokens and labels of texts to score; a choice gives a row for each completion, the right one first."""
        if self.choices == 1:
            return self.samples(data, positions)
        rows = texts.choices(data, positions)
        return self.samples(rows, np.arange(len(rows)))

    def _noted(self, labels: Tensor) -> Tensor:
        """Labels on the device with the result of `predicted` attached: computed there, the host would wait."""
        if labels.device.type != "cpu":
            return labels
        at, targets = predicted(labels)
        placed = to_device(labels, self.device)
        placed.predicted = to_device(at, self.device), to_device(targets, self.device)  # type: ignore[attr-defined]
        return placed

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Texts (count, T) of token 0, with texts and completions of maximum length."""
        tokens = torch.zeros(count, self.longest, dtype=torch.int64, device=self.device)
        labels = torch.full_like(tokens, NONE)
        labels[:, -self.targets :] = 0
        return tokens, labels

    def augmentation(self, kind: str) -> NoReturn:
        raise UserError(f"--augment {kind}: texts are no images")

    def to_device(self, value: Tensor) -> Tensor:
        """Moves a received tensor to the device; integers are labels."""
        return to_device(value, self.device) if value.is_floating_point() else self._noted(value)

    # --- computing

    def smash(self, inputs: Tensor) -> Tensor:
        with self.precision():
            smashed: Tensor = self.parts.client(inputs)
        return self.narrowed(smashed)

    def local_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self.parts.auxiliary, smashed, labels)

    def server_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self.parts.server, smashed, labels)

    def forward_loss(self, smashed: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self.parts.server, smashed, labels, forward_only=True)

    def _loss(self, back: LastBlocks, smashed: Tensor, labels: Tensor, forward_only: bool = False) -> Tensor:
        at, targets = predicted(labels)
        with self.precision():
            losses = back.losses(smashed, at, targets, self.label_smoothing, forward_only)
        # only the sum over tokens is float64: logits are as many as the vocabulary for each token
        return losses.mean() if losses.requires_grad else losses.double().mean()

    def loss_count(self, labels: Tensor) -> int:
        return len(predicted(labels)[1])

    # --- reports

    def evaluating(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def score(self, inputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Sums for `quality` over completion tokens: their number, cross-entropies ("nats") and top-1 hits.

        Also the number of batches of `report_batch` texts and the sum of their means. For choices also the number of
        texts, and of those whose right completion has the smallest mean cross-entropy.
        """
        parts = zip(torch.split(inputs, REPORTED_AT_ONCE), torch.split(labels, REPORTED_AT_ONCE), strict=True)
        whole = torch.cat([self._rows(*part) for part in parts], dim=1)
        each = whole[:, :: self.choices]  # the right ones
        tokens, nats, hits = each.sum(dim=1).tolist()
        batches = [part.sum(dim=1).tolist() for part in torch.split(each, self.report_batch, dim=1)]
        means = math.fsum(own / count for count, own, _ in batches)
        sums = {"tokens": tokens, "nats": nats, "hits": hits, "batches": len(batches), "means": means}
        if self.choices > 1:
            first, *others = (whole[1] / whole[0]).view(-1, self.choices).T
            right = torch.stack(others).gt(first).all(dim=0)
            sums |= {"texts": len(right), "right": float(right.sum())}
        return sums

    def _rows(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Sums (3, B) of each text: number of completion tokens, their cross-entropies, their top-1 hits."""
        used = int(labels.ne(NONE).any(dim=0).nonzero().max()) + 1  # length of the longest text
        inputs, labels = inputs[:, :used], labels[:, :used]
        (at, targets), smashed = predicted(labels), self.smash(inputs)
        with self.precision():
            logits = self.parts.server(smashed, at)
        logits = logits.float() if self.bf16 else logits
        count = labels.ne(NONE).sum(dim=1)
        losses = cross_entropy(logits, targets, reduction="none").double()
        hits = logits.argmax(dim=1).eq(targets).double()
        ends = count.cumsum(0).cpu()
        sums = [torch.stack([part.sum() for part in v.cpu().tensor_split(ends[:-1])]) for v in (losses, hits)]
        return torch.stack([count.cpu().double(), *sums])

    def quality(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Quality from the sums of `score`.

        - "loss": mean cross-entropy of a token; "perplexity": its exponential.
        - "perplexity_batches": exponential of the mean of batch means, as the reference codes print.
        - "accuracy": share of tokens with the largest logit; for choices, share of texts whose right completion has the
          smallest mean cross-entropy.
        """
        loss = sums["nats"] / sums["tokens"]
        return {
            "loss": loss,
            "perplexity": _exp(loss),
            "perplexity_batches": _exp(sums["means"] / sums["batches"]),
            "accuracy": sums["right"] / sums["texts"] if self.choices > 1 else sums["hits"] / sums["tokens"],
        }

    def full_model(self, theta: Tensor, theta_s: Tensor) -> Any:
        """The whole model of `transformers` at theta (n_l,) and theta_s (n_s,), with LoRA merged.

        It leaves out the auxiliary part. Its `generate` writes texts; tensors are copies.
        """
        with (
            self.client_side.bound_to(self.to_device(theta)),
            self.server_side.bound_to(self.to_device(theta_s)),
            torch.no_grad(),
        ):
            model = copy.deepcopy(self.parts.model).to(self.parts.model.get_input_embeddings().weight.dtype)
            merge(model)
        config = model.config.get_text_config()
        if config._attn_implementation == CAUSAL:
            config._attn_implementation = "sdpa"
        model.tie_weights()
        return model.requires_grad_().eval()

    @property
    def remarks(self) -> list[str]:
        """Remarks on the model, printed at the start of a run."""
        drifts = "the model's tied embedding and unembedding become two matrices, one on each side, that drift apart"
        return [drifts] if self.parts.untied else []


def predicted(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (k,) with a label other than NONE, among all of labels (B, T), and these labels (k,)."""
    noted: tuple[Tensor, Tensor] | None = getattr(labels, "predicted", None)
    if noted is not None:
        return noted
    flat = labels.flatten()
    at = flat.ne(NONE).nonzero().squeeze(1)
    return at, flat.index_select(0, at)


def _exp(x: float) -> float:
    """e^x; inf on overflow."""
    return math.exp(x) if not x > 700 else math.inf
