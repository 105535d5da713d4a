"""The product that makes a weight's gradient as a Triton kernel, for few tokens: its sum of squares comes
without another pass over it.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens"])
def weight_grad(
    grad, x, out, sums, tokens, stride, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr
):
    """out [rows, columns] = grad^T x in tiles that divide it, and of each tile the sum of squares before
    rounding.

    Args:
        grad: [tokens, rows], `stride` elements from token to token.
        x: [tokens, columns].
        sums: float32, one a program.
    """
    row, column = (
        tl.program_id(1) * ROWS + tl.arange(0, ROWS),
        tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS),
    )
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for token in range(0, tokens, STEP):
        here = token + tl.arange(0, STEP)
        left = tl.load(grad + here[None, :] * stride + row[:, None], mask=(here < tokens)[None, :], other=0.0)
        right = tl.load(
            x + here[:, None] * columns + column[None, :], mask=(here < tokens)[:, None], other=0.0
        )
        total = tl.dot(left, right, total)
    tl.store(
        sums + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(total * total, 1), 0)
    )
    tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], total.to(out.dtype.element_ty))
