"""Shared by the guard's tests: a running guard, processes that sign in to a folder, a fake `nvidia-smi`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.guard.report import GuardReport

ROOT = Path(__file__).resolve().parents[3]
LIMIT_GB = 0.15
TOO_MUCH = "data = bytearray(b'1') * (400 << 20)"
GUARD = [sys.executable, "-m", "pipeline.guard", "--reader", "resident", "--gpu-limit-gb", str(LIMIT_GB)]


def python(code: str, *arguments: object) -> list[str]:
    """A command that runs `code`, with the imports that most of these need."""
    head = "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
    return [sys.executable, "-I", "-S", "-c", head + textwrap.dedent(code), *map(str, arguments)]


class Guarded:
    """A guard that a test started, with the files it writes."""

    def __init__(self, folder: Path, command: list[str], *options: str, **popen: object) -> None:
        self.report_path, self.trace_path = folder / "report.json", folder / "trace.csv"
        files = ["--report", str(self.report_path), "--trace", str(self.trace_path)]
        self.process = subprocess.Popen(
            [*GUARD, "--gpu-poll-secs", "0.01", *files, *options, "--", *command],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **popen,  # type: ignore[call-overload]
        )

    def end(self, seconds: float = 20.0) -> tuple[int, GuardReport, str]:
        """(exit code, report, stderr) once it has ended."""
        try:
            _, said = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, GuardReport.load(self.report_path), said


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_in(folder: Path, count: int) -> list[int]:
    """The ids that `count` processes wrote as names `<id>.pid`, once they are all there."""
    wait_for(lambda: len(list(folder.glob("*.pid"))) >= count, f"{count} processes in {folder}")
    return [int(path.stem) for path in folder.glob("*.pid")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for `<id>.pid` files; whatever named itself there and still lives after the test is killed."""
    place = tmp_path / "pids"
    place.mkdir()
    yield place
    for path in place.glob("*.pid"):
        if alive(int(path.stem)):
            os.kill(int(path.stem), signal.SIGKILL)


SIGN_IN = "Path(sys.argv[1], f'{os.getpid()}.pid').touch()\n"
FAKE_SMI = """#!/bin/sh
# Ends with an error once the file `broken` exists. The figure of memory follows the file `mib`.
[ -e "{folder}/broken" ] && exit 9
case "$1" in
*compute-apps*)
    for p in "{folder}"/*.pid; do
        [ -e "$p" ] && echo "$(basename "$p" .pid), $(cat "{folder}/mib")"
    done ;;
*) echo "[N/A]" ;;
esac
exit 0
"""


def fake_smi(folder: Path, mib: int) -> dict[str, str]:
    """An environment whose `nvidia-smi` lists the processes that signed in, as on unified memory."""
    (folder / "bin").mkdir()
    (folder / "bin" / "nvidia-smi").write_text(FAKE_SMI.format(folder=folder))
    (folder / "bin" / "nvidia-smi").chmod(0o755)
    (folder / "mib").write_text(str(mib))
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


POLITE = """
def stop(number, frame):
    time.sleep(0.2)
    print('asked', number, flush=True)
    sys.exit(130)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
"""


def supervisor_of(guard: int) -> int:
    (pid,) = [int(pid) for pid in Path(f"/proc/{guard}/task/{guard}/children").read_text().split()]
    return pid
