"""Checkpoints as transformers saves them, and logits by transformers and by this project."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config as PeerConfig
from transformers import Qwen3ForCausalLM

from stages.contract.requests import InferencePath
from stages.qwen3.config import read_config
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import CONFIG
from tests.stages.weights.conftest import LOADING

IDS = torch.arange(3, 43)[None]


def save_checkpoint(path: Path, *, tied: bool, shards: str = "5GB") -> Qwen3ForCausalLM:
    """A checkpoint as transformers saves it, of BF16 values that float16 holds too."""
    settings = {key: value for key, value in CONFIG.items() if key != "model_type"} | {
        "tie_word_embeddings": tied
    }
    torch.manual_seed(5)
    model = Qwen3ForCausalLM(PeerConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.05))
            parameter.copy_(parameter.bfloat16().half())
    model.bfloat16().save_pretrained(path, max_shard_size=shards)
    shutil.copy(path / "config.json", path.parent / "config.json")
    return model.float()


def peer_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits


def our_logits(dat: Path, config: Path) -> torch.Tensor:
    with DatFile(dat) as file, torch.no_grad():
        return load_model(file, read_config(config), path=InferencePath.BRIDGE, **LOADING)[0](IDS)
