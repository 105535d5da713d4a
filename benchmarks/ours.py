"""One measured run of the engine at a model's shape: random weights, no file. `python -m benchmarks.ours
'{"batch": 1, …}'`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from stages.contract.recipe import ComputeDtype, DataSource, OptimizerStateMode, Rounding, ScaleRule, Schedule
from stages.contract.requests import TrainRequest
from stages.engine.engine import Engine
from stages.optim.adamw import AdamWSettings
from stages.optim.factory import make_optimizer
from stages.process.process import make_deterministic
from stages.qwen3.batches import Batch
from stages.qwen3.config import Qwen3Config, read_config
from stages.qwen3.model import Qwen3
from stages.train.trainer import trainable_names

SHAPE_4B = Qwen3Config(151936, 2560, 9728, 36, 32, 8, 128, 5e6, 1e-6, 262144, True, 151645, 151643)


def build(config: Qwen3Config, tied: bool, rule: ScaleRule) -> Qwen3:
    """A model of random BF16 masters on the GPU, never twice in memory."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Qwen3(config, tied)
    model.compute_dtype = torch.bfloat16
    for name, parameter in dict(model.named_parameters()).items():
        value = torch.empty(parameter.shape, dtype=torch.bfloat16, device="cuda")
        value = value.normal_(0, 0.02) if value.ndim > 1 else value.fill_(1)
        owner = model.get_submodule(name.rpartition(".")[0])
        owner.weight = torch.nn.Parameter(value)
    model.use_rule(rule)
    return model


def request_of(
    batch: int, seq_len: int, checkpointing: bool, train_last_layers: int, clip: float, lr: float
) -> TrainRequest:
    """The numbers of a request; its files are not used."""
    return TrainRequest(
        model_dir="",
        input_weight="",
        output_weight="-",
        events="",
        result="",
        data=[DataSource("")],
        steps=1,
        lr=lr,
        batch_size=batch,
        seq_len=seq_len,
        gradient_checkpointing=checkpointing,
        train_last_layers=train_last_layers,
        clip_norm=clip,
        compute_dtype=ComputeDtype.BF16,
        warmup_steps=0,
        schedule=Schedule.CONSTANT,
        beta2=0.999,
    )


def random_batch(batch: int, seq_len: int, vocab: int) -> Batch:
    """Every position has a target."""
    ids = torch.randint(0, vocab, (batch, seq_len), device="cuda")
    return Batch(
        ids, torch.arange(batch * seq_len, device="cuda"), ids.roll(-1, 1).flatten(), batch * seq_len
    )


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """Runs one configuration.

    Args:
        options: `batch`, `seq_len`; optionally `checkpointing`, `tied`, `config` (a `config.json`),
            `train_last_layers`, `capture`, `rule`, `clip`, `lr`, `steps`, `profile`.
    """
    make_deterministic(0)
    torch.cuda.reset_peak_memory_stats()
    get = options.get
    config = read_config(Path(options["config"])) if get("config") else SHAPE_4B
    batch, seq_len, lr = options["batch"], options["seq_len"], get("lr", 1e-5)
    request = request_of(
        batch, seq_len, get("checkpointing", False), get("train_last_layers", 0), get("clip", 1.0), lr
    )
    model = build(config, get("tied", True), ScaleRule(get("rule", "search")))
    names = trainable_names(model, request.train_last_layers)
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.0, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 0)
    optimizer = make_optimizer({n: p for n, p in model.named_parameters() if n in set(names)}, settings)
    notes: list[str] = []
    engine = Engine(model, names, optimizer, request, notes.append, get("capture", True))
    one = random_batch(batch, seq_len, config.vocab_size)
    times, losses, warm = [], [], 3
    for step in range(1, warm + get("steps", 12) + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        optimizer.begin_step(step, lr)
        loss = engine.step(one)
        torch.cuda.synchronize()
        if step > warm:
            times.append((time.perf_counter() - started) * 1e3)
        losses.append(float(loss))
    result = {
        "alloc_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "ms": statistics.median(times), "ms_min": min(times), "ms_max": max(times),
        "loss_first": losses[0], "loss_last": losses[-1],
        "grad_norm": engine.clip.norm(), "update_ratio": optimizer.take_update_ratio(),
        "params": sum(p.numel() for p in model.parameters()), "notes": notes,
    }  # fmt: skip
    if get("profile"):
        result["profile"] = _profile(lambda: engine.step(one))
    return result


def _profile(work: Any) -> list[tuple[str, float, int]]:
    """(kernel, ms a step, launches) of the longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    rows = [(e.key[:60], e.device_time_total / 1e3, e.count) for e in found.key_averages()]
    return sorted(rows, key=lambda row: -row[1])[:22]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
