"""Triton kernels of `stages.optim.fused_clip`: squared norms of gradients and the clipping factor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _sum_except(values, count, index, BLOCK: tl.constexpr):
    """Sum of `count` float32 values in a fixed order, without that at `index`."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        # Volatile: other programs of this launch wrote some of them.
        total += tl.load(values + at, mask=(at < count) & (at != index), other=0.0, volatile=True)
    return tl.sum(total, 0)


@triton.jit
def _store_factor(squared_norm, max_norm, factor):
    """Stores the clipping factor of a squared norm."""
    tl.store(factor, tl.minimum(max_norm / (tl.sqrt(squared_norm) + 1e-6), 1.0))


@triton.jit
def _store_norm(partial, count, squared_norms, index, norm_count, max_norm, factor):
    """Adds up `count` partial sums to the squared norm at `index`; stores the factor of the global norm."""
    rest = _sum_except(squared_norms, norm_count, index, 512)
    # The sums may contain negative corrections: rounding can leave a total slightly below 0.
    own = tl.maximum(_sum_except(partial, count, -1, 1024), 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(squared_norms + index, own)
    _store_factor(rest + own, max_norm, factor)


@triton.jit(do_not_specialize=["count", "index", "norm_count", "max_norm"])
def add_square_sums(partial, count, squared_norms, index, norm_count, max_norm, factor):
    """`squared_norm` of a gradient whose partial sums of squares are known. One program."""
    _store_norm(partial, count, squared_norms, index, norm_count, max_norm, factor)


@triton.jit(do_not_specialize=["index", "norm_count", "max_norm"])
def squared_norm(
    grad, partial, done_count, squared_norms, index, norm_count, max_norm, factor, n,
    PER_PROGRAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Squared norm of a gradient of n elements, and the clipping factor of the global norm.

    Each program adds up PER_PROGRAM elements; the last one to finish adds up the programs' sums in order.

    Args:
        partial: float32, one a program.
        done_count: int32, programs that finished: 0 before and after.
        squared_norms: float32 [norm_count], of all gradients; that at `index` is written.
        factor: float32, written.
    """
    base = tl.program_id(0).to(tl.int64) * PER_PROGRAM
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.static_range(0, PER_PROGRAM, BLOCK):
        at = base + start + tl.arange(0, BLOCK)
        value = tl.load(grad + at, mask=at < n, other=0.0).to(tl.float32)
        total += value * value
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))
    tl.debug_barrier()  # the sum must be stored before the count, whichever threads do them
    if tl.atomic_add(done_count, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        _store_norm(partial, tl.num_programs(0), squared_norms, index, norm_count, max_norm, factor)
        tl.store(done_count, 0)


@triton.jit(do_not_specialize=["norm_count", "max_norm"])
def squared_norm_many(
    grads, ranges, done_count, squared_norms, norm_count, max_norm, factor, BLOCK: tl.constexpr
):
    """`squared_norm` of many small gradients at once, one a program.

    Args:
        grads: float32, one after the other.
        ranges: int32 [count, 3]: of each gradient its index, first element and number of elements.
    """
    range_at = ranges + tl.program_id(0) * 3
    first, n = tl.load(range_at + 1), tl.load(range_at + 2)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(grads + first + at, mask=at < n, other=0.0)
        total += value * value
    tl.store(squared_norms + tl.load(range_at), tl.sum(total, 0))
    tl.debug_barrier()
    if tl.atomic_add(done_count, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        _store_factor(_sum_except(squared_norms, norm_count, -1, 512), max_norm, factor)
        tl.store(done_count, 0)
