"""The parity report, as the command prints and writes it and as a training leaves it; exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.contract.events import ExitCode
from stages.contract.recipe import DataSource, Template
from stages.contract.requests import TrainRequest
from stages.parity.__main__ import main
from stages.parity.check import ActivationStats, Comparison, Parity, Token
from stages.parity.table import as_json, summary, text, write_beside
from stages.qwen3.config import read_config
from stages.qwen3.template import ChatTokenizer, load_tokenizer
from stages.train.stage import train
from tests.conftest import TinyModel
from tests.recipes import PLAIN
from tests.stages.parity.conftest import POINTS, corrupted

FINE, BROKEN = ActivationStats(0, 0, 1.5), ActivationStats(3, 0, float("nan"))
PARITY = Parity(
    (Comparison("embedding", FINE, FINE, 0.0), Comparison("head", FINE, BROKEN, float("nan"))),
    (Token(70, 2.5), Token(71, 1.5)),
    (Token(70, 2.5),),
    1e-4,
)


@pytest.fixture(scope="module")
def tokenizer(tiny: TinyModel) -> ChatTokenizer:
    return load_tokenizer(tiny.folder, read_config(tiny.folder / "config.json"), Template.QWEN)


def test_text_and_json_say_the_same(tokenizer: ChatTokenizer) -> None:
    lines = text(PARITY, "x", tokenizer).splitlines()
    (marked,) = (line for line in lines if "they part here" in line)
    assert marked.split()[:7] == ["head", "1.5", "0", "0", "nan", "3", "0"]
    assert lines[-1] == summary(PARITY) and "DISAGREE" in lines[-1] and "in fp2" in lines[-1]
    report = json.loads(as_json(PARITY, "x", tokenizer), parse_constant=pytest.fail)
    assert (report["agrees"], report["parted"], report["difference"]) == (False, "head", None)
    assert report["places"][1]["fp2"] == {"nan": 3, "inf": 0, "rms": None}
    assert [token["id"] for token in report["top"]["bridge"]] == [70, 71]


def test_an_earlier_report_stays(tokenizer: ChatTokenizer, tmp_path: Path) -> None:
    write_beside(tmp_path / "a-result.json", PARITY, "first", tokenizer)
    write_beside(tmp_path / "a-result.json", PARITY, "second", tokenizer)
    assert json.loads((tmp_path / "a-parity.json").read_text("utf-8"))["prompt"] == "first"


def test_the_command_prints_and_writes_the_table(tiny: TinyModel, tmp_path: Path) -> None:
    report = tmp_path / "parity.json"
    model = ["--model-dir", str(tiny.folder), "--weight", str(tiny.weight)]
    line = [sys.executable, "-m", "stages.parity", *model, "--json", str(report)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == ExitCode.OK, done.stderr
    assert all(place in done.stdout for place in POINTS)
    assert "tolerance 1e-04" in done.stdout and "agree" in done.stdout
    report_json = json.loads(report.read_text(encoding="utf-8"))
    assert report_json["agrees"] and len(report_json["top"]["fp2"]) == 10
    assert [place["name"] for place in report_json["places"]] == POINTS


def test_the_command_ends_with_4_and_names_the_place(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = corrupted(tiny.weight, tmp_path / "nan.dat", "model.layers.0.post_attention_layernorm.weight")
    arguments = ["--model-dir", str(tiny.folder), "--weight", str(weight), "--json", str(tmp_path / "p.json")]
    assert main(arguments) == ExitCode.DISAGREE
    out = capsys.readouterr().out
    assert "NaN or infinity from layer 0 mlp on" in out and out.count("they part here") == 1
    report_json = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert report_json["difference"] is None and report_json["parted"] == "layer 0 mlp"
    rule = ["--model-dir", str(tiny.folder), "--weight", str(tiny.weight), "--scale-rule", "fsharp"]
    assert main(rule) == ExitCode.DISAGREE
    assert main([*rule, "--tolerance", "100"]) == ExitCode.OK


def test_bad_input_ends_with_2(tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.dat").write_bytes(b"no weight")
    for weight in (tmp_path / "bad.dat", tmp_path / "nowhere.dat"):
        assert main(["--model-dir", str(tiny.folder), "--weight", str(weight)]) == ExitCode.BAD_INPUT
        assert weight.name in capsys.readouterr().err
    model = ["--model-dir", str(tiny.folder), "--weight", str(tiny.weight)]
    assert main([*model, "--json", str(tmp_path / "bad.dat")]) == ExitCode.BAD_INPUT
    with pytest.raises(SystemExit) as ended:
        main([*model, "--tolerance", "nan"])
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
    report_json = json.loads((tmp_path / "again-parity.json").read_text(encoding="utf-8"))
    assert report_json["agrees"] and report_json["prompt"] == "談談UFO"
