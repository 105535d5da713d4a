"""Head, loss and embedding, a piece of the vocabulary at a time: neither all logits nor all of the gradient
ever exist.

Softmax needs the sum over the whole vocabulary, so the pieces are gone through twice for the loss's gradient
(the online sum of Milakov and Gimelshein 2018, arXiv 1805.02867). A tied matrix has a second gradient, from
the embedding, which exists only when the whole backward is through; its pieces are made once more then. Each
piece counts as a gradient of its own in the running norm of `stages.optim.clip`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from stages.engine import ops
from stages.engine.ops import fused
from stages.engine.streams import Gradients, Weights
from stages.engine.weights import Rounded, Update
from stages.nvfp4.linear import Linear
from stages.qwen3.model import Qwen3
from stages.weights.model_weights import EMBEDDING, HEAD

_ROW_STEP = 64  # with 16 columns or more, a piece begins at a multiple of the fused update's chunk


def piece_rows(vocab: int, hidden: int, elements: int, positions: int) -> int:
    """Words of one piece: what a gradient buffer of `elements` holds, and no more logits than twice that."""
    rows = min(elements // hidden, 2 * elements // positions) // _ROW_STEP * _ROW_STEP
    return min(vocab, max(_ROW_STEP, rows))


def piece_names(name: str, vocab: int, rows: int) -> list[str]:
    """Names under which the running norm keeps the pieces of a matrix; the matrix's own if it is one piece."""
    return [name] if rows >= vocab else [f"{name}#{first}" for first in range(0, vocab, rows)]


@dataclass
class Softmax:
    """What the loss's gradient is made from."""

    hidden: torch.Tensor
    """[n, hidden] after the final norm."""
    targets: torch.Tensor
    """int64 [n]; -1 where there is none."""
    share: torch.Tensor
    """0-dim: one target's part of the loss."""
    largest: torch.Tensor
    total: torch.Tensor
    chosen: torch.Tensor
    """float32 [n] each: the largest logit, the sum of exponentials relative to it, the target's logit."""
    logits: dict[int, torch.Tensor] | None = None
    """Of each piece, by its first word; later the loss's gradient by them. None: they are made anew each
    time.
    """


class ChunkedHead:
    """The matrices that are as long as the vocabulary.

    Args:
        rows: Words of one piece; see `piece_rows`.
        kept: At most so many logits are kept from the loss to the gradients.
    """

    def __init__(
        self,
        model: Qwen3,
        trained: set[str],
        weights: Weights,
        gradients: Gradients,
        update: Update,
        rows: int,
        kept: int,
    ) -> None:
        self.tied, self._rows, self._kept, self._update = model.tied, rows, kept, update
        self._weights, self._gradients = weights, gradients
        self._embedding = model.model.embed_tokens.weight.data
        head = None if model.tied else _head(model)
        self._rounded = None if head is None else Rounded(head.weight.data, head.rule, head.scale_format)
        self._head = self._embedding if self._rounded is None else self._rounded.master
        self._trained = trained
        self.dtype = weights.dtype

    @property
    def embedding_trained(self) -> bool:
        """Whether the embedding is updated."""
        return EMBEDDING in self._trained

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """[n, hidden] of ids [n]."""
        return F.embedding(ids, self._embedding).to(self.dtype)

    def loss(
        self, hidden: torch.Tensor, targets: torch.Tensor, share: torch.Tensor
    ) -> tuple[torch.Tensor, Softmax]:
        """(mean cross-entropy of the targets, 0-dim float32; what `backward` needs)."""
        n = len(hidden)
        largest, total, chosen = (
            torch.full((n,), v, device=hidden.device) for v in (float("-inf"), 0.0, 0.0)
        )
        state = Softmax(hidden, targets, share, largest, total, chosen)
        state.logits = {} if n * len(self._head) <= self._kept else None
        for first, weight in self._pieces():
            logits = F.linear(hidden, weight)
            _take(logits, state, first)
            if state.logits is not None:
                state.logits[first] = logits
        losses = state.largest + state.total.log() - state.chosen
        return torch.where(targets >= 0, losses, 0.0).sum() * share, state

    def backward(self, state: Softmax) -> torch.Tensor:
        """Gradient of the hidden states; updates a head of its own."""
        out = torch.zeros_like(state.hidden, dtype=torch.float32)
        for first, weight in self._pieces():
            logits = F.linear(state.hidden, weight) if state.logits is None else state.logits.pop(first)
            grad = _give(logits, state, first)
            if state.logits is not None and self.tied and self.embedding_trained:
                state.logits[first] = grad
            out += grad @ weight
            if self._rounded is not None and HEAD in self._trained:
                with self._gradients.use(*weight.shape) as product:
                    self._learn(
                        HEAD, self._head, first, product, ops.weight_grad(grad, state.hidden, product)
                    )
                self._rounded.changed(first)
        return out.to(state.hidden.dtype)

    def learn_embedding(self, ids: torch.Tensor, grad: torch.Tensor, state: Softmax) -> None:
        """Updates the embedding from the gradient of `embed` [n, hidden], and of the head if that is the same
        matrix.
        """
        if not self.embedding_trained:
            return
        words, order = torch.sort(ids, stable=True)
        for first in range(0, len(self._embedding), self._rows):
            with self._gradients.use(
                min(self._rows, len(self._embedding) - first), self._embedding.shape[1]
            ) as out:
                sums = None
                if not self.tied:
                    out.zero_()
                elif state.logits is None:
                    logits = F.linear(state.hidden, self._piece(first))
                    sums = ops.weight_grad(_give(logits, state, first), state.hidden, out, _changes(ids, out))
                else:
                    sums = ops.weight_grad(state.logits.pop(first), state.hidden, out, _changes(ids, out))
                _add_rows(out, grad, words, order, first, sums)
                self._learn(EMBEDDING, self._embedding, first, out, sums)

    def _pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        return ((first, self._piece(first)) for first in range(0, len(self._head), self._rows))

    def _piece(self, first: int) -> torch.Tensor:
        """Effective weight of the words from `first` on, in the compute dtype."""
        master = self._head[first : first + self._rows]
        if self._rounded is None and master.dtype == self.dtype:
            return master

        def write(out: torch.Tensor) -> None:
            if self._rounded is None:
                out.copy_(master)
            else:
                self._rounded.write(out, first)

        return self._weights.take(("head", first), len(master), master.shape[1], write)

    def _learn(
        self, name: str, master: torch.Tensor, first: int, grad: torch.Tensor, sums: torch.Tensor | None
    ) -> None:
        self._update(name, master, grad, first * master.shape[1], sums)


