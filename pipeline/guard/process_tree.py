"""A process and all its descendants: who they are, cheaply and at every poll, and an end to all of them.

On Linux the root of the tree is a child subreaper (see `pipeline.guard.supervisor`): a process that loses its
parent, by a double fork or otherwise, is given to the root, so "descendant of the root" finds it whatever
session or group it moved to. Elsewhere such a process can only be found while its parent lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

LINUX = sys.platform.startswith("linux")
FULL_SCAN_SECS = 2.0
"""A full scan this often corrects whatever the cheap one missed."""
FULL_SCAN_SHARE = 0.002
"""Full scans are spaced so that they take at most this share of the time."""


def read_small(path: str) -> bytes:
    """The first 4096 bytes of a /proc file; about three times cheaper than a file object.

    Raises:
        OSError: if it is not there (the process ended).
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.read(handle, 4096)
    finally:
        os.close(handle)


def parent_of(pid: int) -> int | None:
    """The parent of a living process; None if it is gone or a zombie (Linux)."""
    try:
        text = read_small(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name in parentheses may hold anything, so fields are counted from its end: state, parent.
    state, parent = text[text.rindex(b")") + 2 :].split(None, 2)[:2]
    return None if state in (b"Z", b"X") else int(parent)


def parents() -> dict[int, int]:
    """Process id → parent id of every living process that can be seen; zombies are left out."""
    if LINUX:
        with os.scandir("/proc") as entries:
            ids = [int(entry.name) for entry in entries if entry.name.isdigit()]
        return {pid: parent for pid in ids if (parent := parent_of(pid)) is not None}
    import psutil

    table = {}
    for process in psutil.process_iter(["ppid", "status"]):
        if process.info["status"] != psutil.STATUS_ZOMBIE:
            table[process.pid] = process.info["ppid"]
    return table


def descendants(root: int, spare: Iterable[int] = ()) -> set[int]:
    """All living descendants of `root`. Those in `spare` are not named, but their own descendants are."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    ahead = [root]
    while ahead:
        new = [pid for pid in children.get(ahead.pop(), ()) if pid not in found]
        found.update(new)
        ahead += new
    return found.difference(spare, (root,))


class ProcessTree:
    """The living descendants of a root, kept up to date at the price of one small read a poll.

    Linux says which process id was given out last (/proc/loadavg, last field) and gives them out in order, so
    only ids since the poll before can be new descendants. A full scan now and then corrects the rest; it is
    the only way where that file does not help.
    """

    def __init__(self, root: int, spare: Iterable[int] = ()) -> None:
        self._root = root
        self._spare = frozenset(spare)
        self._last_id: int | None = None
        self._retry: list[int] = []
        self._next_full = 0.0
        self.known: set[int] = set()
        self.rescan()

    def rescan(self) -> set[int]:
        """A full scan: exact at this moment."""
        begin = time.monotonic()
        self._last_id = last_process_id()
        self._retry = []
        self.known = descendants(self._root, self._spare)
        now = time.monotonic()
        self._next_full = now + max(FULL_SCAN_SECS if self._last_id else 0.0, (now - begin) / FULL_SCAN_SHARE)
        return self.known

    def pids(self) -> set[int]:
        """The members now, as a live set that the next call changes."""
        newest, before = last_process_id(), self._last_id
        if time.monotonic() >= self._next_full or (
            newest is not None and before is not None and newest < before
        ):
            return self.rescan()  # due, or ids began anew from the smallest
        if newest is not None and before is not None and (newest > before or self._retry):
            self._look_at([*self._retry, *range(before + 1, newest + 1)])
            self._last_id = newest
        return self.known

    def _look_at(self, ids: list[int]) -> None:
        retried, self._retry = set(self._retry), []
        for pid in ids:
            parent = parent_of(pid)
            if parent is None:
                self.known.discard(pid)
                if pid not in retried:
                    self._retry.append(pid)  # an id is given out a moment before its process can be seen
            elif (parent == self._root or parent in self.known or parent in self._spare) and _is_process(pid):
                if pid not in self._spare:
                    self.known.add(pid)
            else:
                self.known.discard(pid)


def last_process_id() -> int | None:
    """The id given out last in this process's namespace, threads included; None where the system does not
    say.
    """
    if not LINUX:
        return None
    try:
        return int(read_small("/proc/loadavg").split()[4]) or None
    except (OSError, IndexError, ValueError):
        return None


def _is_process(pid: int) -> bool:
    """Threads have ids and a /proc entry too, with their process's parent: counting one would count its
    memory twice.
    """
    try:
        return f"\nTgid:\t{pid}\n".encode() in read_small(f"/proc/{pid}/status")
    except OSError:
        return False


def kill_tree(root: int, spare: Iterable[int] = (), known: Iterable[int] = (), group: int = 0) -> set[int]:
    """SIGKILL to every descendant of `root`, until a scan finds none that was not sent it.

    A process that was sent SIGKILL cannot fork any more, so this ends. It does not wait for the processes to
    be gone: one with much memory takes a while.

    Args:
        root: the process whose descendants are killed; itself it is not.
        spare: descendants that live on.
        known: members found a moment ago, killed first, before any scan.
        group: a process group to kill first; 0: none.

    Returns:
        The processes that were sent SIGKILL.
    """
    killed: set[int] = set()
    if group:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    new = set(known).difference(spare)
    while True:
        for pid in new:
            send(pid, signal.SIGKILL)
        killed |= new
        new = descendants(root, spare) - killed
        if not new:
            return killed


def send(pid: int, number: int) -> bool:
    """Sends a signal; False if the process is gone or not ours."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
