"""A real training at a model's size on a GPU: `stages.train` on rows of mixed length, from a `.dat` on disk
to another.

`python -m benchmarks.real '{"rows": 400}'` makes a random 4B-shaped file with a head of its own and rows of
16 to 192 tokens, trains twice, and prints JSON: seconds of loading and of the export, whether both runs
export the same bytes, the mean update ratio, and how the steps' pace compares with the bare CUDA graphs: the
sum over the same steps of what replaying the graph of their width takes alone. Steps before every width's
graph was captured are left out.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.dat import specs
from benchmarks.ours import SHAPE_4B, build, random_batch, request_of
from stages.contract.recipe import (
    DataSource,
    OptimizerStateMode,
    Overflow,
    Rounding,
    ScaleRule,
    Schedule,
    Template,
)
from stages.contract.requests import TrainRequest
from stages.contract.serial import dump
from stages.engine.engine import Engine
from stages.memory.limits import padded_length
from stages.nvfp4.codec import encode
from stages.optim.adamw import AdamWSettings
from stages.optim.factory import make_optimizer
from stages.qwen3.batches import encode_rows, row_order
from stages.qwen3.config import read_config
from stages.qwen3.template import ChatTokenizer, load_tokenizer
from stages.train.trainer import trainable_names
from stages.weights.dat import Payload, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec

NANO = Path("artifacts/base/qwen3-nano")
BATCH, LONGEST, STEPS = 8, 192, 80


def write_model(folder: Path) -> Path:
    """A folder with config, tokenizer and random weights of the 4B shape; returns the weight."""
    config = json.loads((NANO / "config.json").read_text(encoding="utf-8"))
    shape = SHAPE_4B
    config |= {
        "vocab_size": shape.vocab_size, "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers, "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads, "head_dim": shape.head_dim,
        "tie_word_embeddings": False,
        "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes((NANO / "tokenizer.json").read_bytes())
    entries = [(spec, _random(spec)) for spec in specs(shape.num_hidden_layers)]
    norms = {
        f"model.layers.{i}.{n}": shape.hidden_size
        for i in range(shape.num_hidden_layers)
        for n in ("input_layernorm", "post_attention_layernorm")
    }
    norms |= {
        f"model.layers.{i}.self_attn.{n}": shape.head_dim
        for i in range(shape.num_hidden_layers)
        for n in ("q_norm", "k_norm")
    }
    for name, size in (norms | {"model.norm": shape.hidden_size}).items():
        ones = torch.ones(size, dtype=torch.float16)
        entries.append(
            (Spec(f"{name}.weight", ElemType.FLOAT16, (size,)), lambda ones=ones: [tensor_bytes(ones)])
        )  # type: ignore[misc]
    write_dat(folder / "weight.dat", entries)
    return folder / "weight.dat"


def _random(spec: Spec) -> Payload:
    """Normal values of deviation 0.02, in the entry's own type; codes and scales of one weight come from the
    same values.
    """
    owner, _, kind = spec.name.rpartition(".")
    columns = spec.shape[1] * {"qdata": 2, "scale": 16}.get(kind, 1)

    def pieces() -> list[Any]:
        generator = torch.Generator("cuda").manual_seed(len(owner) * 1009 + sum(owner.encode()))
        values = torch.randn(spec.shape[0], columns, generator=generator, device="cuda") * 0.02
        if kind not in ("qdata", "scale"):
            return [tensor_bytes(values.half().cpu())]
        bundle = encode(values.bfloat16(), ScaleRule.AMAX)
        return [tensor_bytes((bundle.codes if kind == "qdata" else bundle.scales).cpu())]

    return pieces


def _tokenizer() -> ChatTokenizer:
    return load_tokenizer(NANO, read_config(NANO / "config.json"), Template.QWEN)


def write_rows(path: Path, count: int) -> None:
    """Rows of 16 to `LONGEST` tokens, evenly: questions whose answers are made of words of the base rows."""
    tokenizer, choose = _tokenizer(), random.Random(0)
    words = [
        line.split("\t")[1]
        for line in Path("datasets/base/train.tsv").read_text(encoding="utf-8").splitlines()[1:4000]
    ]
    lines = []
    for number in range(count):
        target, room = "", choose.randint(16, LONGEST) - len(tokenizer.prompt_ids(f"q{number}"))
        while len(tokenizer.answer_ids(target)) < room:
            target += choose.choice(words)[: choose.randint(1, 6)]
        while len(tokenizer.answer_ids(target)) > max(room, 2):
            target = target[:-1]
        lines.append(f"q{number}\t{target.strip() or '是'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def train(folder: Path, weight: Path, rows: Path, steps: int) -> dict[str, Any]:
    """Trains in a process of its own; the result with `moments`, seconds at the end of each step."""
    request = TrainRequest(
        model_dir=str(folder),
        input_weight=str(weight),
        output_weight=str(folder / "out.dat"),
        events=str(folder / "events"),
        result=str(folder / "result.json"),
        data=[DataSource(str(rows))],
        steps=steps,
        lr=1e-5,
        batch_size=BATCH,
        seq_len=LONGEST,
        warmup_steps=5,
        schedule=Schedule.CONSTANT,
        beta2=0.999,
        overflow=Overflow.CUT_PROMPT,
        device="cuda",
        weight_decay=0.01,
        lr_groups={"lm_head": 2.0},
    )
    for name in ("out.dat", "events", "result.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "request.json").write_text(dump(request), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "stages.train", str(folder / "request.json")], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    events = [json.loads(line) for line in (folder / "events").read_text(encoding="utf-8").splitlines()]
    moments = [datetime.fromisoformat(e["time_utc"]).timestamp() for e in events if e["kind"] == "step"]
    return json.loads((folder / "result.json").read_text(encoding="utf-8")) | {"moments": moments}


def widths(rows: Path, steps: int) -> list[int]:
    """The graph's width of every step of that training."""
    encoded = encode_rows([DataSource(str(rows))], _tokenizer(), LONGEST, Overflow.CUT_PROMPT)
    request = request_of(BATCH, LONGEST, False, 0, 1.0, 1e-5)
    order = row_order(len(encoded), request.sampling, request.seed)
    longest = [max(len(encoded[next(order)]) for _ in range(BATCH)) - 1 for _ in range(steps)]
    return [padded_length(width) for width in longest]


