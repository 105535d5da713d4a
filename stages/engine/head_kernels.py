"""Triton kernels of the head: softmax over the vocabulary in chunks, gradient of the embedding, targets."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first"])
def softmax_chunk(logits, row_max, row_sum, target_logit, targets, first, width, BLOCK: tl.constexpr):
    """Updates each position's running softmax with the logits [n, width] of the token ids from `first` on.

    Args:
        row_max: float32 [n]: the largest logit so far.
        row_sum: float32 [n]: the sum of exponentials relative to it.
        target_logit: float32 [n]: written by the chunk that has the target.
        targets: int64 [n]; -1 where there is none.
    """
    row = tl.program_id(0)
    target = tl.load(targets + row) - first
    if tl.load(targets + row) >= 0:
        largest = tl.load(row_max + row)
        total = tl.load(row_sum + row)
        base = row.to(tl.int64) * width
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            value = tl.load(logits + base + at, mask=at < width, other=float("-inf")).to(tl.float32)
            new = tl.maximum(largest, tl.max(value, 0))
            total = total * tl.exp(largest - new) + tl.sum(tl.exp(value - new), 0)
            largest = new
        tl.store(row_max + row, largest)
        tl.store(row_sum + row, total)
        if (target >= 0) & (target < width):
            tl.store(target_logit + row, tl.load(logits + base + target).to(tl.float32))


@triton.jit(do_not_specialize=["first"])
def softmax_grad(logits, row_max, row_sum, targets, loss_weight, first, width, BLOCK: tl.constexpr):
    """Replaces the logits [n, width] by the loss's gradient; 0 where there is no target."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    base = row.to(tl.int64) * width
    value = tl.load(logits + base + at, mask=at < width, other=0.0).to(tl.float32)
    value = tl.exp(value - tl.load(row_max + row)) / tl.load(row_sum + row)
    value = (value - tl.where(at == target - first, 1.0, 0.0)) * tl.load(loss_weight)
    value = tl.where(target >= 0, value, 0.0)
    tl.store(logits + base + at, value.to(logits.dtype.element_ty), mask=at < width)


@triton.jit(do_not_specialize=["first", "rows"])
def add_embedding_grad(
    out, grad, token_ids, order, square_deltas, count, first, rows, size, BLOCK: tl.constexpr,
    SUMS: tl.constexpr,
):  # fmt: skip
    """Adds row `order[i]` of `grad` to the row of `out` that belongs to `token_ids[i]`, in a fixed order.

    The program of an id's first occurrence adds up all of them.

    Args:
        out: [rows, size]: gradients of the token ids from `first` on.
        token_ids: int64 [count], sorted.
        square_deltas: With SUMS, float32, one a program: by how much the sum of `out`'s squares grows.
    """
    i = tl.program_id(0)
    token = tl.load(token_ids + i)
    before = tl.load(token_ids + tl.maximum(i - 1, 0))
    square_delta = 0.0
    if (token >= first) & (token < first + rows) & ((i == 0) | (before != token)):
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        mask = at < size
        total = tl.zeros([BLOCK], tl.float32)
        current = token
        while current == token:
            source = tl.load(order + i) * size
            total += tl.load(grad + source + at, mask=mask, other=0.0).to(tl.float32)
            i += 1
            current = tl.load(token_ids + i, mask=i < count, other=-1)
        cell = out + (token - first) * size + at
        old = tl.load(cell, mask=mask, other=0.0).to(tl.float32)
        new = old + total
        tl.store(cell, new.to(out.dtype.element_ty), mask=mask)
        square_delta = tl.sum(new * new - old * old, 0)
    if SUMS:
        tl.store(square_deltas + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), square_delta)


@triton.jit(do_not_specialize=["count", "width", "length"])
def scatter_targets(targets, where, values, count, width, length, BLOCK: tl.constexpr):
    """Writes each value, whose flat index in [rows, width] is in `where`, to `targets` [rows, length]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    source = tl.load(where + at, mask=mask, other=0)
    target = targets + source // width * length + source % width
    tl.store(target, tl.load(values + at, mask=mask, other=0), mask=mask)
