"""Loading: every mismatch listed, both paths alike, masters that hold what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.contract.requests import InferencePath
from stages.qwen3.config import Qwen3Config, read_config
from stages.weights.dat import DatFile
from stages.weights.model_weights import EMBEDDING, WeightError, layout_of, load_model, parameter_shapes
from tests.conftest import TinyModel
from tests.stages.weights.conftest import LOADING, write_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_both_paths_give_the_same_logits(
    tmp_path: Path, config: Qwen3Config, tied: bool, plain: bool
) -> None:
    object.__setattr__(config, "tie_word_embeddings", tied)
    write_model(tmp_path / "a.dat", config, tied=tied, plain=plain)
    ids = torch.arange(20)[None]
    with DatFile(tmp_path / "a.dat") as dat, torch.no_grad():
        logits = [load_model(dat, config, path=path, **LOADING)[0](ids) for path in InferencePath]
    assert torch.equal(logits[0], logits[1])


def test_a_separate_head_counts_though_the_config_says_tied(tmp_path: Path, config: Qwen3Config) -> None:
    object.__setattr__(config, "tie_word_embeddings", True)
    write_model(tmp_path / "a.dat", config, tied=False)
    with DatFile(tmp_path / "a.dat") as dat:
        layout = layout_of(dat, config)
    assert not layout.tied and "lm_head.weight" in layout.bundles and "somebody.else" not in layout.names


def test_every_mismatch_is_listed(tmp_path: Path, config: Qwen3Config) -> None:
    write_model(tmp_path / "a.dat", config, tied=False)
    object.__setattr__(config, "intermediate_size", 96)
    object.__setattr__(config, "num_hidden_layers", 3)
    with DatFile(tmp_path / "a.dat") as dat, pytest.raises(WeightError) as error:
        layout_of(dat, config)
    problems = "\n".join(error.value.problems)
    assert len(error.value.problems) == 2 * 3 * 2 + 11
    assert (
        "model.layers.0.mlp.down_proj.weight.scale: E4M3 [32, 4], config.json asks for E4M3 [32, 6]"
        in problems
    )
    assert "model.layers.2.input_layernorm.weight: missing" in problems


def test_a_master_that_bf16_cannot_hold_is_float32(tmp_path: Path, config: Qwen3Config) -> None:
    write_model(tmp_path / "a.dat", config, tied=False)
    with DatFile(tmp_path / "a.dat") as dat:
        model, _ = load_model(dat, config, path=InferencePath.FP2, **LOADING)
        assert model.model.embed_tokens.weight.dtype == torch.float32, (
            "random float16 has more bits than BF16"
        )
        assert model.lm_head.weight.dtype == torch.bfloat16
        assert torch.equal(model.model.embed_tokens.weight, dat.tensor(EMBEDDING).float())


def test_the_shipped_shape_counts_its_parameters(tiny: TinyModel) -> None:
    config = read_config(tiny.folder / "config.json")
    shapes = parameter_shapes(config, tied=False)
    assert config.parameters == sum(torch.Size(s).numel() for s in shapes.values())
