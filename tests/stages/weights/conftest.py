"""A config, and weight files of random values for it, for the tests of this room."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stages.contract.recipe import ComputeDtype, ScaleRule
from stages.nvfp4.codec import encode
from stages.qwen3.config import Qwen3Config, read_config
from stages.weights.bundles import SCALE_FORMATS
from stages.weights.dat import EntryToWrite, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec
from stages.weights.model_weights import EMBEDDING, parameter_shapes
from tests.conftest import CONFIG

LOADING = {"rule": ScaleRule.SEARCH, "compute_dtype": ComputeDtype.FP32, "device": torch.device("cpu")}


def write_model(
    path: Path, config: Qwen3Config, *, tied: bool, scale_type: ElemType = ElemType.E4M3, plain: bool = False
) -> None:
    """A weight file of random values, with an entry that no model knows; `plain` has no NVFP4."""
    generator = torch.Generator().manual_seed(3)
    entries: list[EntryToWrite] = []
    for name, shape in parameter_shapes(config, tied).items():
        value = torch.randn(shape, generator=generator) * 0.05
        if len(shape) == 2 and name != EMBEDDING and not plain:
            bundle = encode(value, ScaleRule.AMAX, SCALE_FORMATS[scale_type])
            for suffix, elem_type, part in (
                ("qdata", ElemType.UINT8, bundle.codes),
                ("scale", scale_type, bundle.scales),
            ):
                spec = Spec(f"{name}.{suffix}", elem_type, tuple(part.shape))
                entries.append((spec, lambda p=part: [tensor_bytes(p)]))
        else:
            entries.append((Spec(name, ElemType.FLOAT16, shape), lambda v=value: [tensor_bytes(v.half())]))
    entries.insert(2, (Spec("somebody.else", ElemType.INT64, (2,)), lambda: [bytes(range(16))]))
    write_dat(path, entries)


@pytest.fixture
def config(tmp_path: Path) -> Qwen3Config:
    """The tiny model's config."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return read_config(tmp_path / "config.json")
