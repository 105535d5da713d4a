"""That the engine and its parts follow the limits that the memory model counts with."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import LossKind, OptimizerStateMode
from stages.engine import graph, head, ops, streams
from stages.memory import limits
from stages.memory.memory_model import Options, Shape, estimate
from stages.nvfp4 import codec
from stages.optim import states

CPU = torch.device("cpu")
GROUP_4B = limits.largest_weight(2560, 9728, 32, 8, 128)


def test_block_sizes_are_those_of_the_codec_and_the_optimizer() -> None:
    assert (limits.NVFP4_BLOCK, limits.STATE_BLOCK) == (codec.BLOCK, states.STATE_BLOCK)
    assert limits.UPDATE_CHUNK == states.UPDATE_CHUNK
    assert limits._ROW_MULTIPLE * limits.NVFP4_BLOCK % limits.UPDATE_CHUNK == 0


def test_the_engine_reads_the_limits() -> None:
    assert ops.MAX_PARTIAL_SUMS is limits.MAX_PARTIAL_SUMS and streams.RING_SLOTS is limits.RING_SLOTS
    assert graph.padded_length is limits.padded_length and head.caches_logits is limits.caches_logits


def test_ring_buffers_take_what_the_model_counts() -> None:
    """The model counts scale bytes and both rings; a ring adds only its alignment."""
    weights = streams.WeightPrefetcher(1000, torch.bfloat16, CPU)
    gradients = streams.GradientBuffer(1000, torch.bfloat16, CPU, streams.SideStream(CPU))
    for ring in (weights._ring, gradients._ring):
        assert ring._memory.nbytes == 2 * (limits.RING_SLOTS * 1000 + streams._ALIGNMENT)
    shape = Shape(4096, 256, 768, 6, 4, 2, 64)
    rounded = estimate(shape, Options()).weights - 2 * limits.RING_SLOTS * 2 * shape.largest_weight
    assert rounded == shape.layers * shape.layer / limits.NVFP4_BLOCK


def test_the_largest_weight_is_gate_and_up_or_query_key_and_value() -> None:
    assert GROUP_4B == 2 * 9728 * 2560
    assert limits.largest_weight(64, 16, 4, 2, 32) == 64 * 8 * 32


def test_chunks_fit_the_buffer() -> None:
    assert limits.head_chunk_rows(151936, 2560, GROUP_4B, 96) == 19456
    assert limits.head_chunk_rows(151936, 2560, GROUP_4B, 8 * 512) == 19456
    assert limits.head_chunk_rows(151936, 2560, GROUP_4B, 1 << 17) == 704
    assert limits.head_chunk_rows(300, 48, 1 << 20, 10) == 300
    assert limits.head_chunk_rows(4096, 256, 1536 * 256, 1 << 20) == 64, "never less than one step of rows"


def test_logits_are_cached_while_they_fit_the_buffer() -> None:
    assert limits.caches_logits(96, 151936, GROUP_4B) and not limits.caches_logits(512, 151936, GROUP_4B)


def test_padding() -> None:
    assert [limits.padded_length(width) for width in (1, 31, 32, 33, 191)] == [32, 32, 32, 64, 192]


@pytest.mark.parametrize(
    ("device", "accum", "mode", "loss", "expected"),
    [
        ("cuda", 1, OptimizerStateMode.INT8, LossKind.CE, {}),
        ("cpu", 2, OptimizerStateMode.FP32, LossKind.CE, {"device": "cpu"}),
        (
            "cuda",
            2,
            OptimizerStateMode.FP32,
            LossKind.CE,
            {"grad_accum": "2", "optimizer_state_mode": "fp32"},
        ),
        ("cuda", 1, OptimizerStateMode.INT8, LossKind.SCALAR, {"loss": "scalar"}),
    ],
)
def test_what_needs_the_plain_path(
    device: str, accum: int, mode: OptimizerStateMode, loss: LossKind, expected: dict[str, str]
) -> None:
    assert limits.plain_path_settings(device, accum, mode, loss) == expected
