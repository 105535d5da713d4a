"""The lock on a folder: one owner at a time, gone with its owner."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.core.lock import FolderLock, LockHeldError

PROJECT = Path(__file__).parents[3]


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Python code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


HOLDS = """
import sys; from pathlib import Path; from pipeline.core.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "make run"):
    print("held", flush=True); sys.stdin.read()
"""


@pytest.mark.fault("the owner of the lock is killed", how="SIGKILL")
def test_lock_names_its_owner_and_dies_with_it(tmp_path: Path) -> None:
    owner = script(HOLDS, str(tmp_path))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError, match=rf"process {owner.pid} \(make run, since ") as refused:
        FolderLock(tmp_path, "second").acquire()
    assert refused.value.pid == owner.pid
    owner.kill()
    owner.wait()
    with FolderLock(tmp_path, "third"), pytest.raises(LockHeldError, match="third"):
        FolderLock(tmp_path, "fourth").acquire()


def test_lock_waits_if_asked_to(tmp_path: Path) -> None:
    owner = script(HOLDS, str(tmp_path))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "held\n"
    began = time.monotonic()
    with pytest.raises(LockHeldError):
        FolderLock(tmp_path, "patient", wait_secs=0.3).acquire()
    assert time.monotonic() - began >= 0.3
    assert owner.stdin is not None
    owner.stdin.close()
    with FolderLock(tmp_path, "patient", wait_secs=10):
        assert owner.wait() == 0


@pytest.mark.fault("the lock file is deleted by hand", how="between its opening and its locking")
def test_lock_on_a_file_deleted_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fcntl.flock
    deletions = [tmp_path / ".lock"]

    def flock_too_late(handle: int, how: int) -> None:
        if deletions:
            deletions.pop().unlink()
        whole(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with FolderLock(tmp_path, "first", wait_secs=5), pytest.raises(LockHeldError, match="first"):
        FolderLock(tmp_path, "second").acquire()
