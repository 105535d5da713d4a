"""The command, and what it recommends under a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.contract.recipe import OptimizerStateMode
from stages.memory.estimate import fitting, main
from stages.memory.memory_model import GIB, Options, Shape, TrainingPath, estimate
from tests.conftest import TinyModel

SHAPE_4B = Shape(151936, 2560, 9728, 36, 32, 8, 128)
ROOT = Path(__file__).parents[3]


def test_the_recipe_under_a_limit_fits_it_and_a_lower_one_has_none() -> None:
    options = Options(32, 513)
    words, changed, found = fitting(SHAPE_4B, options, 18.0)[0]
    assert changed.checkpointing and changed.batch < 32 and "batch_size" in words
    assert found.peak + found.slack <= 18 * GIB
    assert fitting(SHAPE_4B, options, 2.0) == []
    assert fitting(SHAPE_4B, Options(1, 97), 17.0)[0][0] == "as asked"


def test_the_command_needs_no_torch_and_says_what_fits(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    numbers = {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
    }  # fmt: skip
    config.write_text(json.dumps(numbers))
    code = "import sys; from stages.estimate import main; r = main(sys.argv[1:]); "
    code += "assert 'torch' not in sys.modules; sys.exit(r)"
    options = ["--batch", "1", "--seq-len", "97", "--limit-gb", "17", "--json"]
    command = [sys.executable, "-c", code, str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fits"] == "as asked" and 4.1 < report["bytes_per_parameter"] < 4.3
    assert main([str(tmp_path), "--limit-gb", "1"]) == 1
    config.write_text("{}")
    assert main([str(tmp_path)]) == 2


def test_what_fits_on_the_plain_path_is_lighter_or_the_engine() -> None:
    on_cuda = Options(8, 192, grad_accum=4, optimizer_state_mode=OptimizerStateMode.FP32)
    words, changed, found = fitting(SHAPE_4B, on_cuda, 18.0)[0]
    assert words == "grad_accum=1 optimizer_state_mode=int8 gradient_checkpointing=true"
    assert changed.path is TrainingPath.ENGINE and not found.lower_bound
    on_cpu = Options(8, 192, device="cpu")
    assert fitting(SHAPE_4B, on_cpu, 31.0)[0][0] == "as asked"
    assert fitting(SHAPE_4B, on_cpu, 20.0)[0][0] == "gradient_checkpointing=true"
    # Layers that are not trained keep their rounded weights: fewer save nothing here.
    assert fitting(SHAPE_4B, on_cpu, 16.0) == []
    for words, changed, found in fitting(SHAPE_4B, on_cpu, 40.0):
        assert "batch_size" not in words and found == estimate(SHAPE_4B, changed)


def test_the_weight_file_says_whether_it_has_a_head(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((tiny.folder / "config.json").read_text(encoding="utf-8"))
    config |= {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    counts = []
    for more in ([], ["--weight", str(tiny.weight)]):
        assert main([str(tmp_path), "--json", *more]) == 0
        counts.append(json.loads(capsys.readouterr().out)["parameters"])
    assert counts[1] - counts[0] == config["vocab_size"] * config["hidden_size"]
    whole = tiny.weight.read_bytes()
    for cut in (0, 1, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.dat").write_bytes(whole[:cut])
        assert main([str(tmp_path), "--weight", str(tmp_path / "cut.dat")]) == 2
        assert "cut.dat" in capsys.readouterr().err
