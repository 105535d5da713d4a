"""The guard's report: what is saved is loaded again, and nothing else passes for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.guard.report import GuardFigures, GuardReport, Reason
from stages.contract.serial import RequestError


def test_a_report_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    figures = GuardFigures(samples=3, peak_mib=12.5, least_available_mib=0.5, notes=["中文"])
    report = GuardReport(
        reason=Reason.MEMORY,
        message="too much",
        exit_code=124,
        child_exit_code=137,
        killed=True,
        reader="nvml",
        blind=False,
        guard_pid=10,
        child_pid=11,
        command=["python", "train.py"],
        limit_gb=108.0,
        over_secs=0.0,
        poll_secs=0.05,
        min_available_gb=4.0,
        time_limit=0.0,
        started_utc="2026-01-01T00:00:00.000000Z",
        seconds=1.5,
        figures=figures,
    )
    report.save(tmp_path / "report.json")
    assert GuardReport.load(tmp_path / "report.json") == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_report_refuses_what_is_no_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"reason": "bored", "exit_code": "0"}))
    with pytest.raises(RequestError, match="bored"):
        GuardReport.load(path)
