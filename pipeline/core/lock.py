"""One run at a time on an artifacts folder: a lock that dies with its owner, and who a process is beyond its
number.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

LOCK_NAME = ".lock"
POLL_SECS = 0.2


class LockHeldError(RuntimeError):
    """Another process works on the same artifacts folder. `pid` is 0 if its note could not be read."""

    def __init__(self, path: Path, pid: int, command: str, since: str) -> None:
        self.pid = pid
        self.command = command
        owner = f"process {pid} ({command or 'command unknown'}, since {since})" if pid else "another process"
        super().__init__(
            f"{path}: {owner} works on this artifacts folder: wait for it to end, end it with `kill {pid or 'PID'}`, "
            "or let this run wait for it"
        )


def process_identity(pid: int) -> str:
    """What tells this process from any other that ever had its number; empty if there is no such living
    process.

    On Linux: boot id, process id namespace and start time in clock ticks, none of which a change of the clock
        moves.
    Elsewhere: the creation time. A zombie does not live.
    """
    proc = Path("/proc") / str(pid)
    try:
        # Fields after the name, which is in parentheses and may hold anything: state is the first, start time
        # the 20th.
        fields = (proc / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return "" if fields[0] in "ZX" else f"{boot}/{Path('/proc/self/ns/pid').readlink()}/{fields[19]}"
    except OSError:
        if Path("/proc/self/stat").exists():
            return ""
    import psutil

    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
    except psutil.Error:
        return ""


def is_alive(pid: int, identity: str) -> bool:
    """Whether the process that had this number and identity still lives. A new process with an old number is
    another one.
    """
    return bool(identity) and process_identity(pid) == identity


class FolderLock:
    """An advisory `flock` on a file in the folder. The kernel drops it when its owner ends, however it ends.

    The file itself stays: deleting it would let two owners lock two files of the same name.
    """

    def __init__(self, folder: Path, command: str, wait_secs: float = 0.0, name: str = LOCK_NAME) -> None:
        """Names the lock; `acquire` or `with` takes it.

        Args:
            folder: must exist.
            command: what the owner does, for the message to others.
            wait_secs: how long to wait for another owner; 0 refuses at once, `math.inf` waits for ever.
            name: of the lock file.
        """
        self._path = folder / name
        self._command = command
        self._wait_secs = wait_secs
        self._handle = -1

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            LockHeldError: naming the owner, if it was not given up in time.
            OSError: if the lock file cannot be opened for writing.
        """
        deadline = time.monotonic() + self._wait_secs
        while not self._try():
            if time.monotonic() >= deadline:
                raise self._refusal()
            time.sleep(POLL_SECS)
        note = {
            "pid": os.getpid(),
            "command": self._command,
            "since": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(note, ensure_ascii=False).encode(), 0)

    def release(self) -> None:
        """Gives the lock up. Without effect if it is not held."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> FolderLock:
        """Takes the lock, as `acquire` does."""
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the lock up."""
        self.release()

    def _try(self) -> bool:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Someone may have deleted the file between open and lock: then this locks a file that nobody else
            # will see.
            if os.path.samestat(os.fstat(handle), self._path.stat()):
                self._handle = handle
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(handle)
        return False

    def _refusal(self) -> LockHeldError:
        try:
            note = json.loads(self._path.read_text(encoding="utf-8"))
            return LockHeldError(self._path, int(note["pid"]), str(note["command"]), str(note["since"]))
        except (OSError, ValueError, KeyError, TypeError):  # the owner is about to write it, or to leave
            return LockHeldError(self._path, 0, "", "")
