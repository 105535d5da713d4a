"""The lock of a folder: it names its owner, ends with it, and can be waited for."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core.lock import LOCK_NAME, FolderLock, LockHeldError

PROJECT = Path(__file__).parents[3]
HOLDS = """
import sys; from pathlib import Path; from pipeline.core.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "make run"):
    print("held", flush=True); sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input is closed."""
    line = [sys.executable, "-c", HOLDS, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=PROJECT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.fault("the owner of the lock is killed", how="SIGKILL")
def test_lock_names_its_owner_and_dies_with_it(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    with pytest.raises(LockHeldError, match=rf"process {owner.pid} \(make run, since ") as refused:
        FolderLock(tmp_path, "second").acquire()
    assert refused.value.pid == owner.pid
    owner.kill()
    owner.wait()
    with FolderLock(tmp_path, "third"), pytest.raises(LockHeldError, match="third"):
        FolderLock(tmp_path, "fourth").acquire()


def test_lock_waits_if_asked_to(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
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
    deletions = [tmp_path / LOCK_NAME]

    def flock_too_late(handle: int, how: int) -> None:
        if deletions:
            deletions.pop().unlink()
        whole(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    with FolderLock(tmp_path, "first", wait_secs=5), pytest.raises(LockHeldError, match="first"):
        FolderLock(tmp_path, "second").acquire()


@pytest.mark.parametrize("note", ["", "{half", "[]", json.dumps({"pid": 3})])
def test_an_owner_whose_note_cannot_be_read_is_another_process(tmp_path: Path, note: str) -> None:
    with FolderLock(tmp_path, "first"):
        (tmp_path / f"{LOCK_NAME}.owner.json").write_text(note, encoding="utf-8")
        with pytest.raises(LockHeldError, match="another process works on this artifacts folder") as refused:
            FolderLock(tmp_path, "second").acquire()
    assert refused.value.pid == 0


def test_a_released_lock_leaves_no_note_and_other_names_are_other_locks(tmp_path: Path) -> None:
    with FolderLock(tmp_path, "first"), FolderLock(tmp_path, "other", name=".other"):
        assert len(list(tmp_path.glob("*.owner.json"))) == 2
    assert not list(tmp_path.glob("*.owner.json"))
    FolderLock(tmp_path, "never held").release()
