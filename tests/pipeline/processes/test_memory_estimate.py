"""Memory before a start: what is estimated, what is refused and why, and what would fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.settings import Settings, SettingsError
from pipeline.guard.machine import Machine
from pipeline.processes.memory_estimate import EstimateError
from pipeline.processes.stage_process import StageCommands
from pipeline.run.plan import describe, memory_need
from pipeline.run.session import run
from pipeline.run.stage_request import memory_cap_gb
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]

CONFIG_4B = {
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
}
CONFIG_4B |= {"num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}
STAGES: dict[str, Any] = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"], "batch_size": 256}}
GPU = Machine((139.0,), 100.0)
NO_GPU = Machine((), 20.0)
SPARK = Machine((None,), 90.0, unified=True)


@pytest.fixture
def large(project: Path) -> Path:
    """The project with a 4B model's config, and a weight file of no entries: the stage's own programs are
    stand-ins.
    """
    (project / "model" / "config.json").write_text(json.dumps(CONFIG_4B), encoding="utf-8")
    return project


def settings_with(root: Path, limit_gb: float, stages: dict[str, Any] = STAGES, **train: Any) -> Settings:
    (root / "model" / "base.dat").write_bytes(b"\1\1x\0\1\x0e" + bytes(14))  # one entry, x
    return settings_of(root, stages, guard={"gpu_limit_gb": limit_gb}, train=train)


def need_of(root: Path, settings: Settings, machine: Machine, index: int = 0):  # type: ignore[no-untyped-def]
    return memory_need(settings, settings.stages[index], root, StageCommands(), machine)


def test_on_a_gpu_the_engine_counts_and_on_a_cpu_what_is_certain(large: Path) -> None:
    settings = settings_with(large, 108)
    engine, plain = need_of(large, settings, GPU), need_of(large, settings, NO_GPU)
    assert (engine.where, engine.lower_bound, plain.where, plain.lower_bound) == (
        "cuda, engine path",
        False,
        "cpu, plain path",
        True,
    )
    assert 4.1 < engine.bytes_per_parameter < 4.3 and engine.components["activations"] > 0
    assert (
        plain.components["masters"] == pytest.approx(2 * 4_022_468_096 / 2**30)
        and plain.components["activations"] == 0
    )
    assert sum(engine.components.values()) == pytest.approx(engine.peak_gb)
    assert need_of(large, settings_with(large, 108, device="cpu"), GPU).where == "cpu, plain path"
    assert need_of(large, settings_with(large, 108, device="cuda:1"), NO_GPU).where == "cuda, engine path"


@pytest.mark.parametrize(
    ("key", "value"), [("optimizer_state_mode", "fp32"), ("grad_accum", 2), ("loss", "scalar")]
)
def test_what_takes_the_plain_path_on_a_gpu_says_so(large: Path, key: str, value: Any) -> None:
    need = need_of(large, settings_with(large, 108, **{key: value}), GPU)
    assert need.lower_bound and need.where == f"cuda, plain path for {key} {value}"


def test_a_refusal_names_all_that_one_needs_and_its_options_fit(large: Path) -> None:
    """Both stages, the second with its own batch size; and what is advised passes, the next milder thing does
    not.
    """
    settings = settings_with(large, 18)
    for index, stage in enumerate(settings.stages):
        need = need_of(large, settings, Machine((17.0,), 100.0), index)
        text, cap = need.refusal(), memory_cap_gb(settings.guard)
        for word in (
            f"stages.{stage.name}: ",
            f"{need.peak_gb:.2f} GB",
            "guard.gpu_limit_gb 18",
            f"{cap:g} GB",
            "17.00 GB are free now",
        ):
            assert word in text
        advised = dict(word.split("=") for word in need.fits.split())
        assert all(f"stages.{stage.name}.{key}={value}" in text for key, value in advised.items())
        own = {key: {"true": True}.get(value) or int(value) for key, value in advised.items()}
        changed = settings_with(large, 18, {**STAGES, stage.name: {**STAGES[stage.name], **own}})
        assert need_of(large, changed, GPU, index).refusal() == ""
    assert "batch_size" in need.fits  # checkpointing alone is not enough for 256 rows


def test_nothing_fits_a_limit_below_the_masters(large: Path) -> None:
    need = need_of(large, settings_with(large, 4), GPU)
    assert need.fits is None and "no setting of this recipe fits" in need.refusal()


def test_less_free_than_needed_is_a_warning(large: Path) -> None:
    settings = settings_with(large, 108)
    assert need_of(large, settings, GPU).warning() == ""
    assert "10.00 GB are free now" in need_of(large, settings, Machine((10.0,), 100.0)).warning()
    assert "9.00 GB are free now" in need_of(large, settings, Machine((None,), 9.0, unified=True)).warning()
    assert need_of(large, settings, Machine((None,), 9.0)).warning() == ""  # nobody says
    assert "20.00 GB are free now" in need_of(large, settings, NO_GPU).warning()


def test_the_stages_own_cap_counts_where_it_is_lower(large: Path) -> None:
    assert need_of(large, settings_with(large, 108), SPARK).over is False
    need = need_of(large, settings_with(large, 108, memory_limit_gb=12.0), SPARK)
    assert need.over and need.cap.stage_gb == 12.0
    assert need_of(large, settings_with(large, 18, memory_limit_gb=99.0), SPARK).cap.stage_gb == 18


def test_a_model_that_cannot_be_read_gives_no_estimate(project: Path, large: Path) -> None:
    settings = settings_with(large, 108)
    (large / "model" / "config.json").write_text('{"vocab_size": 1}', encoding="utf-8")
    with pytest.raises(EstimateError, match="hidden_size"):
        need_of(large, settings, GPU)
    with pytest.raises(EstimateError, match="nowhere"):
        memory_need(settings, settings.stages[0], large, StageCommands(estimate=("/nowhere/python",)), GPU)
    assert "memory 記憶體  not known" in describe(settings, large, COMMANDS, GPU)


def test_the_plan_shows_memory_refusal_and_warning(large: Path) -> None:
    text = describe(settings_with(large, 18), large, COMMANDS, Machine((10.0,), 100.0))
    assert text.count("bytes a parameter") == text.count("GB by component: weights") == 2
    assert text.count("refused 拒絕   stages.") == 2 and text.count("warning 警告   ") == 2
    clean = describe(settings_with(large, 108), large, COMMANDS, GPU)
    assert "refused" not in clean and "warning" not in clean


def test_a_run_over_the_limit_begins_no_training(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.run.session.detect_machine", lambda: GPU)
    with pytest.raises(SettingsError) as caught:
        run(settings_with(large, 18), large, "command", "", COMMANDS)
    assert [fault.split(":")[0] for fault in caught.value.problems] == ["stages.A", "stages.G"]
    assert not (large / "artifacts" / "runs").exists()


def test_another_program_is_not_estimated(large: Path) -> None:
    trainer = {
        "kind": "external",
        "command": "prog --in {input} --out {output} --data {data}",
        "shell": False,
    }
    settings = settings_with(large, 18, {"A": {**STAGES["A"], "trainer": trainer}})
    assert need_of(large, settings, GPU) is None


def test_the_command_ends_with_two_and_one_clear_error(tmp_path: Path) -> None:
    """The real model and command line: 0.05 GB are certain, 0.04 are allowed."""
    line = [
        sys.executable,
        "-m",
        "pipeline",
        "+experiment=onestep",
        "guard.gpu_limit_gb=0.04",
        f"artifacts={tmp_path}",
    ]
    done = subprocess.run(
        [*line, "train.device=cpu", "tracking.enabled=false"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "stages.onestep: needs at least 0." in done.stderr and "guard.gpu_limit_gb 0.04" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()
