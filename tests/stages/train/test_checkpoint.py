"""Checkpoints: an interrupted and resumed stage exports the bytes of one run through; damage is found."""

from __future__ import annotations

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.contract.events import ExitCode, StageResult
from stages.contract.recipe import ComputeDtype, OptimizerStateMode, Rounding, Sampling
from stages.contract.requests import TrainRequest, checkpoint_path, checkpoint_step, newest_checkpoint
from stages.contract.serial import dump, load_file
from stages.process.process import StageError
from stages.train.checkpoint import Checkpoints, TrainProgress, UnusableCheckpointError, restore, save
from stages.weights.dat import DatFile
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _events, _request, _sha, _train, train_with_room

ROOT = Path(__file__).parents[3]
SLOW_STEP = """
import sys, time
from stages.train import stage as train, trainer as loop
inner = loop.Trainer._report
loop.Trainer._report = lambda self, values: (inner(self, values), time.sleep(0.05))[0]
sys.exit(train.main([sys.argv[1]]))
"""
"""The real stage, its steps slow enough to be hit by a signal."""

MODES = [
    {"optimizer_state_mode": OptimizerStateMode.INT8},
    {
        "optimizer_state_mode": OptimizerStateMode.FP32,
        "rounding": Rounding.FP32,
        "sampling": Sampling.SEQUENTIAL,
        "grad_accum": 2,
    },
]


def request_in(tiny: TinyModel, folder: Path, **changes: Any) -> TrainRequest:
    recipe = {
        "steps": 30,
        "checkpoint_every": 4,
        "batch_size": 4,
        "checkpoints": str(folder / "checkpoints"),
        "threads": 1,
    }
    return _request(tiny, folder, **{**recipe, "warmup_steps": 3, "weight_decay": 0.01, **changes})


def start(request: TrainRequest) -> subprocess.Popen[bytes]:
    path = Path(request.result).with_name("request.json")
    path.write_text(dump(request), encoding="utf-8")
    return subprocess.Popen([sys.executable, "-c", SLOW_STEP, str(path)], cwd=ROOT, stderr=subprocess.DEVNULL)


def reported_steps(request: TrainRequest) -> list[int]:
    if not Path(request.events).exists():
        return []
    lines = Path(request.events).read_text("utf-8").splitlines(keepends=True)
    return [
        e["step"] for e in (json.loads(line) for line in lines if line.endswith("\n")) if e["kind"] == "step"
    ]


