"""One stage as a process of its own: what it learns, repeats, refuses and leaves behind."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from stages.contract.events import ExitCode, Phase, StageResult
from stages.contract.recipe import ComputeDtype, DataSource, OptimizerStateMode, Rounding, Sampling, Schedule
from stages.contract.requests import InferencePath, ProbeRequest, TrainRequest
from stages.contract.serial import dump, load_file
from stages.inference.probe import main as probe_main
from stages.optim.schedule import group_lr_factor, schedule_factor
from stages.qwen3.config import read_config
from stages.train.stage import main as train_main
from stages.weights.dat import DatFile
from tests.conftest import ROWS, TinyModel
from tests.recipes import PLAIN


def _request(tiny: TinyModel, folder: Path, **changes: Any) -> TrainRequest:
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "model_dir": str(tiny.folder),
        "input_weight": str(tiny.weight),
        "output_weight": str(folder / "out.dat"),
        "events": str(folder / "events.jsonl"),
        "result": str(folder / "result.json"),
        "data": [DataSource(str(tiny.rows))],
        "steps": 3,
        "lr": 1e-2,
        "batch_size": 6,
        "compute_dtype": ComputeDtype.FP32,
        "device": "cpu",
    }
    return TrainRequest(**(PLAIN | values | changes))


def _train(request: TrainRequest) -> StageResult:
    path = Path(request.result).with_name("request.json")
    path.write_text(dump(request), encoding="utf-8")
    code = train_main([str(path)])
    result = load_file(StageResult, Path(request.result))
    assert result.exit_code == code
    return result


def train_with_room(request: TrainRequest, room: int) -> subprocess.CompletedProcess[bytes]:
    """Trains in a process of its own whose files cannot grow past `room` bytes."""
    path = Path(request.result).parent / "request.json"
    path.write_text(dump(request), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "stages.train", str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        check=False,
    )


def _events(request: TrainRequest, kind: str) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in Path(request.events).read_text("utf-8").splitlines()]
    return [e for e in events if e["kind"] == kind]


def _sha(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_it_learns_its_rows_and_the_exported_file_says_them(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, steps=150, warmup_steps=5, schedule=Schedule.COSINE)
    result = _train(request)
    assert result.exit_code == 0 and result.sha256 == _sha(request.output_weight)
    assert result.figures["loss_last"] < 0.1 < 3 < result.figures["loss_first"]
    assert result.figures["update_ratio_mean"] == pytest.approx(1.0, abs=0.02)
    assert result.figures["total_elems"] == read_config(tiny.folder / "config.json").parameters
    with DatFile(Path(request.output_weight)) as new, DatFile(tiny.weight) as old:
        assert list(new.entries.values()) == list(old.entries.values())
        unchanged = [
            n
            for n in old.entries
            if torch.equal(old.tensor(n).view(torch.uint8), new.tensor(n).view(torch.uint8))
        ]
    assert unchanged == [], "embedding, norms and head are trained too"
    assert [e["phase"] for e in _events(request, "phase")] == list(Phase)
    for path in InferencePath:
        _check_answers(tiny, request.output_weight, tmp_path / path, path)


def _check_answers(tiny: TinyModel, weight: str, folder: Path, path: InferencePath) -> None:
    folder.mkdir()
    probes = folder / "p.tsv"
    lines = [f"health\tx\ttrain\t{prompt}\t={target}\t" for prompt, target in ROWS]
    probes.write_text("kind\tgroup\tsplit\tprompt\texpect\tforbid\n" + "\n".join(lines), encoding="utf-8")
    outputs = (str(folder / name) for name in ("a", "e", "r"))
    request = ProbeRequest(
        str(tiny.folder),
        weight,
        [str(probes)],
        *outputs,
        max_tokens=30,
        path=path,
        compute_dtype=ComputeDtype.FP32,
        device="cpu",
    )
    (folder / "q").write_text(dump(request), encoding="utf-8")
    assert probe_main([str(folder / "q")]) == 0
    answers = [json.loads(line) for line in Path(request.answers).read_text("utf-8").splitlines()]
    assert [a["text"] for a in answers] == [target for _, target in ROWS]
    assert {a["finish"] for a in answers} == {"end_of_turn"}, "the end of turn stands in the target"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"grad_accum": 2, "batch_size": 3},
        {"gradient_checkpointing": True},
        {"optimizer_state_mode": OptimizerStateMode.FP32, "sampling": Sampling.SEQUENTIAL},
    ],
)
def test_the_same_request_gives_the_same_file(
    tiny: TinyModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    hashes = [_train(_request(tiny, tmp_path / str(i), **changes)).sha256 for i in range(2)]
    assert hashes[0] == hashes[1] != ""
    assert _train(_request(tiny, tmp_path / "other", seed=1, **changes)).sha256 != hashes[0]


def test_accumulation_and_checkpointing_do_not_change_what_is_learned(
    tiny: TinyModel, tmp_path: Path
) -> None:
    losses = []
    for i, changes in enumerate([{}, {"grad_accum": 2, "batch_size": 3}, {"gradient_checkpointing": True}]):
        losses.append(
            _train(_request(tiny, tmp_path / str(i), sampling=Sampling.SEQUENTIAL, **changes)).figures[
                "loss_last"
            ]
        )
    assert losses[0] == pytest.approx(losses[1], rel=2e-2) and losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_no_steps_export_the_input_byte_for_byte(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, steps=0)
    assert _train(request).sha256 == _sha(str(tiny.weight)) == _sha(request.output_weight)


def test_only_the_last_layers_change_when_only_they_are_trained(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, train_last_layers=1)
    _train(request)
    with DatFile(Path(request.output_weight)) as new, DatFile(tiny.weight) as old:
        changed = {
            n
            for n in old.entries
            if not torch.equal(old.tensor(n).view(torch.uint8), new.tensor(n).view(torch.uint8))
        }
    assert changed and all(n.startswith(("model.layers.1.", "model.norm", "lm_head")) for n in changed)


def test_lr_groups_change_the_rate_of_their_own_parameters(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, lr_groups={"model": 0.0}, steps=2)
    _train(request)
    with DatFile(Path(request.output_weight)) as new, DatFile(tiny.weight) as old:
        changed = {
            n
            for n in old.entries
            if not torch.equal(old.tensor(n).view(torch.uint8), new.tensor(n).view(torch.uint8))
        }
    assert changed == {"lm_head.weight.qdata", "lm_head.weight.scale"}
    assert group_lr_factor("lm_head.weight", {"lm_head": 10.0, "lm": 2.0}) == 10.0
    other = _train(_request(tiny, tmp_path / "b", lr_groups={"lmhead": 10.0}))
    assert other.exit_code == ExitCode.BAD_INPUT and "lr_groups: lmhead" in other.error


def test_schedule_and_warm_up(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, steps=10, warmup_steps=4, schedule=Schedule.LINEAR, min_lr_ratio=0.1)
    factors = [schedule_factor(step, request) for step in range(1, 11)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0] and factors[-1] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[3:]))


@pytest.mark.fault("training explodes", how="a rate far too high")
def test_a_rate_that_explodes_stops_the_stage_without_a_file(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, lr=1.0, lr_groups={"model": 1e38}, clip_norm=0.0, steps=20)
    result = _train(request)
    assert result.exit_code == ExitCode.NON_FINITE and "lower lr" in result.error
    assert not Path(request.output_weight).exists()


def test_stop_after_a_phase_exports_nothing(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, stop_after="backward_done")
    result = _train(request)
    assert result.exit_code == 0 and not Path(request.output_weight).exists()
    assert _events(request, "phase")[-1]["phase"] == "backward_done"
    request = _request(tiny, tmp_path / "whole", stop_after="exported")
    assert _train(request).exit_code == 0 and Path(request.output_weight).exists(), (
        "the last phase is the whole stage"
    )


@pytest.mark.fault("SIGTERM to the stage", how="during its steps")
def test_sigterm_stops_after_the_step_and_exports_nothing(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, steps=100_000)
    (tmp_path / "request.json").write_text(dump(request), encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, "-m", "stages.train", str(tmp_path / "request.json")], cwd=Path(__file__).parents[3]
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (Path(request.events).exists() and _events(request, "step")):
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait(timeout=30) == ExitCode.INTERRUPTED
    assert load_file(StageResult, Path(request.result)).exit_code == ExitCode.INTERRUPTED
    assert not Path(request.output_weight).exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"input_weight": "missing.dat"}, "missing.dat"),
        ({"model_dir": "nowhere"}, "config.json: "),
        ({"data": [DataSource("nowhere.tsv")]}, "nowhere.tsv: no such file"),
        ({"seq_len": 12}, "tokens, seq_len is 12"),
        ({"train_last_layers": 9}, "the model has 2 layers"),
        ({"device": "cuda:7"}, "CUDA device"),
    ],
)
def test_bad_input_is_named_before_training(
    tiny: TinyModel, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    result = _train(_request(tiny, tmp_path, **changes))
    assert result.exit_code == ExitCode.BAD_INPUT and says in result.error


@pytest.mark.fault("an output exists already", how="a file in its place")
def test_an_output_that_exists_is_kept(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path)
    Path(request.output_weight).write_bytes(b"mine")
    result = _train(request)
    assert result.exit_code == ExitCode.BAD_INPUT and "never overwritten" in result.error
    assert Path(request.output_weight).read_bytes() == b"mine"


def test_impossible_numbers_are_all_named(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = _request(
        tiny, tmp_path, lr=float("nan"), batch_size=0, beta1=1.0, warmup_steps=9, stop_after="never"
    )
    (tmp_path / "request.json").write_text(dump(request).replace("NaN", "-1.0"), encoding="utf-8")
    assert train_main([str(tmp_path / "request.json")]) == ExitCode.BAD_INPUT
    said = capsys.readouterr().err
    assert all(
        key in said
        for key in (
            "lr: -1.0",
            "batch_size: 0",
            "beta1: 1.0",
            "warmup_steps: 9",
            "stop_after: never: none of start",
        )
    )


def test_a_training_forward_that_is_not_the_files_inference_is_refused(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stages.qwen3 import model

    def forgets_the_final_norm(self: model.Qwen3, *args: Any, **kwargs: Any) -> torch.Tensor:
        norm, self.model.norm = self.model.norm, torch.nn.Identity()
        try:
            return whole(self, *args, **kwargs)
        finally:
            self.model.norm = norm

    whole = model.Qwen3.hidden
    monkeypatch.setattr(model.Qwen3, "hidden", forgets_the_final_norm)
    result = _train(_request(tiny, tmp_path))
    assert result.exit_code == ExitCode.DISAGREE and "parity" in result.error


def test_requests_survive_their_json(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, lr_groups={"lm_head": 10.0})
    (tmp_path / "q").write_text(dump(request), encoding="utf-8")
    assert load_file(TrainRequest, tmp_path / "q") == request
    assert dump(dataclasses.replace(request)) == dump(request)


@pytest.mark.parametrize(
    ("rounding", "least", "most"), [("fp32", 0.999, 1.001), ("stochastic", 0.9, 1.1), ("nearest", 0.0, 0.3)]
)
def test_what_each_rounding_keeps_of_small_updates(
    tiny: TinyModel, tmp_path: Path, rounding: str, least: float, most: float
) -> None:
    """The effective update ratio at 1e-6, where nearest BF16 loses most; `fp32` keeps float32 masters."""
    request = _request(tiny, tmp_path, lr=1e-6, steps=4, rounding=Rounding(rounding))
    assert least < _train(request).figures["update_ratio_mean"] < most
