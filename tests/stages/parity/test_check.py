"""The parity check: faults put into either path are named at the place where they are; the command and its
exit codes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stages.contract import (
    ComputeDtype,
    DataSource,
    ExitCode,
    InferencePath,
    ScaleRule,
    Template,
    TrainRequest,
)
from stages.nvfp4.codec import Bundle, decode
from stages.nvfp4.linear import Linear
from stages.parity.__main__ import main
from stages.parity.check import Parity, check_parity
from stages.qwen3 import model as model_module
from stages.qwen3.config import Qwen3Config, read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import load_tokenizer
from stages.train.stage import train
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel
from tests.recipes import PLAIN

PLACES = [
    "embedding",
    *(f"layer {i} {part}" for i in range(2) for part in ("attention", "mlp")),
    "norm",
    "head",
]


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


def _spoilt(source: Path, target: Path, name: str) -> Path:
    """A copy of a weight file with the first number of a plain entry set to NaN."""
    shutil.copyfile(source, target)
    with DatFile(source) as dat:
        entry = dat.entries[name]
        size = dat.tensor(name).element_size()
    with target.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\xff" * (size - 1) + b"\x7f")
    return target


def test_a_sound_weight_agrees_bit_for_bit(tiny: TinyModel) -> None:
    parity = _parity(tiny)
    assert parity.agrees and parity.parted is None and parity.reason == ""
    assert [place.name for place in parity.places] == PLACES
    assert all(place.difference == 0.0 and place.finite and place.bridge.rms > 0 for place in parity.places)
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
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "norm"


def test_scale_bytes_read_as_numbers_part_at_the_first_quantized_weight(tiny: TinyModel) -> None:
    """The fault that once made every answer `!!!!`: a scale byte of 0x28 taken for 40 instead of 0.25."""

    def undecoded(model: Qwen3) -> None:
        with DatFile(tiny.weight) as dat:
            for name, part in model.named_modules():
                if isinstance(part, Linear):
                    codes, scales = dat.tensor(f"{name}.weight.qdata"), dat.tensor(f"{name}.weight.scale")
                    part.weight.data = decode(Bundle(codes, scales.view(torch.uint8).float()))

    parity = _parity(tiny, fault=undecoded, rule=None)
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "layer 0 attention"
    assert parity.places[2].fp2.rms > 100 * parity.places[2].bridge.rms, (
        "the size says what kind of fault it is"
    )


def test_nan_in_one_layer_is_counted_there_and_in_one_path(tiny: TinyModel) -> None:
    def spoil(model: Qwen3) -> None:
        with torch.no_grad():
            model.model.layers[1].mlp.down_proj.weight[3, 5] = float("nan")  # type: ignore[union-attr, index]

    parity = _parity(tiny, fault=spoil)
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "layer 1 mlp"
    assert parity.parted.fp2.nan > 0 and parity.parted.bridge.nan == 0
    assert "layer 1 mlp" in parity.reason and "in fp2" in parity.reason
    assert all(place.finite for place in parity.places[:4])


def test_nan_in_the_file_is_seen_in_both_paths(tiny: TinyModel, tmp_path: Path) -> None:
    weight = _spoilt(tiny.weight, tmp_path / "nan.dat", "model.layers.1.input_layernorm.weight")
    parity = _parity(tiny, weight)
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "layer 1 attention"
    assert parity.parted.bridge.nan == parity.parted.fp2.nan > 0
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
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "layer 0 attention"


def test_another_scale_rule_is_another_weight(tiny: TinyModel) -> None:
    parity = _parity(tiny, rule=ScaleRule.FSHARP)
    assert not parity.agrees and parity.parted is not None and parity.parted.name == "layer 0 attention"


def test_no_hook_stays_behind(tiny: TinyModel) -> None:
    seen: list[Qwen3] = []
    _parity(tiny, fault=seen.append)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in seen[0].modules())


def test_the_command_prints_and_writes_the_table(tiny: TinyModel, tmp_path: Path) -> None:
    report = tmp_path / "parity.json"
    line = [
        sys.executable,
        "-m",
        "stages.parity",
        "--model-dir",
        str(tiny.folder),
        "--weight",
        str(tiny.weight),
        "--json",
        str(report),
    ]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.OK, done.stderr
    assert (
        all(place in done.stdout for place in PLACES)
        and "tolerance 1e-04" in done.stdout
        and "agree" in done.stdout
    )
    told = json.loads(report.read_text(encoding="utf-8"))
    assert (
        told["agrees"]
        and [place["name"] for place in told["places"]] == PLACES
        and len(told["top"]["fp2"]) == 10
    )


def test_the_command_ends_with_4_and_names_the_place(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = _spoilt(tiny.weight, tmp_path / "nan.dat", "model.layers.0.post_attention_layernorm.weight")
    arguments = ["--model-dir", str(tiny.folder), "--weight", str(weight), "--json", str(tmp_path / "p.json")]
    assert main(arguments) == ExitCode.DISAGREE
    out = capsys.readouterr().out
    assert "NaN or infinity from layer 0 mlp on" in out and out.count("they part here") == 1
    told = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert told["difference"] is None and told["parted"] == "layer 0 mlp"
    rule = ["--model-dir", str(tiny.folder), "--weight", str(tiny.weight), "--scale-rule", "fsharp"]
    assert main(rule) == ExitCode.DISAGREE
    assert main([*rule, "--tolerance", "100"]) == ExitCode.OK


def test_bad_input_ends_with_2(tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.dat").write_bytes(b"no weight")
    for weight in (tmp_path / "bad.dat", tmp_path / "nowhere.dat"):
        assert main(["--model-dir", str(tiny.folder), "--weight", str(weight)]) == ExitCode.BAD_INPUT
        assert weight.name in capsys.readouterr().err
    assert (
        main(
            [
                "--model-dir",
                str(tiny.folder),
                "--weight",
                str(tiny.weight),
                "--json",
                str(tmp_path / "bad.dat"),
            ]
        )
        == ExitCode.BAD_INPUT
    )
    with pytest.raises(SystemExit) as ended:
        main(["--model-dir", str(tiny.folder), "--weight", str(tiny.weight), "--tolerance", "nan"])
    assert ended.value.code == ExitCode.BAD_INPUT


def test_a_training_leaves_the_report_beside_its_result(tiny: TinyModel, tmp_path: Path) -> None:
    request = TrainRequest(
        model_dir=str(tiny.folder),
        input_weight=str(tiny.weight),
        output_weight=str(tmp_path / "out.dat"),
        events=str(tmp_path / "again-events.jsonl"),
        result=str(tmp_path / "again-result.json"),
        data=[DataSource(str(tiny.rows))],
        steps=0,
        lr=1e-3,
        device="cpu",
        **PLAIN,
    )
    assert any("agree" in note for note in train(request).notes)
    told = json.loads((tmp_path / "again-parity.json").read_text(encoding="utf-8"))
    assert told["agrees"] and told["prompt"] == "談談UFO"