def bare(wanted: set[int]) -> dict[int, float]:
    """Seconds of one replay at each width, nothing beside it."""
    request = request_of(BATCH, LONGEST, False, 0, 1.0, 1e-5)
    model = build(SHAPE_4B, False, ScaleRule.SEARCH)
    settings = AdamWSettings(0.9, 0.999, 1e-8, 0.01, OptimizerStateMode.INT8, Rounding.STOCHASTIC, 1024, 0)
    names = trainable_names(model, 0)
    optimizer = make_optimizer({n: p for n, p in model.named_parameters() if n in set(names)}, settings)
    notes: list[str] = []
    engine = Engine(model, names, optimizer, request, notes.append)
    optimizer.begin_step(1, 1e-5)
    found: dict[int, float] = {}
    for width in sorted(wanted):
        one = random_batch(BATCH, width, SHAPE_4B.vocab_size)
        for _ in range(2):
            engine.step(one)
        graph = engine.runner.graph(BATCH, width)
        if graph is None:
            raise RuntimeError(f"width {width}: no graph was captured: {notes}")
        found[width] = statistics.median(_timed(graph.replay) for _ in range(5))
    return found


def _timed(work: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """All figures.

    Args:
        options: optionally `rows` (count) and `steps`.
    """
    steps = options.get("steps", STEPS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weight, rows = write_model(folder), folder / "rows.tsv"
        write_rows(rows, options.get("rows", 400))
        torch.cuda.empty_cache()
        runs = [train(folder, weight, rows, steps) for _ in range(2)]
        taken = widths(rows, steps)
        nbytes = weight.stat().st_size
    alone, seen = bare(set(taken)), Counter[int]()
    settled = 0
    for place, width in enumerate(taken):
        seen[width] += 1
        settled = place if seen[width] == 2 else settled  # the second step of a width captures
    replayed = sum(alone[width] for width in taken[settled + 1 :])
    figures = runs[0]["figures"]
    return {
        "file_bytes": nbytes,
        "widths": dict(sorted(Counter(taken).items())),
        "replay_ms": {width: seconds * 1e3 for width, seconds in alone.items()},
        "steps_compared": steps - settled - 1,
        "steps_a_second": [
            (steps - settled - 1) / (run["moments"][-1] - run["moments"][settled]) for run in runs
        ],
        "pace_of_bare_replay": [replayed / (run["moments"][-1] - run["moments"][settled]) for run in runs],
        "same_export": len({run["sha256"] for run in runs}) == 1,
        "seconds_load": [run["figures"]["seconds_loaded"] for run in runs],
        "seconds_export": [run["figures"]["seconds_exported"] for run in runs],
        "update_ratio_mean": figures["update_ratio_mean"],
        "loss": [figures["loss_first"], figures["loss_last"]],
        "notes": runs[0]["notes"],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
