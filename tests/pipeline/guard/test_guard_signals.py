"""Asking the guard to end: once politely, twice at once; time limits."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from pipeline.guard.report import GuardReport, Reason
from tests.pipeline.guard.guarded import (
    POLITE,
    SIGN_IN,
    Guarded,
    alive,
    folder,
    pids_in,
    python,
)

__all__ = ["folder"]


@pytest.mark.fault("a signal to the guard", how="SIGINT, SIGTERM, SIGHUP once")
@pytest.mark.parametrize(
    ("sent", "seen"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)],
)
def test_one_signal_lets_the_command_finish(tmp_path: Path, folder: Path, sent: int, seen: int) -> None:
    guarded = Guarded(tmp_path, python(POLITE + SIGN_IN + "time.sleep(60)", folder))
    pids_in(folder, 1)
    guarded.process.send_signal(sent)
    out, _ = guarded.process.communicate(timeout=20)
    report = GuardReport.load(guarded.report_path)
    assert out == f"asked {int(seen)}\n" and guarded.process.returncode == 130
    assert report.reason is Reason.INTERRUPTED and not report.killed and report.child_exit_code == 130


@pytest.mark.fault("two signals to the guard of a deaf command", how="SIGINT twice")
def test_a_second_signal_kills_at_once(tmp_path: Path, folder: Path) -> None:
    code = "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n" + SIGN_IN + "time.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder))
    (pid,) = pids_in(folder, 1)
    guarded.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert alive(pid) and guarded.process.poll() is None
    guarded.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    exit_code, report, _ = guarded.end()
    assert time.monotonic() - began < 2 and not alive(pid)
    assert exit_code == 130 and report.killed and report.child_exit_code == 137


@pytest.mark.fault("a command that ignores SIGTERM", how="a time limit, then the grace")
def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, folder: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SIGN_IN + "os.fork(); time.sleep(60)"
    guarded = Guarded(tmp_path, python(code, folder), "--time-limit", "0.3", "--grace-secs", "0.3")
    exit_code, report, _ = guarded.end()
    assert exit_code == 124 and report.reason is Reason.TIME and report.killed
    assert 0.6 <= report.seconds < 5


@pytest.mark.fault("a command past its time limit", how="a sleep of 60 s, limit 0.4 s")
def test_time_limit_is_polite_first(tmp_path: Path) -> None:
    exit_code, report, _ = Guarded(tmp_path, python(POLITE + "time.sleep(60)"), "--time-limit", "0.4").end()
    assert exit_code == 124 and report.reason is Reason.TIME
    assert not report.killed and report.child_exit_code == 130
