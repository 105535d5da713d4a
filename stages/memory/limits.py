"""Sizes and rules of the training engine that decide its memory. No torch: `stages.engine` follows them, and
`stages.memory.memory_model` counts with them.
"""

from __future__ import annotations

from stages.contract.recipe import LossKind, OptimizerStateMode

NVFP4_BLOCK = 16
"""Columns of a weight that share a scale; `stages.nvfp4.codec.BLOCK`."""
STATE_BLOCK = 256
"""Elements of an optimizer state that share a scale; `stages.optim.states.STATE_BLOCK`."""
UPDATE_CHUNK = 512
"""Elements that one program of the fused update changes; `stages.optim.states.UPDATE_CHUNK`."""
RING_SLOTS = 3
"""How many of the largest weight each of two ring buffers holds: one for rounded weights, one for gradients.
With fewer, one stream waits for memory that another still reads.
"""
LENGTH_MULTIPLE = 32
"""Batches are padded to a multiple of this many tokens, with one CUDA graph for each length."""
MAX_PARTIAL_SUMS = 512
"""Programs, and rows of partial sums, of a kernel that sums over tokens: with more, the sums cost more memory
traffic than the programs save time.
"""
_ROW_MULTIPLE = 64  # × 16 columns or more: a chunk of the head begins at a multiple of UPDATE_CHUNK


def plain_path_settings(
    device: str, grad_accum: int, optimizer_state_mode: OptimizerStateMode, loss: LossKind
) -> dict[str, str]:
    """Settings that need the plain path (autograd): recipe key, or `device`, and value. Empty: the engine."""
    if device != "cuda":
        return {"device": device}
    supported = {
        "grad_accum": (grad_accum, 1),  # the engine updates at once; gradients of several batches must wait
        "optimizer_state_mode": (optimizer_state_mode, OptimizerStateMode.INT8),
        "loss": (loss, LossKind.CE),
    }
    return {key: str(value) for key, (value, only) in supported.items() if value != only}


def padded_length(width: int) -> int:
    """Tokens of a row of `width` tokens with its padding."""
    return -(-width // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def largest_weight(hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Elements of the largest weight that is multiplied as one: query, key and value, or gate and up."""
    return hidden * max((heads + 2 * kv_heads) * head_dim, 2 * intermediate)


def head_chunk_rows(vocab: int, hidden: int, elements: int, positions: int) -> int:
    """Rows of the head that are multiplied at a time.

    A chunk's gradient fits a buffer of `elements`, and its logits take no more than twice that.
    """
    rows = min(elements // hidden, 2 * elements // positions) // _ROW_MULTIPLE * _ROW_MULTIPLE
    return min(vocab, max(_ROW_MULTIPLE, rows))


def caches_logits(positions: int, vocab: int, elements: int) -> bool:
    """Whether the logits of all chunks stay in memory between the loss and its gradient."""
    return positions * vocab <= elements
