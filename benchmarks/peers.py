"""One measured run of a peer on the same shape: `transformers`' Qwen3 in BF16 with an optimizer people would
pick.

`python -m benchmarks.peers '{"peer": "torch", "batch": 1, "seq_len": 96}'`. None of them rounds its forward
weights to 4 bits.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

PEERS = {
    "torch": "torch AdamW, fused",
    "bnb": "bitsandbytes AdamW8bit",
    "bnb release": "bitsandbytes AdamW8bit, update inside backward",
    "ao": "torchao AdamW8bit, stochastic rounding",
    "flash24": "flashoptim FlashAdamW, 24-bit masters",
    "flash24 release": "flashoptim FlashAdamW, 24-bit masters, gradient release",
    "flash16 release": "flashoptim FlashAdamW, 16-bit masters, gradient release",
}
"""What each name of `peer` is. Imports stand where they are used: one missing library leaves the others
measurable.
"""


def _model(checkpointing: bool) -> torch.nn.Module:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936, hidden_size=2560, intermediate_size=9728,
        num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8,
        head_dim=128, max_position_embeddings=4096, rope_theta=5e6, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def _optimizer(peer: str, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    name, lr = peer.split()[0], 1e-5
    if name == "torch":
        return torch.optim.AdamW(parameters, lr=lr, fused=True)
    if name == "bnb":
        import bitsandbytes

        return bitsandbytes.optim.AdamW8bit(parameters, lr=lr)
    if name == "ao":
        from torchao.optim import AdamW8bit

        return AdamW8bit(parameters, lr=lr, bf16_stochastic_round=True)
    from flashoptim import FlashAdamW

    return FlashAdamW(parameters, lr=lr, master_weight_bits=24 if name == "flash24" else None)


def _release(peer: str, model: torch.nn.Module, parameters: list[torch.nn.Parameter]) -> None:
    """The update inside backward: the library's own way, or one optimizer a parameter."""
    if peer.startswith("flash"):
        from flashoptim import enable_gradient_release

        model.kept_handle = enable_gradient_release(model, _optimizer(peer, parameters))  # type: ignore[assignment]
        return
    for parameter in parameters:
        one = _optimizer(peer, [parameter])

        def update(_: torch.Tensor, one: torch.optim.Optimizer = one) -> None:
            one.step()
            one.zero_grad(set_to_none=True)

        parameter.register_post_accumulate_grad_hook(update)


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Runs one configuration.

    Args:
        options: `peer` (a key of `PEERS`), `batch`, `seq_len`; optionally `checkpointing`, `steps`.
    """
    peer = options["peer"]
    model = _model(options.get("checkpointing", False))
    parameters = list(model.parameters())
    optimizer = None
    if peer.endswith("release"):
        _release(peer, model, parameters)
    else:
        optimizer = _optimizer(peer, parameters)
    ids = torch.randint(0, 151936, (options["batch"], options["seq_len"]), device="cuda")
    times, warm = [], 3
    for step in range(warm + options.get("steps", 6)):
        torch.cuda.synchronize()
        started = time.perf_counter()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if optimizer is not None:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= warm:
            times.append((time.perf_counter() - started) * 1e3)
    return {
        "alloc_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
        "loss_last": float(loss.detach()),
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
