"""The supervisor: it holds the command until release, reports its end, and no command outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.guard.report import Reason
from tests.pipeline.guard.guarded import (
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
from tests.pipeline.guard.test_guard_survivors import FAMILY

__all__ = ["folder"]

HOLDS = """
import sys, time
from pathlib import Path
from pipeline.guard import supervisor
mark, released = Path(sys.argv[1]), sys.argv[2] == "released"
supervised = supervisor.start(["sh", "-c", 'touch "$0"; exit 3', str(mark)])
assert Path(f"/proc/{supervised.child_pid}").exists()
time.sleep(0.1)
assert not mark.exists()
if released:
    supervised.release()
    print(supervised.messages())
supervised.close()
assert not Path(f"/proc/{supervised.child_pid}").exists()
"""


@pytest.mark.parametrize("released", [True, False])
def test_a_command_waits_until_it_is_released(tmp_path: Path, released: bool) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path / "mark"), "released" if released else "closed"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("[['exit', '768']]\n" if released else "")
    assert (tmp_path / "mark").exists() == released


@pytest.mark.fault("the guard's second process is killed", how="SIGKILL to the supervisor")
def test_nothing_survives_a_supervisor_that_was_killed(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(FAMILY, folder))
    family = pids_in(folder, 4)
    os.kill(supervisor_of(guarded.process.pid), signal.SIGKILL)
    exit_code, report, said = guarded.end()
    assert exit_code == 137 and report.reason is Reason.SUPERVISOR_LOST and report.killed
    assert "was ended by someone" in said
    assert not any(map(alive, family))


@pytest.mark.fault(
    "guard and second process are killed together", how="SIGSTOP to the supervisor, SIGKILL to both"
)
def test_the_command_dies_with_guard_and_supervisor(tmp_path: Path, folder: Path) -> None:
    guarded = Guarded(tmp_path, python(SIGN_IN + "time.sleep(60)", folder))
    (child,) = pids_in(folder, 1)
    supervisor = supervisor_of(guarded.process.pid)
    os.kill(supervisor, signal.SIGSTOP)  # so that it cannot act on the guard's death
    guarded.process.kill()
    os.kill(supervisor, signal.SIGKILL)
    guarded.process.wait(timeout=5)
    wait_for(lambda: not alive(child), "the command dead", seconds=2)


KILLS_ITS_SUPERVISOR = """
import os, signal, sys
from pipeline.guard import __main__ as guard, supervisor
early = sys.argv[1] == "early"
if early:
    fork = os.fork
    def deadly():
        pid = fork()
        if pid: os.kill(pid, signal.SIGKILL)
        return pid
    os.fork = deadly
start = supervisor.start
def started(command):
    supervised = start(command)
    os.kill(supervised.supervisor_pid, signal.SIGKILL)
    while open(f"/proc/{supervised.supervisor_pid}/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    return supervised
supervisor.start = start if early else started
sys.exit(guard.main(["--gpu-limit-gb", "4", "--reader", "resident", "--", "touch", sys.argv[2]]))
"""


@pytest.mark.fault(
    "the supervisor is killed before the command starts",
    how="SIGKILL right after its fork, and before the command is released",
)
@pytest.mark.parametrize("moment", ["early", "before the command is released"])
def test_a_supervisor_killed_before_the_command_starts_is_reported_as_killed(
    tmp_path: Path, moment: str
) -> None:
    mark = tmp_path / "started"
    done = subprocess.run(
        [sys.executable, "-c", KILLS_ITS_SUPERVISOR, moment, str(mark)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "Traceback" not in done.stderr
    assert "second process" in done.stderr
    assert not mark.exists()
