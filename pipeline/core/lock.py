"""One process at a time on a folder: a file lock that ends with its owner, and a note of who holds it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import filelock

from stages.contract.clock import utc_now

LOCK_NAME = ".lock"


class LockHeldError(RuntimeError):
    """Another process holds the lock. `pid` is 0 if its note cannot be read."""

    def __init__(self, path: Path, pid: int, command: str, since: str) -> None:
        self.pid = pid
        self.command = command
        owner = f"process {pid} ({command or 'command unknown'}, since {since})" if pid else "another process"
        super().__init__(
            f"{path}: {owner} works on this artifacts folder: wait for it to end, end it with "
            f"`kill {pid or 'PID'}`, or let this run wait for it"
        )


class FolderLock:
    """`filelock` on a file in the folder, with a note of the owner beside it for whoever is refused.

    The kernel releases the lock when its owner ends, however it ends; a note that is left over means nothing.
    """

    def __init__(self, folder: Path, command: str, wait_secs: float = 0.0, name: str = LOCK_NAME) -> None:
        """Does not take the lock; `acquire` and `with` do.

        Args:
            folder: must exist.
            command: what the owner does; others read it when they are refused.
            wait_secs: how long to wait for the lock; 0: not at all.
            name: of the lock file.
        """
        self._path = folder / name
        self._note = folder / f"{name}.owner.json"
        self._command = command
        # On file systems without locks the soft lock would be used instead, which outlives its owner.
        self._lock = filelock.FileLock(self._path, timeout=wait_secs, fallback_to_soft=False)

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            LockHeldError: naming the owner, if it was not released in time.
            OSError: if the lock file cannot be opened for writing.
        """
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise self._refusal() from None
        note = {"pid": os.getpid(), "command": self._command, "since": utc_now()[:19] + "Z"}
        self._note.write_text(json.dumps(note, ensure_ascii=False), encoding="utf-8")

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._lock.is_locked:
            self._note.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> FolderLock:
        """Takes the lock as `acquire` does."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the lock."""
        self.release()

    def _refusal(self) -> LockHeldError:
        try:
            note = json.loads(self._note.read_text(encoding="utf-8"))
            return LockHeldError(self._path, int(note["pid"]), str(note["command"]), str(note["since"]))
        except (OSError, ValueError, KeyError, TypeError):  # the owner is about to write it, or to leave
            return LockHeldError(self._path, 0, "", "")
