"""The parity check: a fault in either path is found at the point of the network where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stages.contract.recipe import ComputeDtype, ScaleRule, Template
from stages.contract.requests import InferencePath
from stages.nvfp4.codec import Bundle, decode
from stages.nvfp4.linear import Linear
from stages.parity.check import Parity, check_parity
from stages.qwen3 import model as model_module
from stages.qwen3.config import Qwen3Config, read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import load_tokenizer
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel
from tests.stages.parity.conftest import POINTS, corrupted


def _parity(
    tiny: TinyModel,
    weight: Path | None = None,
    fault: Callable[[Qwen3], None] = lambda model: None,
    **load: object,
) -> Parity:
    config = read_config(tiny.folder / "config.json")
    settings = {
        "path": InferencePath.FP2,
        "rule": ScaleRule.SEARCH,
        "compute_dtype": ComputeDtype.FP32,
        "device": torch.device("cpu"),
    }
    with DatFile(weight or tiny.weight) as dat:
        model, layout = load_model(dat, config, **{**settings, **load})  # type: ignore[arg-type]
        fault(model)
        return check_parity(
            dat, layout, model, load_tokenizer(tiny.folder, config, Template.QWEN).prompt_ids("談談UFO")
        )


def _mismatch(parity: Parity) -> str:
    assert not parity.agrees and parity.first_mismatch is not None
    return parity.first_mismatch.name


def test_a_sound_weight_agrees_bit_for_bit(tiny: TinyModel) -> None:
    parity = _parity(tiny)
    assert parity.agrees and parity.first_mismatch is None and parity.reason == ""
    assert [point.name for point in parity.comparisons] == POINTS
    assert all(
        point.difference == 0.0 and point.finite and point.bridge.rms > 0 for point in parity.comparisons
    )
    assert parity.bridge_top == parity.fp2_top and len(parity.fp2_top) == 10


def test_the_candidates_are_those_of_the_plain_inference(tiny: TinyModel) -> None:
    config = read_config(tiny.folder / "config.json")
    with DatFile(tiny.weight) as dat:
        stored, _ = load_model(
            dat,
            config,
            path=InferencePath.BRIDGE,
            rule=ScaleRule.SEARCH,
            compute_dtype=ComputeDtype.FP32,
            device=torch.device("cpu"),
        )
    ids = load_tokenizer(tiny.folder, config, Template.QWEN).prompt_ids("談談UFO")
    expected = stored(torch.tensor([ids]))[0, -1].topk(10)
    assert [t.id for t in _parity(tiny).bridge_top] == expected.indices.tolist()
    torch.testing.assert_close(torch.tensor([t.logit for t in _parity(tiny).bridge_top]), expected.values)


def test_a_missing_final_norm_parts_at_the_norm(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(model: Qwen3) -> None:
        model.model.norm = torch.nn.Identity()  # type: ignore[assignment]

    parity = _parity(tiny, fault=forgets)
    assert _mismatch(parity) == "norm"


def test_scale_bytes_read_as_numbers_part_at_the_first_quantized_weight(tiny: TinyModel) -> None:
    """The fault that once made every answer `!!!!`: a scale byte of 0x28 taken for 40 instead of 0.25."""

    def undecoded(model: Qwen3) -> None:
        with DatFile(tiny.weight) as dat:
            for name, part in model.named_modules():
                if isinstance(part, Linear):
                    codes, scales = dat.tensor(f"{name}.weight.qdata"), dat.tensor(f"{name}.weight.scale")
                    part.weight.data = decode(Bundle(codes, scales.view(torch.uint8).float()))

    parity = _parity(tiny, fault=undecoded, rule=None)
    assert _mismatch(parity) == "layer 0 attention"
    assert parity.comparisons[2].fp2.rms > 100 * parity.comparisons[2].bridge.rms, (
        "the size says what kind of fault it is"
    )


def test_nan_in_one_layer_is_counted_there_and_in_one_path(tiny: TinyModel) -> None:
    def spoil(model: Qwen3) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[3, 5] = float("nan")  # type: ignore[union-attr, index]

    parity = _parity(tiny, fault=spoil)
    assert _mismatch(parity) == "layer 1 mlp"
    assert parity.first_mismatch.fp2.nan > 0 and parity.first_mismatch.bridge.nan == 0
    assert "layer 1 mlp" in parity.reason and "in fp2" in parity.reason
    assert all(point.finite for point in parity.comparisons[:4])


def test_nan_in_the_file_is_seen_in_both_paths(tiny: TinyModel, tmp_path: Path) -> None:
    weight = corrupted(tiny.weight, tmp_path / "nan.dat", "model.layers.1.input_layernorm.weight")
    parity = _parity(tiny, weight)
    assert _mismatch(parity) == "layer 1 attention"
    assert parity.first_mismatch.bridge.nan == parity.first_mismatch.fp2.nan > 0
    assert "bridge and fp2" in parity.reason


def test_positions_off_by_one_part_at_the_first_attention(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last token gets the place of the one before it. (A shift of all tokens alike changes nothing:
    places are relative.)
    """
    whole = model_module.rotary_table

    def late(
        config: Qwen3Config, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return whole(config, positions.clamp(max=positions.max() - 1), dtype)

    monkeypatch.setattr(model_module, "rotary_table", late)
    parity = _parity(tiny)
    assert _mismatch(parity) == "layer 0 attention"


def test_another_scale_rule_is_another_weight(tiny: TinyModel) -> None:
    parity = _parity(tiny, rule=ScaleRule.FSHARP)
    assert _mismatch(parity) == "layer 0 attention"


def test_no_hook_stays_behind(tiny: TinyModel) -> None:
    seen: list[Qwen3] = []
    _parity(tiny, fault=seen.append)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in seen[0].modules())
