"""Qwen3's `config.json`, read strictly: a model that would compute something else is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.nvfp4.codec import BLOCK
from stages.process.errors import InputProblems


class ConfigError(InputProblems):
    """A model folder whose `config.json` or `tokenizer.json` is not of a Qwen3 that this code computes."""


@dataclass(frozen=True)
class Qwen3Config:
    """The keys of Qwen3's `config.json` that decide what is computed."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_id: int
    bos_token_id: int

    @property
    def parameters(self) -> int:
        """Count of parameters, the head counted only where it is separate from the embedding."""
        attention = (
            self.hidden_size * self.head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads)
        )
        norms = 2 * self.hidden_size + 2 * self.head_dim
        layer = attention + 3 * self.hidden_size * self.intermediate_size + norms
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + self.hidden_size + embeddings


_INTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_MUST_BE: dict[str, tuple[Any, ...]] = {
    "model_type": ("qwen3",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "rope_scaling": (None,),
    "use_sliding_window": (False, None),
}


def read_config(path: Path) -> Qwen3Config:
    """Reads and checks a `config.json`.

    Raises:
        ConfigError: listing every missing key, impossible number, and option that this code does not compute.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(path, ["no such file: the model folder needs Qwen3's config.json"]) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(path, [f"not valid JSON: {error}"]) from None
    if not isinstance(data, dict):
        raise ConfigError(path, ["not a JSON object"])
    problems = [
        f"{key}: {data[key]!r}: only {allowed[0]!r} is computed here"
        for key, allowed in _MUST_BE.items()
        if key in data and data[key] not in allowed
    ]
    for key in _INTS:
        value = data.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            problems.append(f"{key}: {value!r}: must be a whole number, 1 or more")
    if problems:
        raise ConfigError(path, problems)
    config = _build(data)
    problems = _shape_problems(config)
    if problems:
        raise ConfigError(path, problems)
    return config


def _build(data: dict[str, Any]) -> Qwen3Config:
    eos = data.get("eos_token_id", -1)
    rope = data.get("rope_parameters") or {}
    return Qwen3Config(
        **{key: data[key] for key in _INTS},
        head_dim=data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"],
        rope_theta=float(data.get("rope_theta") or rope.get("rope_theta") or 10000.0),
        rms_norm_eps=float(data.get("rms_norm_eps", 1e-6)),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        eos_token_id=int(eos[0] if isinstance(eos, list) else eos if eos is not None else -1),
        bos_token_id=int(data.get("bos_token_id") or -1) if data.get("bos_token_id") != 0 else 0,
    )


def _shape_problems(config: Qwen3Config) -> list[str]:
    problems = []
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    if heads % groups:
        problems.append(f"num_attention_heads: {heads}: not divisible by num_key_value_heads ({groups})")
    if config.head_dim % 2:
        problems.append(f"head_dim: {config.head_dim}: rotary embedding needs an even number")
    widths = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads x head_dim": heads * config.head_dim,
    }
    problems += [
        f"{key}: {n}: not a multiple of {BLOCK}, the NVFP4 block" for key, n in widths.items() if n % BLOCK
    ]
    return problems