def _head(model: Qwen3) -> Linear:
    head = model.lm_head
    assert isinstance(head, Linear)
    return head


def _take(logits: torch.Tensor, state: Softmax, first: int) -> None:
    """Takes logits [n, width] of the words from `first` on into the running softmax."""
    n, width = logits.shape
    if fused(logits):
        from stages.engine import kernels_head

        kernels_head.softmax_piece[(n,)](
            logits, state.largest, state.total, state.chosen, state.targets, first, width, BLOCK=4096, num_warps=8
        )  # fmt: skip
        return
    value = logits.float()
    top = torch.maximum(state.largest, value.amax(dim=1))
    state.total.mul_(torch.exp(state.largest - top)).add_(torch.exp(value - top[:, None]).sum(dim=1))
    state.largest.copy_(top)
    here = (state.targets >= first) & (state.targets < first + width)
    found = value.gather(1, (state.targets - first).clamp(0, width - 1)[:, None])[:, 0]
    state.chosen.copy_(torch.where(here, found, state.chosen))


def _give(logits: torch.Tensor, state: Softmax, first: int) -> torch.Tensor:
    """The loss's gradient by logits [n, width]; may overwrite them."""
    n, width = logits.shape
    if fused(logits):
        from stages.engine import kernels_head

        kernels_head.softmax_grad[(n, -(-width // 4096))](
            logits, state.largest, state.total, state.targets, state.share, first, width, BLOCK=4096, num_warps=8
        )  # fmt: skip
        return logits
    value = torch.exp(logits.float() - state.largest[:, None]) / state.total[:, None]
    words = torch.arange(first, first + width, device=logits.device)
    value = (value - (words == state.targets[:, None]).float()) * state.share
    return torch.where(state.targets[:, None] >= 0, value, 0.0).to(logits.dtype)


_ROW_BLOCK = 1024


def _changes(ids: torch.Tensor, out: torch.Tensor) -> int:
    """How many sums of squares `_add_rows` changes."""
    return len(ids) * -(-out.shape[1] // _ROW_BLOCK)


def _add_rows(
    out: torch.Tensor,
    grad: torch.Tensor,
    words: torch.Tensor,
    order: torch.Tensor,
    first: int,
    sums: torch.Tensor | None = None,
) -> None:
    """Adds rows `grad[order]`, which belong to the sorted `words`, to `out`, whose first row is that of the
    word `first`.

    Args:
        sums: Of squares of `out`'s parts; its last `_changes` elements become what they grow by.
    """
    rows, size = out.shape
    if fused(out):
        from stages.engine import kernels_head

        changes = out if sums is None else sums[-_changes(words, out) :]
        kernels_head.add_rows[(len(words), -(-size // _ROW_BLOCK))](
            out, grad, words, order, changes, len(words), first, rows, size, BLOCK=_ROW_BLOCK, SUMS=sums is not None
        )  # fmt: skip
        return
    inside = (words >= first) & (words < first + rows)
    out += (
        torch.zeros(out.shape).index_add_(0, words[inside] - first, grad[order[inside]].float()).to(out.dtype)
    )
