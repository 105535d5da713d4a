"""Nothing outlives its guard: daemons, deaf children, killed guards and supervisors, orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pipeline.core.guard_limits import GuardLimits, ReaderKind
from pipeline.guard.report import GuardReport, Reason
from stages.contract.serial import RequestError
from tests.pipeline.guard.guarded import (
    LIMIT_GB,
    ROOT,
    SIGN_IN,
    Guarded,
    alive,
    folder,
    pids_in,
    python,
    supervisor_of,
    wait_for,
)

__all__ = ["folder"]

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, DEAF)
    Path(sys.argv[1], f'{os.getpid()}.pid').touch()
    os.close(1); os.close(2)
    time.sleep(60)
while not list(Path(sys.argv[1]).glob('*.pid')):
    time.sleep(0.01)
"""


@pytest.mark.fault("a daemon outlives its command", how="double fork and setsid; it hears SIGTERM, or not")
@pytest.mark.parametrize(("deaf", "leftovers"), [("signal.SIG_DFL", 0), ("signal.SIG_IGN", 1)])
def test_nothing_outlives_a_command_that_ended(
    tmp_path: Path, folder: Path, deaf: str, leftovers: int
) -> None:
    guarded = Guarded(tmp_path, python(DAEMON.replace("DEAF", deaf) + "sys.exit(3)", folder))
    exit_code, report, _ = guarded.end()
    assert exit_code == 3 and report.reason is Reason.ENDED and report.figures.leftovers == leftovers
    assert not [pid for pid in pids_in(folder, 1) if alive(pid)]


FAMILY = (
    SIGN_IN
    + """
[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]
for kind in 'plain', 'session', 'daemon':
    if os.fork() == 0:
        if kind != 'plain':
            os.setsid()
        if kind == 'daemon' and os.fork():
            os._exit(0)
        Path(sys.argv[1], f'{os.getpid()}.pid').touch()
        time.sleep(60)
        os._exit(0)
time.sleep(60)
"""
)


@pytest.mark.fault("the guard is killed", how="SIGKILL; child, new session and daemon below it, all deaf")
def test_nothing_survives_a_guard_that_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    family = pids_in(folder, 4)
    supervisor = supervisor_of(guarded.process.pid)
    guarded.process.kill()
    guarded.process.wait(timeout=5)
    wait_for(lambda: not any(map(alive, [*family, supervisor])), "all dead", seconds=2)
    with pytest.raises(RequestError, match="no such file"):
        GuardReport.load(guarded.report_path)


@pytest.mark.fault("the guard is killed at any moment of its start", how="SIGKILL at 20 moments", trials=20)
def test_nothing_survives_a_guard_killed_at_any_moment(tmp_path: Path, folder: Path) -> None:
    """Twenty moments from before the fork of the supervisor until about when the family is complete."""

    def survivors() -> list[int]:
        named = (
            path
            for path in Path("/proc").glob("[0-9]*")
            if os.fsencode(folder) in read_or_nothing(path / "cmdline")
        )
        return [int(path.name) for path in named if alive(int(path.name))]

    began = time.monotonic()
    family = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    wait_for(lambda: len(list(folder.glob("*.pid"))) >= 4, "a whole family", seconds=20)
    whole = time.monotonic() - began  # of this machine, as busy as it is now
    family.process.kill()
    family.process.wait(timeout=5)
    for trial in range(20):
        guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
        time.sleep(whole * trial / 19)
        guarded.process.kill()
        guarded.process.wait(timeout=5)
        wait_for(lambda: not survivors(), f"all dead, killed after {whole * trial / 19:.3f} s", seconds=5)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.fault("the guard's process group is killed", how="SIGKILL to the group")
def test_nothing_survives_a_guard_whose_group_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder), start_new_session=True)
    family = pids_in(folder, 4)
    os.killpg(guarded.process.pid, signal.SIGKILL)
    guarded.process.wait(timeout=5)
    wait_for(lambda: not any(map(alive, family)), "all dead", seconds=2)


@pytest.mark.fault("the process that started the guard is killed", how="SIGKILL to the runner")
def test_the_guard_ends_with_the_process_that_started_it(tmp_path: Path, folder: Path) -> None:
    """As a runner does it: `guard_command`, then the runner is killed."""
    report, trace = tmp_path / "report.json", tmp_path / "trace.csv"
    limits = GuardLimits(gpu_limit_gb=LIMIT_GB, gpu_poll_secs=0.01, reader=ReaderKind.RESIDENT)
    code = f"""
        import os, subprocess, sys
        from pathlib import Path
        from pipeline.core.guard_limits import GuardLimits
        from pipeline.guard.options import child_options, guard_command
        from pipeline.guard.memory_readers import ReaderKind
        options = child_options(Path({str(trace)!r}), Path({str(report)!r}))
        command = guard_command({limits!r}, {python(SIGN_IN + "time.sleep(60)", folder)!r}, *options)
        subprocess.run(command, start_new_session=True)
        """.replace("<ReaderKind.RESIDENT: 'resident'>", "ReaderKind.RESIDENT")
    runner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    (child,) = pids_in(folder, 1)
    runner.kill()
    runner.wait(timeout=5)
    wait_for(report.exists, "the report")
    wait_for(lambda: not alive(child), "the command dead")
    assert GuardReport.load(report).reason is Reason.PARENT_GONE


@pytest.mark.fault("the guard's parent is gone before it starts", how="another parent than --parent-pid")
def test_a_guard_that_is_orphaned_before_it_starts_starts_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    guarded = Guarded(tmp_path, ["touch", str(mark)], "--parent-pid", "1")
    _, said = guarded.process.communicate(timeout=20)
    assert guarded.process.returncode == 130 and not mark.exists() and "gone already" in said
