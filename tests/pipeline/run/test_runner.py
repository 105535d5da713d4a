"""Whole runs over a stand-in stage: every way from a first attempt to the end, with real processes, guard and
ledger.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.settings import SettingsError
from pipeline.core.types import Outcome, StartFrom
from pipeline.run.runner import RunResult
from pipeline.run.session import SessionError, run
from stages.contract.events import ExitCode
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]

RUNG = {"change": {"lr": "*0.1"}, "why": "smaller"}
NO_IDENTITY = {"thresholds": {"identity_train_min": None, "identity_heldout_min": None}}


def go(root: Path, stages: dict[str, Any], **top: Any) -> RunResult:
    return run(
        settings_of(root, stages, **top),
        root,
        "python -m pipeline +experiment=test",
        "name: test\n",
        COMMANDS,
    )


def stage(data: str = "one", **own: Any) -> dict[str, Any]:
    return {"data": [f"data/{data}.tsv"], "steps": 12, "lr": 1e-3, **own}


def weights(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in (root / "artifacts").rglob("*.dat"))


def content(root: Path, path: str) -> dict[str, Any]:
    return json.loads((root / path).read_text(encoding="utf-8"))


def test_stages_pass_and_hand_their_weight_on(project: Path) -> None:
    result = go(project, {"A": stage("two", steps=6, probes=NO_IDENTITY), "G": stage("one")})
    assert (result.exit_code, result.end.outcome) == (0, Outcome.PASSED)
    assert [done.attempt.stage for done in result.attempts] == ["A", "G"]
    assert content(project, result.end.final_weight)["history"] == [
        [1e-3, 6, 0, ["1+1=?"]],
        [1e-3, 12, 0, ["你是誰"]],
    ]
    assert weights(project) == sorted(done.end.output_weight for done in result.attempts)
    assert all(path.startswith("artifacts/weights/test/") for path in weights(project))
    folder = project / result.attempts[1].attempt.folder
    names = {
        "request.json",
        "command.txt",
        "events.jsonl",
        "stdout.log",
        "stderr.log",
        "trace.csv",
        "trace.json",
        "trace.png",
    }
    names |= {"guard.json", "result.json", "answers.jsonl", "probes.csv", "verdict.json", "judging.json"}
    assert names <= {path.name for path in folder.iterdir()}


def test_collapse_goes_to_the_trash_and_back_to_the_base_weight(project: Path) -> None:
    stages = {
        "A": stage("two", probes=NO_IDENTITY),
        "G": stage("one", lr=0.05, ladder={"rungs": [{"after": "collapsed", **RUNG}]}),
    }
    result = go(project, stages)
    first, second = result.attempts[1:]
    assert result.exit_code == 0
    assert (first.end.outcome, second.end.outcome) == (Outcome.COLLAPSED, Outcome.PASSED)
    trash = Path(first.end.output_weight)
    assert trash.parts[:2] == ("artifacts", "_trash")
    assert "repetition" in (project / trash.parent / "REASON.md").read_text(encoding="utf-8")
    assert second.attempt.start_from is StartFrom.BASE
    assert [(c.key, c.old, c.new) for c in second.attempt.changes] == [("lr", 0.05, 0.005)]
    assert content(project, result.end.final_weight)["history"] == [[0.005, 12, 0, ["你是誰"]]], (
        "nothing of A: from the base"
    )
    assert result.end.final_weight in (project / "artifacts" / "檔案說明清單.md").read_text(encoding="utf-8")


def test_underfit_goes_on_from_the_stage_input(project: Path) -> None:
    rungs = [{"after": "underfit", "change": {"steps": "*2"}, "why": "longer"}]
    stages = {
        "A": stage("two", steps=5, probes=NO_IDENTITY),
        "G": stage("one", steps=6, ladder={"rungs": rungs}),
    }
    result = go(project, stages)
    assert [done.end.outcome.value for done in result.attempts] == ["passed", "underfit", "passed"]
    assert [step[1] for step in content(project, result.end.final_weight)["history"]] == [5, 12]


@pytest.mark.fault("a training over the limit", how="400 MiB in step 2, limit 200 MiB; the ladder goes on")
def test_over_the_limit_is_told_and_retried(project: Path) -> None:
    rungs = [{"after": "over_limit", "change": {"data": ["data/one.tsv"]}, "why": "less"}]
    guard = {"gpu_limit_gb": 0.2, "gpu_poll_secs": 0.02, "reader": "resident"}
    result = go(project, {"G": stage("memory", ladder={"rungs": rungs})}, guard=guard)
    first, second = result.attempts
    assert (first.end.outcome, first.end.exit_code) == (Outcome.OVER_LIMIT, ExitCode.GUARD_KILLED)
    assert first.end.peak_mib > 200
    assert "limit" in first.end.error
    assert second.attempt.recipe["data"] == [{"path": "data/one.tsv", "repeat": 1}]
    assert result.exit_code == 0


@pytest.mark.fault("the stage crashes", how="abort in step 2")
def test_crash_ends_the_run_with_what_was_tried(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = go(project, {"G": stage("crash")})
    assert result.exit_code == 1
    assert result.end.outcome is Outcome.BROKEN
    assert len(result.attempts) == 1
    assert result.attempts[0].end.exit_code == 128 + signal.SIGABRT
    assert "no rung" in result.end.summary[-1]
    assert result.end.resume_command == "python -m pipeline +experiment=test"


def test_a_stage_that_stops_early_is_a_measurement(project: Path) -> None:
    stages = {"A": stage("two", probes=NO_IDENTITY), "G": stage(stop_after="backward_done")}
    for _ in range(2):
        result = go(project, stages)
        assert (result.exit_code, result.end.outcome, result.end.resume_command) == (0, Outcome.MEASURED, "")
        assert [done.end.outcome.value for done in result.attempts] == ["passed", "measured"]
        assert [done.reused for done in result.attempts][1] is False, "a measurement is made anew"
        folder = project / result.attempts[1].attempt.folder
        assert (folder / "trace.json").is_file() and not (folder / "answers.jsonl").exists()
    assert len(weights(project)) == 1 and "measured" in (project / "DevLog.md").read_text(encoding="utf-8")
    with pytest.raises(SettingsError, match=r"stages\.A\.stop_after: start: set it in G only"):
        go(project, {"A": stage(stop_after="start"), "G": stage()})
    whole = go(project, {"G": stage(stop_after="exported")})
    assert whole.end.outcome is Outcome.PASSED and "ability_ratio" in whole.attempts[0].end.verdict.figures, (
        "judged as any, against the base"
    )


@pytest.mark.fault("the loss is NaN", how="step 2")
def test_non_finite_is_retried_from_the_base(project: Path) -> None:
    rungs = [
        {"after": "broken", "cause": "non_finite", "change": {"data": ["data/one.tsv"]}, "why": "other rows"}
    ]
    result = go(project, {"G": stage("non_finite", ladder={"rungs": rungs})})
    assert [done.end.outcome.value for done in result.attempts] == ["broken", "passed"]
    assert result.attempts[0].end.error == "step 2: loss nan"


def test_an_exhausted_ladder_fails_and_loses_nothing(project: Path) -> None:
    result = go(
        project,
        {
            "G": stage(
                "one",
                lr=0.5,
                ladder={"max_attempts": 3, "rungs": [{"after": "collapsed", "repeat": True, **RUNG}]},
            )
        },
    )
    # 0.5, 0.05 collapse; 0.005 passes: so three attempts suffice; two do not.
    assert [done.end.outcome.value for done in result.attempts] == ["collapsed", "collapsed", "passed"]
    result = go(
        project,
        {
            "G": stage(
                "two",
                lr=0.5,
                ladder={"max_attempts": 2, "rungs": [{"after": "collapsed", "repeat": True, **RUNG}]},
            )
        },
    )
    assert (result.exit_code, result.end.outcome) == (1, Outcome.COLLAPSED)
    assert len([path for path in weights(project) if "_trash" in path]) == 4
    assert result.end.final_weight == ""


def test_finished_attempts_are_found_again_and_failed_ones_too(project: Path) -> None:
    stages = {
        "A": stage("two", probes=NO_IDENTITY),
        "G": stage("one", lr=0.05, ladder={"rungs": [{"after": "collapsed", **RUNG}]}),
    }
    first, again = go(project, stages), go(project, stages)
    assert [done.reused for done in again.attempts] == [True, True, True]
    assert again.end.final_sha256 == first.end.final_sha256
    assert again.exit_code == 0
    # The measure changes: what was judged by another one is judged anew.
    stages["G"]["probes"] = {"thresholds": {"leak_max": 0.5}}
    stages["G"]["probes"]["thresholds"]["collapse_leak"] = 0.6
    assert [done.reused for done in go(project, stages).attempts] == [True, False, False]
    # The weight was changed by someone: it is trained again.
    (project / first.attempts[0].end.output_weight).write_text("spoilt", encoding="utf-8")
    third = go(project, stages)
    assert not third.attempts[0].reused
    assert third.attempts[0].end.output_sha256 == first.attempts[0].end.output_sha256
    assert third.attempts[0].end.output_weight != first.attempts[0].end.output_weight, (
        "the spoilt file is not overwritten"
    )


def test_an_attempt_of_other_code_is_named_and_trained_again(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = go(project, {"G": stage()})
    assert "other code" not in capsys.readouterr().err
    monkeypatch.setattr("pipeline.run.content_key.code_key", lambda entry: "another optimizer")
    again = go(project, {"G": stage()})
    assert not again.attempts[0].reused and again.end.final_sha256 == first.end.final_sha256
    folder = first.attempts[0].attempt.folder
    assert f"by other code, trained again 程式碼已改,重新訓練: {folder}" in capsys.readouterr().err
    assert go(project, {"G": stage()}).attempts[0].reused


def test_reuse_false_trains_again_and_gives_the_same_bytes(project: Path) -> None:
    first, again = go(project, {"G": stage()}), go(project, {"G": stage()}, reuse=False)
    assert not again.attempts[0].reused
    assert again.end.final_sha256 == first.end.final_sha256
    assert weights(project) == [first.end.final_weight], "the same bytes are kept once"


def test_a_new_seed_is_another_result(project: Path) -> None:
    first, other = go(project, {"G": stage()}), go(project, {"G": stage()}, train={"seed": 7})
    assert not other.attempts[0].reused
    assert other.end.final_sha256 != first.end.final_sha256


def test_from_nothing_makes_a_model_and_judges_without_a_base(project: Path) -> None:
    stages = {
        "init": {"kind": "init", "config": "model/config.json", "data": ["data/one.tsv"]},
        "long": stage(),
    }
    result = go(project, stages, model={"weight": "gone.dat"}, probes={"thresholds": {"ability_min": 0.9}})
    assert result.exit_code == 0
    made = project / Path(result.attempts[0].end.output_weight).parent
    assert {path.name for path in made.iterdir()} == {"config.json", "tokenizer.json", "weight.dat"}
    assert "ability_base" not in result.attempts[1].end.verdict.figures
    assert [
        done.reused
        for done in go(
            project, stages, model={"weight": "gone.dat"}, probes={"thresholds": {"ability_min": 0.9}}
        ).attempts
    ] == [
        True,
        True,
    ]


@pytest.mark.fault("the base weight is no weight", how="text in its place")
def test_a_bad_base_weight_ends_the_run_before_training(project: Path) -> None:
    (project / "model" / "base.dat").write_text("this is no weight at all", encoding="utf-8")
    result = go(project, {"G": stage()})
    assert (result.exit_code, result.attempts) == (1, ())
    assert "model/base.dat: no answers" in result.end.summary[-1]
    assert not list((project / "artifacts" / "runs").glob("*/01-G-*"))


def test_the_command_runs_again_by_hand(project: Path) -> None:
    result = go(project, {"G": stage()})
    line = (project / result.attempts[0].attempt.folder / "command.txt").read_text(encoding="utf-8")
    assert line.count("\n") == 1
    done = subprocess.run(
        ["bash", "-c", line], cwd=project, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    again = project / result.attempts[0].attempt.folder / "again-weight.dat"
    assert again.read_text(encoding="utf-8") == (project / result.end.final_weight).read_text(
        encoding="utf-8"
    )


@pytest.mark.fault(
    "a signal to the control process", how="SIGINT once and twice, SIGTERM; then the same command"
)
@pytest.mark.parametrize(
    "signals", [[signal.SIGINT], [signal.SIGINT] * 2, [signal.SIGTERM]], ids=["once", "twice", "sigterm"]
)
def test_interrupted_by_signal_then_resumed(project: Path, signals: list[signal.Signals]) -> None:
    """A real control process; the first signal lets the step end, the second ends at once; the same command
    goes on.
    """
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.pipeline.run.test_runner import go, stage, NO_IDENTITY\n"
        "stages = {'A': stage('two', probes=NO_IDENTITY), 'G': stage('slow', steps=200)}\n"
        "sys.exit(go(Path(sys.argv[1]), stages).exit_code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while (
        not (events := list((project / "artifacts" / "runs").glob("*/02-G-attempt1/events.jsonl")))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    time.sleep(0.3)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)
    assert process.wait(10) == ExitCode.INTERRUPTED
    steps = events[0].read_text(encoding="utf-8").count('"step"')
    assert 0 < steps < 200
    assert not [path for path in weights(project) if "G-" in path]
    resumed = go(project, {"A": stage("two", probes=NO_IDENTITY), "G": stage("slow", steps=12)})
    assert [done.reused for done in resumed.attempts] == [True, False]
    assert "interrupted" in (project / "DevLog.md").read_text(encoding="utf-8")


@pytest.mark.fault("the control process is killed during a training", how="SIGKILL; then the same command")
def test_a_killed_control_process_leaves_nothing_running(project: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.pipeline.run.test_runner import go, stage\n"
        "go(Path(sys.argv[1]), {'G': stage('slow', steps=2000)})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while (
        not list((project / "artifacts" / "runs").glob("*/01-G-attempt1/events.jsonl"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    process.kill()
    process.wait()
    result = go(project, {"G": stage()})
    assert result.exit_code == 0
    held = [p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, str(project))]
    assert not held, "the guard of the dead run was ended before the new one began"


def _mentions(cmdline: Path, text: str) -> bool:
    try:
        return text.encode() in cmdline.read_bytes() and cmdline.parent.name != str(os.getpid())
    except OSError:
        return False


@pytest.mark.fault("two runs at once on one artifacts folder", how="a second one while the first trains")
def test_two_runs_at_once_on_one_folder_are_refused(project: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.pipeline.run.test_runner import go, stage\n"
        "sys.exit(go(Path(sys.argv[1]), {'G': stage('slow', steps=30)}).exit_code)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(project)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not list((project / "artifacts").glob("runs/*/*/events.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(SessionError, match=str(process.pid)):
        go(project, {"G": stage()})
    assert process.wait(30) == 0, "the refused run did not disturb the first"
