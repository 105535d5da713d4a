"""Messages on the console: they arrive, or are dropped without an error and without a delay."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.guard.report import GuardReport, Reason
from tests.pipeline.guard.guarded import GUARD, ROOT, TOO_MUCH, python

PRINT = [
    sys.executable,
    "-c",
    "from pipeline.guard.console import print_line; print_line('中文 ' + 'x' * 9000)",
]


def test_a_line_is_cut_to_what_is_written_in_one_piece() -> None:
    shown = subprocess.run(PRINT, cwd=ROOT, stderr=subprocess.PIPE, check=True).stderr
    assert shown.startswith("guard: 中文 xxx".encode()) and len(shown) == select.PIPE_BUF


def test_a_closed_terminal_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    assert subprocess.run(PRINT, cwd=ROOT, stderr=write_end, check=False).returncode == 0
    os.close(write_end)


@pytest.mark.fault("a terminal that does not read", how="a full pipe as stderr, then memory over the limit")
def test_a_terminal_that_does_not_read_does_not_stop_the_guard(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 4096)
    os.set_blocking(write_end, True)
    command = [
        *GUARD,
        "--report",
        str(tmp_path / "report.json"),
        "--",
        *python(f"{TOO_MUCH}; time.sleep(60)"),
    ]
    done = subprocess.run(command, cwd=ROOT, stderr=write_end, timeout=20, check=False)
    os.close(read_end)
    os.close(write_end)
    assert done.returncode == 124 and GuardReport.load(tmp_path / "report.json").reason is Reason.MEMORY
