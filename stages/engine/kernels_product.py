"""Matrix products as Triton kernels, for few tokens: they wait for memory, and take few registers.

cuBLAS fills a processor's registers: nothing runs beside it there. These leave room for the rounding of the next weight, which needs
arithmetic only.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def weight_grad(grad, x, out, sums, tokens, stride, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    """out [rows, columns] = grad^T x in tiles that divide it, and of each tile the sum of squares before rounding.

    Args:
        grad: [tokens, rows], `stride` elements from token to token.
        x: [tokens, columns].
        sums: float32, one a program.
    """
    row, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for token in range(0, tokens, STEP):
        here = token + tl.arange(0, STEP)
        left = tl.load(grad + here[None, :] * stride + row[:, None], mask=(here < tokens)[None, :], other=0.0)
        right = tl.load(x + here[:, None] * columns + column[None, :], mask=(here < tokens)[:, None], other=0.0)
        total = tl.dot(left, right, total)
    tl.store(sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(total * total, 1), 0))
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], total.to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["tokens", "steps"])
def linear(
    x, weight, out, tokens, columns, rows, steps, TOKENS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """out [splits, tokens, rows] = x [tokens, columns] weight^T, summed over `steps` times STEP columns a split."""
    token, row, step = tl.arange(0, TOKENS), tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, STEP)
    inside = (token < tokens)[:, None]
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    first = tl.program_id(1) * steps * STEP
    for column in range(first, min(first + steps * STEP, columns), STEP):
        left = tl.load(x + token[:, None] * columns + (column + step)[None, :], mask=inside, other=0.0)
        right = tl.load(weight + row[None, :] * columns + (column + step)[:, None])
        total = tl.dot(left, right, total)
    at = (tl.program_id(1) * tokens + token)[:, None] * rows + row[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["splits"])
def add_up(partial, residual, out, splits, n, BLOCK: tl.constexpr):
    """out [n] = residual + the sum of partial [splits, n], which is rounded before."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(partial + at, mask=inside, other=0.0)
    for split in range(1, splits):
        total += tl.load(partial + split * n + at, mask=inside, other=0.0)
    kind = out.dtype.element_ty
    total = total.to(kind).to(tl.float32) + tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, total.to(kind), mask=inside)
