"""The loss curve of compact masters and states against that of float32, with the shipped model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.contract.recipe import ComputeDtype, DataSource, OptimizerStateMode, Rounding
from stages.contract.requests import TrainRequest
from stages.contract.serial import dump
from tests.recipes import PLAIN

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "artifacts/base/qwen3-nano"
WINDOW = 10


def _losses(
    folder: Path, rounding: Rounding, states: OptimizerStateMode, device: str, steps: int
) -> torch.Tensor:
    """Mean loss of every ten steps, at a rate whose updates BF16 masters lose without stochastic rounding."""
    folder.mkdir()
    rows = [DataSource(str(ROOT / "datasets/stageA/mixed.tsv"))]
    request = TrainRequest(
        model_dir=str(MODEL),
        input_weight=str(MODEL / "qwen3-nano-nvfp4.dat"),
        output_weight=str(folder / "out.dat"),
        events=str(folder / "events"),
        result=str(folder / "result.json"),
        data=rows,
        steps=steps,
        lr=1e-5,
        batch_size=16 if device == "cuda" else 4,
        rounding=rounding,
        optimizer_state_mode=states,
        compute_dtype=ComputeDtype.FP32,
        device=device,
        **PLAIN,
    )
    (folder / "request.json").write_text(dump(request), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "stages.train", str(folder / "request.json")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    events = [json.loads(line) for line in (folder / "events").read_text(encoding="utf-8").splitlines()]
    losses = torch.tensor([e["values"]["loss"] for e in events if e["kind"] == "step"])
    assert len(losses) == steps
    return losses.view(-1, WINDOW).mean(dim=1)


@pytest.mark.parametrize(
    ("device", "steps", "least", "times"),
    [
        pytest.param("cpu", 30, 0.003, 3, marks=pytest.mark.slow),
        pytest.param("cuda", 300, 0.1, 5, marks=pytest.mark.gpu),
    ],
)
def test_bf16_masters_with_stochastic_rounding_and_8_bit_states_learn_as_float32_does(
    tmp_path: Path, device: str, steps: int, least: float, times: int
) -> None:
    exact = _losses(tmp_path / "exact", Rounding.FP32, OptimizerStateMode.FP32, device, steps)
    ours = _losses(tmp_path / "ours", Rounding.STOCHASTIC, OptimizerStateMode.INT8, device, steps)
    nearest = _losses(tmp_path / "nearest", Rounding.NEAREST, OptimizerStateMode.INT8, device, steps)
    off, lost = ((ours - exact) / exact).abs(), ((nearest - exact) / exact).abs()
    figures = f"last: exact {exact[-1]:.4f}, ours {ours[-1]:.4f}, nearest {nearest[-1]:.4f}; "
    figures += f"most off {off.max():.4f} and {lost.max():.4f}"
    sys.stderr.write(figures + "\n")
    assert off.max() < 0.02, figures
    assert lost[-1] > least and lost[-1] > times * off[-1], figures  # rounding to nearest leaves it behind
