"""A small model whose answers depend on everything before them."""

from __future__ import annotations

import pytest
import torch

from stages.contract.recipe import ComputeDtype, ScaleRule
from stages.contract.requests import InferencePath
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Qwen3:
    with DatFile(tiny.weight) as dat:
        model, _ = load_model(
            dat,
            read_config(tiny.folder / "config.json"),
            path=InferencePath.BRIDGE,
            rule=ScaleRule.SEARCH,
            compute_dtype=ComputeDtype.FP32,
            device=torch.device("cpu"),
        )
    # Random weights of std 0.02 repeat one token: larger ones make an answer depend on everything before it.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return model.requires_grad_(False)


def greedy_without_cache(model: Qwen3, prompt: list[int], count: int) -> list[int]:
    """The next `count` tokens, the whole text read again for each."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def until_stop(ids: list[int], stops: frozenset[int]) -> list[int]:
    """The ids before the first stop."""
    return ids[: next((i for i, token in enumerate(ids) if token in stops), len(ids))]