@pytest.mark.fault(
    "a long stage is killed and resumed",
    how="SIGKILL at step 7, SIGTERM at 18; same bytes as a run through",
    trials=2,
)
@pytest.mark.parametrize(
    "mode", [MODES[0], pytest.param(MODES[1], marks=pytest.mark.slow)], ids=["int8", "fp32"]
)
def test_killed_and_resumed_exports_the_bytes_of_a_run_through(
    tiny: TinyModel, tmp_path: Path, mode: dict[str, Any]
) -> None:
    """SIGKILL, then SIGTERM, then to the end: three processes, one result."""
    whole = _train(request_in(tiny, tmp_path / "whole", **mode, checkpoint_every=0, checkpoints=""))
    resume, steps = "", []
    for number, (name, at) in enumerate([("SIGKILL", 7), ("SIGTERM", 18), ("", 30)]):
        request = request_in(tiny, tmp_path / f"part{number}", **mode, resume=resume)
        process = start(request)
        deadline = time.monotonic() + 120
        while name and time.monotonic() < deadline and (reported_steps(request) or [0])[-1] < at:
            time.sleep(0.005)
        if name:
            process.send_signal(signal.Signals[name])
        code = process.wait(120)
        assert code == {"SIGKILL": -signal.SIGKILL, "SIGTERM": ExitCode.INTERRUPTED, "": 0}[name]
        steps.append(reported_steps(request))
        assert Path(request.output_weight).exists() == (not name)
        newest = newest_checkpoint(Path(request.checkpoints))
        if not name:
            assert newest is None, "the states go once the weight is there"
            break
        assert newest is not None
        assert not list(newest.parent.glob("step-*.dat"))[2:], (
            "at most the one before, while the new one is written"
        )
        assert checkpoint_step(newest) >= (steps[-1][-1] // 4 * 4 - 4 if name == "SIGKILL" else steps[-1][-1])
        resume = str(newest)
    assert _sha(request.output_weight) == whole.sha256
    assert steps[1][0] > 1
    assert steps[2][0] == steps[1][-1] + 1, "a polite end loses no step"
    again = json.loads(Path(request.result).read_text("utf-8"))
    same = ("loss_first", "loss_last", "tokens", "update_ratio_mean")
    assert {key: again["figures"][key] for key in same} == {key: whole.figures[key] for key in same}


@pytest.fixture
def keep_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints stay after the export."""
    monkeypatch.setattr(Checkpoints, "discard", lambda self: None)


@pytest.mark.usefixtures("keep_checkpoints")
@pytest.mark.parametrize(
    ("mode", "every", "at"), [(MODES[0], 3, 6), (MODES[1], 4, 8)], ids=["int8", "fp32-last-step"]
)
def test_any_state_leads_to_the_same_bytes(
    tiny: TinyModel, tmp_path: Path, mode: dict[str, Any], every: int, at: int
) -> None:
    plain = _train(request_in(tiny, tmp_path / "plain", steps=8, checkpoint_every=0, **mode))
    saved = request_in(tiny, tmp_path / "saved", steps=8, checkpoint_every=every, **mode)
    assert _train(saved).sha256 == plain.sha256, "saving changes nothing"
    newest = newest_checkpoint(Path(saved.checkpoints))
    assert newest == checkpoint_path(Path(saved.checkpoints), at)
    resumed = request_in(
        tiny, tmp_path / "resumed", steps=8, checkpoint_every=every, **mode, resume=str(newest)
    )
    result = _train(resumed)
    assert result.sha256 == plain.sha256
    assert [event["step"] for event in _events(resumed, "step")] == list(range(at + 1, 9))
    assert result.figures["update_ratio_mean"] == plain.figures["update_ratio_mean"]


@pytest.mark.gpu
@pytest.mark.usefixtures("keep_checkpoints")
@pytest.mark.parametrize("mode", MODES, ids=["int8", "fp32"])
def test_any_state_leads_to_the_same_bytes_on_a_gpu(
    tiny: TinyModel, tmp_path: Path, mode: dict[str, Any]
) -> None:
    device = {"device": "cuda", "compute_dtype": ComputeDtype.BF16}
    plain = _train(request_in(tiny, tmp_path / "plain", steps=8, checkpoint_every=0, **mode, **device))
    saved = request_in(tiny, tmp_path / "saved", steps=8, checkpoint_every=3, **mode, **device)
    assert _train(saved).sha256 == plain.sha256
    newest = newest_checkpoint(Path(saved.checkpoints))
    assert (
        _train(request_in(tiny, tmp_path / "resumed", steps=8, **mode, **device, resume=str(newest))).sha256
        == plain.sha256
    )


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-100, 100, (3, 7), generator=generator)
    kinds = (torch.bfloat16, torch.float32, torch.int8)
    return {str(kind): numbers.to(kind) for kind in kinds} | {"bytes": numbers.abs().to(torch.uint8)}


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    path, progress = checkpoint_path(tmp_path, 12), TrainProgress(12, 96, 0.1 + 0.2, 12, {"loss_last": 1 / 3})
    save(path, state(), progress, "key")
    target = state(1)
    assert restore(path, target, "key") == progress
    assert all(torch.equal(tensor, state()[name]) for name, tensor in target.items())
    with pytest.raises(StageError, match="another training"):
        restore(path, target, "other key")
    with pytest.raises(UnusableCheckpointError, match="another kind of device"):
        restore(path, {**target, "more": torch.zeros(1)}, "key")


@pytest.mark.fault("a saved state is damaged", how="a flipped bit or a cut", trials=60)
def test_any_damage_is_found_before_anything_is_touched(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1)
    save(path, state(), TrainProgress(1), "key")
    good, chance = path.read_bytes(), random.Random(7)
    for _ in range(60):
        data = bytearray(good)
        if chance.random() < 0.5:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            data = data[: chance.randrange(len(data))]
        path.write_bytes(data)
        target = state(1)
        with pytest.raises(UnusableCheckpointError):
            restore(path, target, "key")
        assert all(torch.equal(tensor, state(1)[name]) for name, tensor in target.items())


@pytest.mark.fault("a stage is given a damaged state", how="six bytes in its place")
def test_a_damaged_state_is_noted_and_the_stage_starts_from_the_beginning(
    tiny: TinyModel, tmp_path: Path
) -> None:
    broken = tmp_path / "step-00000004.dat"
    broken.write_bytes(b"\x01cut")
    plain = _train(request_in(tiny, tmp_path / "plain", steps=4, checkpoint_every=0))
    result = _train(request_in(tiny, tmp_path / "again", steps=4, resume=str(broken)))
    assert result.sha256 == plain.sha256
    assert any("from the beginning" in note and "step-00000004.dat" in note for note in result.notes)


@pytest.mark.fault("a stage is given a state of another training", how="another rate, other rows", trials=2)
@pytest.mark.usefixtures("keep_checkpoints")
def test_the_state_of_other_rows_or_another_recipe_is_refused(tiny: TinyModel, tmp_path: Path) -> None:
    first = request_in(tiny, tmp_path / "first", steps=6)
    _train(first)
    newest = newest_checkpoint(Path(first.checkpoints))
    rows = tmp_path / "rows.tsv"
    rows.write_text(tiny.rows.read_text("utf-8").replace("Paris", "Rome"), encoding="utf-8")
    for number, other in enumerate(
        ({"lr": 2e-2}, {"data": [dataclasses.replace(first.data[0], path=str(rows))]})
    ):
        request = request_in(
            tiny, tmp_path / f"other{number}", **{"steps": 6, "resume": str(newest), **other}
        )
        result = _train(request)
        assert (result.exit_code, Path(request.output_weight).exists()) == (ExitCode.BAD_INPUT, False)
        assert "another training" in result.error


@pytest.mark.fault(
    "no space for a saved state", how="RLIMIT_FSIZE between the size of the weight and that of a state"
)
def test_a_full_disk_costs_the_state_and_not_the_training(tiny: TinyModel, tmp_path: Path) -> None:
    request = request_in(tiny, tmp_path, steps=9)
    done = train_with_room(request, tiny.weight.stat().st_size * 2)
    result = load_file(StageResult, Path(request.result))
    assert (done.returncode, result.exit_code, result.steps) == (0, 0, 9), done.stderr
    assert [note for note in result.notes if "no state was saved after step 4" in note]
    assert len([note for note in result.notes if "no state" in note]) == 1
    assert _sha(request.output_weight) == _train(request_in(tiny, tmp_path / "roomy", steps=9)).sha256


@pytest.mark.usefixtures("keep_checkpoints")
def test_states_are_readable_as_weight_files_and_hold_all_masters(tiny: TinyModel, tmp_path: Path) -> None:
    request = request_in(tiny, tmp_path, steps=5)
    _train(request)
    path = newest_checkpoint(Path(request.checkpoints))
    assert path is not None
    with DatFile(path) as dat:
        masters = [name for name in dat.entries if name.startswith("master/")]
        kinds = {name.split("/")[0] for name in dat.entries}
        assert kinds == {
            "meta",
            "master",
            "exp_avg",
            "exp_avg_scale",
            "exp_avg_sq",
            "exp_avg_sq_scale",
            "clip",
            "sha256",
        }
        assert dat.entries["clip/squares"].shape == (len(masters),)


def test_saving_without_a_folder_is_a_problem(tiny: TinyModel, tmp_path: Path) -> None:
    assert any("checkpoints" in fault for fault in _request(tiny, tmp_path, checkpoint_every=3).check())
    assert any("checkpoint_every" in fault for fault in _request(tiny, tmp_path, checkpoint_every=-1).check())
