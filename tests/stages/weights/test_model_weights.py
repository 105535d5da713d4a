"""Loading and export: every mismatch listed, both paths alike, untouched entries byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stages.contract import ComputeDtype, InferencePath, ScaleRule
from stages.nvfp4.codec import ScaleFormat, decode, encode
from stages.qwen3.config import ConfigError, Qwen3Config, read_config
from stages.weights.dat import DatFile, ElemType, Spec, tensor_bytes, write_dat
from stages.weights.model_weights import (
    EMBEDDING,
    WeightError,
    export,
    layout_of,
    load_model,
    parameter_shapes,
)
from tests.conftest import CONFIG, TinyModel

CPU = torch.device("cpu")
LOADING = {"rule": ScaleRule.SEARCH, "compute_dtype": ComputeDtype.FP32, "device": CPU}


def _write_model(
    path: Path, config: Qwen3Config, *, tied: bool, scale_type: ElemType = ElemType.E4M3, plain: bool = False
) -> None:
    generator, items = torch.Generator().manual_seed(3), []
    for name, shape in parameter_shapes(config, tied).items():
        value = torch.randn(shape, generator=generator) * 0.05
        if len(shape) == 2 and name != EMBEDDING and not plain:
            bundle = encode(
                value, ScaleRule.AMAX, dict(zip((101, 5, 6), ScaleFormat, strict=True))[int(scale_type)]
            )
            items.append(
                (
                    Spec(f"{name}.qdata", ElemType.UINT8, tuple(bundle.codes.shape)),
                    lambda b=bundle: [tensor_bytes(b.codes)],
                )
            )
            items.append(
                (
                    Spec(f"{name}.scale", scale_type, tuple(bundle.scales.shape)),
                    lambda b=bundle: [tensor_bytes(b.scales)],
                )
            )
        else:
            items.append((Spec(name, ElemType.FLOAT16, shape), lambda v=value: [tensor_bytes(v.half())]))
    items.insert(2, (Spec("somebody.else", ElemType.INT64, (2,)), lambda: [bytes(range(16))]))
    write_dat(path, items)


@pytest.fixture
def config(tmp_path: Path) -> Qwen3Config:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return read_config(tmp_path / "config.json")


@pytest.mark.parametrize("scale_type", [ElemType.E4M3, ElemType.FLOAT16, ElemType.FLOAT32])
def test_an_export_without_training_is_the_input_byte_for_byte(
    tmp_path: Path, config: Qwen3Config, scale_type: ElemType
) -> None:
    _write_model(tmp_path / "a.dat", config, tied=False, scale_type=scale_type)
    with DatFile(tmp_path / "a.dat") as dat:
        model, layout = load_model(dat, config, path=InferencePath.FP2, **LOADING)
        export(
            dat,
            layout,
            {n: p.detach() for n, p in model.named_parameters()},
            ScaleRule.SEARCH,
            tmp_path / "b.dat",
        )
    assert (tmp_path / "a.dat").read_bytes() == (tmp_path / "b.dat").read_bytes()


def test_a_changed_master_changes_its_own_blocks_only(tmp_path: Path, config: Qwen3Config) -> None:
    _write_model(tmp_path / "a.dat", config, tied=False)
    name = "model.layers.1.mlp.up_proj.weight"
    with DatFile(tmp_path / "a.dat") as dat:
        model, layout = load_model(dat, config, path=InferencePath.FP2, **LOADING)
        master = dict(model.named_parameters())[name].detach().clone()
        master[5, 17] += 1.0
        export(dat, layout, {name: master}, ScaleRule.SEARCH, tmp_path / "b.dat")
        with DatFile(tmp_path / "b.dat") as new:
            assert list(new.entries.values()) == list(dat.entries.values()), (
                "same order, types, shapes and offsets"
            )
            changed = [
                n
                for n in dat.entries
                if dat.tensor(n).view(torch.uint8).ne(new.tensor(n).view(torch.uint8)).any()
            ]
            assert changed == [f"{name}.qdata", f"{name}.scale"]
            scales = dat.tensor(f"{name}.scale").float() != new.tensor(f"{name}.scale").float()
            assert scales.nonzero().tolist() == [[5, 1]]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_both_paths_give_the_same_logits(
    tmp_path: Path, config: Qwen3Config, tied: bool, plain: bool
) -> None:
    object.__setattr__(config, "tie_word_embeddings", tied)
    _write_model(tmp_path / "a.dat", config, tied=tied, plain=plain)
    ids = torch.arange(20)[None]
    with DatFile(tmp_path / "a.dat") as dat, torch.no_grad():
        logits = [load_model(dat, config, path=path, **LOADING)[0](ids) for path in InferencePath]
    assert torch.equal(logits[0], logits[1])


def test_a_separate_head_counts_though_the_config_says_tied(tmp_path: Path, config: Qwen3Config) -> None:
    object.__setattr__(config, "tie_word_embeddings", True)
    _write_model(tmp_path / "a.dat", config, tied=False)
    with DatFile(tmp_path / "a.dat") as dat:
        layout = layout_of(dat, config)
    assert not layout.tied and "lm_head.weight" in layout.bundles and "somebody.else" not in layout.names


def test_every_mismatch_is_listed(tmp_path: Path, config: Qwen3Config) -> None:
    _write_model(tmp_path / "a.dat", config, tied=False)
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
    _write_model(tmp_path / "a.dat", config, tied=False)
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


def test_bundle_and_values_agree(tiny: TinyModel) -> None:
    config = read_config(tiny.folder / "config.json")
    with DatFile(tiny.weight) as dat:
        model, _ = load_model(dat, config, path=InferencePath.BRIDGE, **LOADING)
        from stages.weights.model_weights import read_bundle

        assert torch.equal(model.lm_head.weight, decode(read_bundle(dat, "lm_head.weight")))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_key_value_heads": 3}, "not divisible by num_key_value_heads"),
        ({"hidden_size": 40}, "hidden_size: 40: not a multiple of 16"),
        ({"head_dim": 15}, "head_dim: 15"),
        ({"vocab_size": None}, "vocab_size: None"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"model_type": "llama"}, "model_type: 'llama'"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(ConfigError, match=says):
        read_config(tmp_path / "config.json")
