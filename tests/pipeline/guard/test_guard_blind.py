"""The guard where memory cannot be read: it refuses, or runs and says so. Unified memory by a fake driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.guard.report import GuardReport, Reason
from stages.contract.events import ExitCode
from tests.pipeline.guard.guarded import SIGN_IN, Guarded, fake_smi, folder, python
from tests.pipeline.project import project
from tests.pipeline.run.test_runner import go, stage

__all__ = ["folder", "project"]


@pytest.mark.fault("memory cannot be read before the start", how="no nvidia-smi on PATH")
def test_blind_refuses_to_start(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    guarded = Guarded(
        tmp_path, ["/usr/bin/touch", str(mark)], "--reader", "nvidia-smi", env={**os.environ, "PATH": ""}
    )
    exit_code, report, said = guarded.end()
    assert exit_code == report.exit_code == 2
    assert report.reason is Reason.BLIND and report.blind and report.child_exit_code is None
    assert "nvidia-smi: not found" in said and "--allow-blind" in said
    assert not mark.exists()


@pytest.mark.fault("memory cannot be read, and that is allowed", how="no nvidia-smi on PATH, --allow-blind")
def test_blind_when_allowed_runs_and_says_so(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    options = ["--reader", "nvidia-smi", "--allow-blind"]
    exit_code, report, said = Guarded(
        tmp_path, ["/usr/bin/touch", str(mark)], *options, env={**os.environ, "PATH": ""}
    ).end()
    assert exit_code == 0 and mark.exists()
    assert report.blind and report.reader == "none" and report.figures.samples == 0
    assert "BLIND" in report.figures.notes[0] and "BLIND" in said


@pytest.mark.fault(
    "GPU memory over the limit on unified memory",
    how="a driver that counts 90 MiB for each of two processes and no total",
)
def test_gpu_memory_of_a_grandchild_on_unified_memory(tmp_path: Path, folder: Path) -> None:
    env = fake_smi(folder, 5)
    code = (
        "os.fork()\n" + SIGN_IN + "time.sleep(0.3); Path(sys.argv[1], 'mib').write_text('90'); time.sleep(60)"
    )
    options = ["--reader", "nvidia-smi", "--min-available-gb", "0"]
    exit_code, report, said = Guarded(tmp_path, python(code, folder), *options, env=env).end()
    assert exit_code == 124 and report.reason is Reason.MEMORY, said
    assert report.figures.breach_mib == 180 and report.reader == "nvidia-smi"
    assert "share one memory" in said


@pytest.mark.fault(
    "the driver stops answering", how="nvidia-smi ends with an error from one poll to the next"
)
def test_memory_that_cannot_be_read_any_more_ends_the_command(tmp_path: Path, folder: Path) -> None:
    env = fake_smi(folder, 5)
    code = SIGN_IN + "time.sleep(0.3); Path(sys.argv[1], 'broken').touch(); time.sleep(60)"
    exit_code, report, said = Guarded(tmp_path, python(code, folder), "--reader", "nvidia-smi", env=env).end()
    assert exit_code == 124 and report.reason is Reason.BLIND and report.blind
    assert report.figures.failed_reads > 1 and "cannot be read any more" in said


@pytest.mark.fault(
    "memory cannot be read, and that is allowed",
    how="no nvidia-smi on PATH, --allow-blind; ended by a time limit",
)
def test_blind_is_said_first_and_last(tmp_path: Path) -> None:
    options = ["--reader", "nvidia-smi", "--allow-blind", "--time-limit", "0.3"]
    exit_code, report, said = Guarded(
        tmp_path, ["/usr/bin/env", "sleep", "30"], *options, env={**os.environ, "PATH": "/usr/bin:/bin"}
    ).end()
    assert exit_code == 124 and report.reason is Reason.TIME and report.blind
    lines = [line for line in said.splitlines() if "BLIND" in line]
    assert len(lines) == 2 and "--allow-blind" in lines[0] and "all the time" in lines[1]
    assert "--allow-blind" in report.figures.notes[0]


@pytest.mark.fault(
    "memory cannot be read during a whole run",
    how="no nvidia-smi on PATH: without and with guard.allow_blind",
)
def test_a_run_that_cannot_be_watched_is_refused_or_says_so_in_the_log(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    refused = go(project, {"G": stage()}, guard={"reader": "nvidia-smi"})
    assert (refused.exit_code, refused.attempts) == (ExitCode.BAD_INPUT, ()), (
        "the first process, probing the base weight, was refused"
    )
    assert "--allow-blind" in refused.end.summary[-1]
    allowed = go(project, {"G": stage()}, guard={"reader": "nvidia-smi", "allow_blind": True})
    assert allowed.exit_code == 0
    assert GuardReport.load(project / allowed.attempts[0].attempt.folder / "guard.json").blind
    assert "BLIND" in (project / "DevLog.md").read_text(encoding="utf-8")
    assert allowed.attempts[0].end.figures["guard_blind"] == 1
