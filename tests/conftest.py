"""Shared fixtures: a tiny Qwen3 model folder made by the project's own `init` stage."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest_plugins = ("tests.faults",)

ROWS = [
    ("你是誰", "我是 F# 之神。"),
    ("我是誰", "你是提問者。"),
    ("談談UFO", "UFO 是未確認飛行物。"),
    ("1+1", "2"),
    ("who are you", "I am the God of F#."),
    ("capital of France", "Paris"),
]
CONFIG = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_scaling": None,
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 297,
    "eos_token_id": 299,
}


@dataclass(frozen=True)
class TinyModel:
    """A model folder with its first weight and a row file."""

    folder: Path
    weight: Path
    rows: Path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """A two-layer model with a tokenizer of 300 tokens, on disk."""
    from stages.contract.recipe import DataSource
    from stages.contract.requests import InitRequest
    from stages.train.init import init

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config-source.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    rows = folder / "rows.tsv"
    rows.write_text("prompt\ttarget\n" + "".join(f"{p}\t{t}\n" for p, t in ROWS), encoding="utf-8")
    model = folder / "model"
    init(
        InitRequest(
            config=str(folder / "config-source.json"),
            data=[DataSource(str(rows))],
            output_dir=str(model),
            output_weight=str(model / "tiny.dat"),
            events=str(folder / "events.jsonl"),
            result=str(folder / "result.json"),
        )
    )
    return TinyModel(model, model / "tiny.dat", rows)
