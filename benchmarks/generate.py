"""Throughput of answering probes: batches against one at a time, and against transformers' `generate`, same
weights, same machine.

`python -m benchmarks.generate` prints one table and writes `benchmarks/results/generate.json`. All ways take
turns, so that what else the machine does falls on each of them; medians are told, in wall-clock time and in
CPU time of this process. Greedy, float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from stages.contract.recipe import ComputeDtype, ScaleRule, Template
from stages.contract.requests import InferencePath
from stages.contract.rows import read_probes
from stages.inference.generate import GenerationConfig, generate
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import load_tokenizer
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model

ROOT = Path(__file__).parent.parent
PROBES = ("identity", "contrast", "skills", "ufo")
ONE, BATCH, PEER = "one at a time", "batches", "transformers"

Answers = list[list[int]]


@dataclass(frozen=True)
class Measured:
    """One way of answering all prompts."""

    way: str
    rounds: int
    tokens: int
    """Of all answers, without end markers."""
    wall_seconds: float
    """Median of the rounds."""
    cpu_seconds: float
    answers_per_second: float
    """By the wall clock."""


def _peer(model: Qwen3, folder: Path) -> Any:
    """The same network of another make, with the same weights."""
    config = transformers.Qwen3Config(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
    peer = transformers.Qwen3ForCausalLM(config)
    peer.load_state_dict(model.state_dict())
    return peer.float().eval()


def _peer_answers(
    peer: Any, prompts: Sequence[list[int]], stops: frozenset[int], max_tokens: int, batch_size: int
) -> Answers:
    """By transformers, in batches of like length, padded on the left, with the mask that says so."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    out: Answers = [[] for _ in prompts]
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = max(len(prompts[i]) for i in rows)
        ids = torch.tensor([[0] * (longest - len(prompts[i])) + prompts[i] for i in rows])
        mask = torch.tensor([[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in rows])
        made = peer.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=sorted(stops),
            pad_token_id=min(stops),
        )
        for row, answer in zip(rows, made[:, longest:].tolist(), strict=True):
            out[row] = answer[: next((i for i, token in enumerate(answer) if token in stops), len(answer))]
    return out


def _timed(work: Callable[[], Answers]) -> tuple[Answers, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    answers = work()
    return answers, time.perf_counter() - wall, time.process_time() - cpu


def _measure(
    ways: dict[str, Callable[[], Answers]], rounds: int
) -> tuple[list[Measured], dict[str, Answers]]:
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    answers: dict[str, Answers] = {}
    for _ in range(rounds):
        for way, work in ways.items():
            answers[way], wall, cpu = _timed(work)
            times[way].append((wall, cpu))
    found = []
    for way, taken in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*taken, strict=True))
        found.append(Measured(way, rounds, sum(map(len, answers[way])), wall, cpu, len(answers[way]) / wall))
    return found, answers


def _table(found: Sequence[Measured], same: dict[str, bool]) -> str:
    batch = next(m for m in found if m.way == BATCH)
    lines = [
        f"{'way':16} {'wall s':>8} {'CPU s':>8} {'answers/s':>10} {'tokens/s':>9} {'× batches':>10}"
        f" {'× by CPU':>9}  same answers"
    ]
    lines += [
        f"{m.way:16} {m.wall_seconds:8.2f} {m.cpu_seconds:8.2f} {m.answers_per_second:10.1f}"
        f" {m.tokens / m.wall_seconds:9.0f} {m.wall_seconds / batch.wall_seconds:10.2f}"
        f" {m.cpu_seconds / batch.cpu_seconds:9.2f}  {'yes' if same[m.way] else 'NO'}"
        for m in found
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generate", description="Throughput of answering probes."
    )
    parser.add_argument("--model-dir", type=Path, default=ROOT / "artifacts/base/qwen3-nano")
    parser.add_argument(
        "--weight", type=Path, default=ROOT / "artifacts/base/qwen3-nano/qwen3-nano-nvfp4.dat"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/generate.json")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Measures; 0 if all ways gave the same answers, else 1."""
    options = _parser().parse_args(argv)
    torch.set_deterministic_debug_mode("error")
    if options.threads:
        torch.set_num_threads(options.threads)
    config = read_config(options.model_dir / "config.json")
    tokenizer = load_tokenizer(options.model_dir, config, Template.QWEN)
    with DatFile(options.weight) as dat:
        model, _ = load_model(
            dat,
            config,
            path=InferencePath.BRIDGE,
            rule=ScaleRule.SEARCH,
            compute_dtype=ComputeDtype.FP32,
            device=torch.device("cpu"),
        )
    model.eval().requires_grad_(False)
    prompts = [
        tokenizer.prompt_ids(p.prompt)
        for name in PROBES
        for p in read_probes(ROOT / f"datasets/probes/{name}.tsv")
    ]
    generation, stops, peer = (
        GenerationConfig(options.max_tokens),
        tokenizer.stop_ids,
        _peer(model, options.model_dir),
    )

    def ours(batch_size: int) -> Answers:
        return [
            answer.token_ids for answer in generate(model, prompts, stops, generation, batch_size=batch_size)
        ]

    ways: dict[str, Callable[[], Answers]] = {
        BATCH: lambda: ours(options.batch_size),
        PEER: lambda: _peer_answers(peer, prompts, stops, options.max_tokens, options.batch_size),
        ONE: lambda: ours(1),
    }
    found, answers = _measure(ways, options.rounds)
    same = {way: given == answers[BATCH] for way, given in answers.items()}
    settings = {"prompts": len(prompts), "batch_size": options.batch_size, "max_tokens": options.max_tokens}
    machine = {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    sys.stdout.write(f"{settings}\n{machine}\n{_table(found, same)}")
    told = {**settings, **machine, "same_answers": same, "ways": [asdict(m) for m in found]}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
