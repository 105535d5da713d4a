"""Head, loss and embedding in chunks of the vocabulary: neither all logits nor the whole gradient ever exist.

Softmax needs the sum over the whole vocabulary, so the loss's gradient takes a second pass over the chunks
(the online sum of Milakov and Gimelshein 2018, arXiv 1805.02867). A tied matrix has a second gradient, from
the embedding, which exists only at the end of the backward pass; the chunks of the first are computed again
then. Each chunk counts as a gradient of its own in the running norm of `stages.optim.clip`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.engine import ops
from stages.engine.ops import uses_triton
from stages.engine.streams import GradientBuffer, WeightPrefetcher
from stages.engine.weights import QuantizedWeight, UpdateFunction
from stages.memory.limits import caches_logits
from stages.nvfp4.linear import Linear
from stages.qwen3.model import Qwen3
from stages.weights.model_weights import EMBEDDING, HEAD

_LOGITS_BLOCK = 4096
_COLUMN_BLOCK = 1024


def chunk_names(name: str, vocab: int, chunk_rows: int) -> list[str]:
    """Names of a matrix's chunks in the running norm; the matrix's own name if it is one chunk."""
    if chunk_rows >= vocab:
        return [name]
    return [f"{name}#{first}" for first in range(0, vocab, chunk_rows)]


@dataclass
class SoftmaxState:
    """What the loss's gradient needs."""

    hidden: torch.Tensor
    """[n, hidden] after the final norm."""
    targets: torch.Tensor
    """int64 [n]; -1 where there is none."""
    loss_weight: torch.Tensor
    """0-dim: weight of one target in the loss."""
    row_max: torch.Tensor
    """float32 [n]: the largest logit."""
    row_sum: torch.Tensor
    """float32 [n]: the sum of exponentials relative to it."""
    target_logit: torch.Tensor
    """float32 [n]."""
    logits: dict[int, torch.Tensor] | None = None
    """Each chunk's by its first token id, later the loss's gradient by them; None: computed each time."""


