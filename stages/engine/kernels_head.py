"""Triton kernels of the head and of gradient norms: softmax by pieces of the vocabulary, rows of the
embedding, sums of squares.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first"])
def softmax_piece(logits, largest, total, chosen, targets, first, width, BLOCK: tl.constexpr):
    """Takes logits [n, width] of the words from `first` on into each position's running maximum, sum and
    target logit.
    """
    row = tl.program_id(0)
    target = tl.load(targets + row) - first
    if tl.load(targets + row) >= 0:
        top = tl.load(largest + row)
        added = tl.load(total + row)
        base = row.to(tl.int64) * width
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            value = tl.load(logits + base + at, mask=at < width, other=float("-inf")).to(tl.float32)
            new = tl.maximum(top, tl.max(value, 0))
            added = added * tl.exp(top - new) + tl.sum(tl.exp(value - new), 0)
            top = new
        tl.store(largest + row, top)
        tl.store(total + row, added)
        if (target >= 0) & (target < width):
            tl.store(chosen + row, tl.load(logits + base + target).to(tl.float32))


@triton.jit(do_not_specialize=["first"])
def softmax_grad(logits, largest, total, targets, share, first, width, BLOCK: tl.constexpr):
    """Logits [n, width] to the loss's gradient by them, in place; 0 where there is no target."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    base = row.to(tl.int64) * width
    value = tl.load(logits + base + at, mask=at < width, other=0.0).to(tl.float32)
    value = tl.exp(value - tl.load(largest + row)) / tl.load(total + row)
    value = (value - tl.where(at == target - first, 1.0, 0.0)) * tl.load(share)
    value = tl.where(target >= 0, value, 0.0)
    tl.store(logits + base + at, value.to(logits.dtype.element_ty), mask=at < width)


@triton.jit(do_not_specialize=["first", "rows"])
def add_rows(
    out, grad, ids, order, changes, count, first, rows, size, BLOCK: tl.constexpr, SUMS: tl.constexpr
):
    """Adds rows of `grad` to the rows of `out` whose word they belong to, in a fixed order.

    `ids` are sorted, `order` says whence each came. The program of an id's first occurrence adds up all of
    them.

    Args:
        changes: With SUMS, float32, one a program: by how much the sum of `out`'s squares grows.
    """
    place = tl.program_id(0)
    word = tl.load(ids + place)
    before = tl.load(ids + tl.maximum(place - 1, 0))
    change = 0.0
    if (word >= first) & (word < first + rows) & ((place == 0) | (before != word)):
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        total = tl.zeros([BLOCK], tl.float32)
        same = word
        while same == word:
            source = tl.load(order + place) * size
            total += tl.load(grad + source + at, mask=inside, other=0.0).to(tl.float32)
            place += 1
            same = tl.load(ids + place, mask=place < count, other=-1)
        cell = out + (word - first) * size + at
        old = tl.load(cell, mask=inside, other=0.0).to(tl.float32)
        new = old + total
        tl.store(cell, new.to(out.dtype.element_ty), mask=inside)
        change = tl.sum(new * new - old * old, 0)
    if SUMS:
        tl.store(changes + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), change)


@triton.jit(do_not_specialize=["count", "width", "length"])
def place_targets(targets, where, values, count, width, length, BLOCK: tl.constexpr):
    """Writes the values at the flat places [rows, width] to those of [rows, length]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    place = tl.load(where + at, mask=inside, other=0)
    tl.store(
        targets + place // width * length + place % width,
        tl.load(values + at, mask=inside, other=0),
        mask=inside,
    )


@triton.jit
def _sum_but(values, count, index, BLOCK: tl.constexpr):
    """Sum of `count` float32 values in a fixed order, without that at `index`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        # Volatile: other programs of this launch wrote some of them.
        total += tl.load(values + at, mask=(at < count) & (at != index), other=0.0, volatile=True)
    return tl.sum(total, 0)


@triton.jit
def _make_factor(square, max_norm, factor):
    """The clipping factor for a squared norm."""
    tl.store(factor, tl.minimum(max_norm / (tl.sqrt(square) + 1e-6), 1.0))


@triton.jit
def _keep_square(partial, count, all_squares, index, names, max_norm, factor):
    """Adds up partial sums, keeps the sum as the square at `index` and makes the clipping factor."""
    others = _sum_but(all_squares, names, index, 512)
    # What rounding leaves of sums that cancel out may be less than nothing.
    mine = tl.maximum(_sum_but(partial, count, -1, 1024), 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(all_squares + index, mine)
    _make_factor(others + mine, max_norm, factor)


@triton.jit(do_not_specialize=["count", "index", "names", "max_norm"])
def add_squares(partial, count, all_squares, index, names, max_norm, factor):
    """See `squares`, with the sums of all programs there already. One program."""
    _keep_square(partial, count, all_squares, index, names, max_norm, factor)


@triton.jit(do_not_specialize=["index", "names", "max_norm"])
def squares(
    grad,
    partial,
    arrived,
    all_squares,
    index,
    names,
    max_norm,
    factor,
    n,
    EACH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum of squares of EACH elements a program. The last one adds them up in order, keeps the gradient's
    squared norm among all of them, and makes the clipping factor of their sum.

    Args:
        arrived: int32, 0 before and after.
    """
    base = tl.program_id(0).to(tl.int64) * EACH
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, EACH, BLOCK):
        at = base + start + tl.arange(0, BLOCK)
        value = tl.load(grad + at, mask=at < n, other=0.0).to(tl.float32)
        total += value * value
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))
    tl.debug_barrier()  # the count belongs after the sum, whichever threads do them
    if tl.atomic_add(arrived, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        _keep_square(partial, tl.num_programs(0), all_squares, index, names, max_norm, factor)
        tl.store(arrived, 0)


@triton.jit(do_not_specialize=["names", "max_norm"])
def vector_squares(grads, places, arrived, all_squares, names, max_norm, factor, BLOCK: tl.constexpr):
    """The same for many small gradients at once, one a program.

    Args:
        grads: float32, one after the other.
        places: int32 [count, 3]: index, first element and elements of each.
    """
    place = places + tl.program_id(0) * 3
    first, n = tl.load(place + 1), tl.load(place + 2)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(grads + first + at, mask=at < n, other=0.0)
        total += value * value
    tl.store(all_squares + tl.load(place), tl.sum(total, 0))
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        _make_factor(_sum_but(all_squares, names, -1, 512), max_norm, factor)
        tl.store(arrived, 0)
