"""The estimate against peaks that were measured on an H200, and what it recommends under a limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.estimate import GIB, Options, Shape, estimate, fitting, main

SHAPE_4B = Shape(151936, 2560, 9728, 36, 32, 8, 128)
MEASURED = json.loads((Path(__file__).parents[2] / "benchmarks/results/estimate.json").read_text(encoding="utf-8"))


def test_eight_configurations_or_more_were_measured() -> None:
    assert len(MEASURED) >= 8


@pytest.mark.parametrize("run", MEASURED, ids=lambda r: f"{r['batch']}x{r['tokens']}")
def test_within_five_percent_of_the_measured_peak(run: dict[str, float]) -> None:
    options = Options(
        int(run["batch"]), int(run["tokens"]) + 1, bool(run["tied"]), bool(run["checkpointing"]), int(run["train_last_layers"])
    )
    assert estimate(SHAPE_4B, options).peak / GIB == pytest.approx(run["measured_gib"], rel=0.05)


def test_the_recipe_under_a_limit_fits_it_and_a_lower_one_has_none() -> None:
    options = Options(32, 513)
    words, changed, found = fitting(SHAPE_4B, options, 18.0)[0]
    assert changed.checkpointing and changed.batch < 32 and found.peak + found.slack <= 18 * GIB and "batch_size" in words
    assert fitting(SHAPE_4B, options, 2.0) == []
    assert fitting(SHAPE_4B, Options(1, 97), 17.0)[0][0] == "as asked"


def test_the_command_needs_no_torch_and_says_what_fits(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    numbers = (151936, 2560, 9728, 36, 32, 8, 128)
    config.write_text(json.dumps(dict(zip(keys, numbers, strict=True)) | {"tie_word_embeddings": True}))
    code = "import sys; from stages.estimate import main; r = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(r)"
    command = [sys.executable, "-c", code, str(tmp_path), "--batch", "1", "--seq-len", "97", "--limit-gb", "17", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fits"] == "as asked" and 4.1 < report["bytes_per_parameter"] < 4.2
    assert main([str(tmp_path), "--limit-gb", "1"]) == 1
    config.write_text("{}")
    assert main([str(tmp_path)]) == 2