class ChunkedHead:
    """The matrices with one row for each token id of the vocabulary.

    Args:
        chunk_rows: Rows of one chunk; see `limits.head_chunk_rows`.
        buffer: Elements of the largest weight; see `limits.caches_logits`.
    """

    def __init__(
        self,
        model: Qwen3,
        trained: set[str],
        weights: WeightPrefetcher,
        gradients: GradientBuffer,
        update: UpdateFunction,
        chunk_rows: int,
        buffer: int,
    ) -> None:
        self.tied, self.dtype = model.tied, weights.dtype
        self._chunk_rows, self._buffer, self._update, self._trained = chunk_rows, buffer, update, trained
        self._weights, self._gradients = weights, gradients
        self._head = self._embedding = model.model.embed_tokens.weight.data
        self._quantized: QuantizedWeight | None = None
        if not model.tied:
            head = model.lm_head
            assert isinstance(head, Linear)
            self._quantized = QuantizedWeight(head.weight.data, head.rule, head.scale_format)
            self._head = self._quantized.master

    @property
    def embedding_trained(self) -> bool:
        """Whether the embedding is updated."""
        return EMBEDDING in self._trained

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, hidden] of token ids [n]."""
        return F.embedding(ids, self._embedding).to(self.dtype)

    def loss(
        self, hidden: torch.Tensor, targets: torch.Tensor, loss_weight: torch.Tensor
    ) -> tuple[torch.Tensor, SoftmaxState]:
        """(mean cross-entropy of the targets, 0-dim float32; what `backward` needs)."""
        n = len(hidden)
        row_max, row_sum, target_logit = (
            torch.full((n,), v, device=hidden.device) for v in (float("-inf"), 0.0, 0.0)
        )
        state = SoftmaxState(hidden, targets, loss_weight, row_max, row_sum, target_logit)
        state.logits = {} if caches_logits(n, len(self._head), self._buffer) else None
        for first, weight in self._chunks():
            logits = F.linear(hidden, weight)
            _accumulate_softmax(logits, state, first)
            if state.logits is not None:
                state.logits[first] = logits
        losses = state.row_max + state.row_sum.log() - state.target_logit
        return torch.where(targets >= 0, losses, 0.0).sum() * loss_weight, state

    def backward(self, state: SoftmaxState) -> torch.Tensor:
        """Gradient of the hidden states; updates a head of its own."""
        out = torch.zeros_like(state.hidden, dtype=torch.float32)
        for first, weight in self._chunks():
            logits = F.linear(state.hidden, weight) if state.logits is None else state.logits.pop(first)
            grad = _logits_grad(logits, state, first)
            if state.logits is not None and self.tied and self.embedding_trained:
                state.logits[first] = grad
            out += grad @ weight
            if self._quantized is not None and HEAD in self._trained:
                with self._gradients.use(*weight.shape) as weight_grad:
                    square_sums = ops.weight_grad(grad, state.hidden, weight_grad)
                    self._update_chunk(HEAD, self._head, first, weight_grad, square_sums)
                self._quantized.invalidate_scales(first)
        return out.to(state.hidden.dtype)

    def update_embedding(self, ids: torch.Tensor, grad: torch.Tensor, state: SoftmaxState) -> None:
        """Updates the embedding.

        Args:
            ids: Those of `embed`.
            grad: Gradient of `embed` [n, hidden]; the head's is added if the two are the same matrix.
        """
        if not self.embedding_trained:
            return
        token_ids, order = torch.sort(ids, stable=True)
        vocab, columns = self._embedding.shape
        for first in range(0, vocab, self._chunk_rows):
            with self._gradients.use(min(self._chunk_rows, vocab - first), columns) as out:
                square_sums = None
                if self.tied:
                    logits_grad = self._logits_grad(state, first)
                    square_sums = ops.weight_grad(logits_grad, state.hidden, out, _delta_count(ids, out))
                    del logits_grad
                else:
                    out.zero_()
                _add_embedding_grad(out, grad, token_ids, order, first, square_sums)
                self._update_chunk(EMBEDDING, self._embedding, first, out, square_sums)

    def _logits_grad(self, state: SoftmaxState, first: int) -> torch.Tensor:
        """The loss's gradient by a chunk's logits, from memory or computed again."""
        if state.logits is not None:
            return state.logits.pop(first)
        return _logits_grad(F.linear(state.hidden, self._chunk(first)), state, first)

    def _chunks(self) -> Iterator[tuple[int, torch.Tensor]]:
        return ((first, self._chunk(first)) for first in range(0, len(self._head), self._chunk_rows))

    def _chunk(self, first: int) -> torch.Tensor:
        """Effective weight of the token ids from `first` on, in the compute dtype."""
        master = self._head[first : first + self._chunk_rows]
        if self._quantized is None and master.dtype == self.dtype:
            return master

        def write(out: torch.Tensor) -> None:
            if self._quantized is None:
                out.copy_(master)
            else:
                self._quantized.write(out, first)

        return self._weights.get(("head", first), len(master), master.shape[1], write)

    def _update_chunk(
        self,
        name: str,
        master: torch.Tensor,
        first: int,
        grad: torch.Tensor,
        square_sums: torch.Tensor | None,
    ) -> None:
        self._update(name, master, grad, first * master.shape[1], square_sums)


def _accumulate_softmax(logits: torch.Tensor, state: SoftmaxState, first: int) -> None:
    """Updates the running softmax with logits [n, width] of the token ids from `first` on."""
    n, width = logits.shape
    if uses_triton(logits):
        from stages.engine import head_kernels

        head_kernels.softmax_chunk[(n,)](
            logits, state.row_max, state.row_sum, state.target_logit, state.targets, first, width,
            BLOCK=_LOGITS_BLOCK, num_warps=8,
        )  # fmt: skip
        return
    value = logits.float()
    row_max = torch.maximum(state.row_max, value.amax(dim=1))
    state.row_sum.mul_(torch.exp(state.row_max - row_max)).add_(
        torch.exp(value - row_max[:, None]).sum(dim=1)
    )
    state.row_max.copy_(row_max)
    inside = (state.targets >= first) & (state.targets < first + width)
    target_logit = value.gather(1, (state.targets - first).clamp(0, width - 1)[:, None])[:, 0]
    state.target_logit.copy_(torch.where(inside, target_logit, state.target_logit))


def _logits_grad(logits: torch.Tensor, state: SoftmaxState, first: int) -> torch.Tensor:
    """The loss's gradient by logits [n, width]; may overwrite them."""
    n, width = logits.shape
    if uses_triton(logits):
        from stages.engine import head_kernels

        head_kernels.softmax_grad[(n, -(-width // _LOGITS_BLOCK))](
            logits, state.row_max, state.row_sum, state.targets, state.loss_weight, first, width,
            BLOCK=_LOGITS_BLOCK, num_warps=8,
        )  # fmt: skip
        return logits
    value = torch.exp(logits.float() - state.row_max[:, None]) / state.row_sum[:, None]
    token_ids = torch.arange(first, first + width, device=logits.device)
    value = (value - (token_ids == state.targets[:, None]).float()) * state.loss_weight
    return torch.where(state.targets[:, None] >= 0, value, 0.0).to(logits.dtype)


def _delta_count(ids: torch.Tensor, out: torch.Tensor) -> int:
    """How many sums of squares `_add_embedding_grad` writes."""
    return len(ids) * -(-out.shape[1] // _COLUMN_BLOCK)


def _add_embedding_grad(
    out: torch.Tensor,
    grad: torch.Tensor,
    token_ids: torch.Tensor,
    order: torch.Tensor,
    first: int,
    square_sums: torch.Tensor | None = None,
) -> None:
    """Adds row `order[i]` of `grad` to the row of `out` that belongs to `token_ids[i]`.

    Args:
        out: [rows, columns]: gradients of the token ids from `first` on.
        token_ids: int64 [n], sorted.
        square_sums: Sums of squares of `out`'s parts. The last `_delta_count` elements are written: by how
            much the sum of all grows.
    """
    rows, columns = out.shape
    if uses_triton(out):
        from stages.engine import head_kernels

        deltas = out if square_sums is None else square_sums[-_delta_count(token_ids, out) :]
        head_kernels.add_embedding_grad[(len(token_ids), -(-columns // _COLUMN_BLOCK))](
            out, grad, token_ids, order, deltas, len(token_ids), first, rows, columns, BLOCK=_COLUMN_BLOCK,
            SUMS=square_sums is not None,
        )  # fmt: skip
        return
    inside = (token_ids >= first) & (token_ids < first + rows)
    added = torch.zeros(out.shape).index_add_(0, token_ids[inside] - first, grad[order[inside]].float())
    out += added.to(out.dtype)
