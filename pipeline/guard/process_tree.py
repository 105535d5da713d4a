"""The descendants of a process: found cheaply at every poll, and killed all together.

On Linux the root of the tree is a child subreaper (see `pipeline.guard.supervisor`): the kernel makes it the
parent of every descendant that lost its own, so a process that daemonized is still found, whatever its
session or group. Elsewhere such a process can only be found while its parent lives.
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
"""Seconds after which a full scan corrects what the cheap look at new process ids missed."""
FULL_SCAN_SHARE = 0.002
"""Full scans are spaced so that they take at most this share of the time."""


def read_small(path: str) -> bytes:
    """The first 4096 bytes of a /proc file; about three times cheaper than a file object.

    Raises:
        OSError: if it does not exist, as when the process has ended.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.read(handle, 4096)
    finally:
        os.close(handle)


def parent_of(pid: int) -> int | None:
    """The parent of a living process; None if that has ended or is a zombie (Linux)."""
    try:
        text = read_small(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name in parentheses may hold anything, so fields are counted from its end: state, parent.
    state, parent = text[text.rindex(b")") + 2 :].split(None, 2)[:2]
    return None if state in (b"Z", b"X") else int(parent)


def parents() -> dict[int, int]:
    """Process id → parent id of every visible process but zombies."""
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


def descendants(root: int, exclude: Iterable[int] = ()) -> set[int]:
    """All living descendants of `root` but those in `exclude`, whose own descendants are included."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = [root]
    while pending:
        new = [pid for pid in children.get(pending.pop(), ()) if pid not in found]
        found.update(new)
        pending += new
    return found.difference(exclude, (root,))


class ProcessTree:
    """The living descendants of a root, kept up to date at the cost of one small read per poll.

    Linux assigns process ids in ascending order and shows the last one (last field of /proc/loadavg), so only
    the ids since the previous poll can be new descendants. A full scan corrects the rest now and then, and at
    every poll where that file is missing.

    Args:
        root: not part of the tree itself.
        exclude: descendants that are not part of the tree, though their own descendants are.
    """

    def __init__(self, root: int, exclude: Iterable[int] = ()) -> None:
        self._root = root
        self._exclude = frozenset(exclude)
        self._last_id: int | None = None
        self._retry: list[int] = []
        self._next_full = 0.0
        self.known: set[int] = set()
        self.rescan()

    def rescan(self) -> set[int]:
        """The members by a full scan."""
        begin = time.monotonic()
        self._last_id = last_process_id()
        self._retry = []
        self.known = descendants(self._root, self._exclude)
        now = time.monotonic()
        self._next_full = now + max(FULL_SCAN_SECS if self._last_id else 0.0, (now - begin) / FULL_SCAN_SHARE)
        return self.known

    def pids(self) -> set[int]:
        """The members now, as a set that the next call changes."""
        newest, before = last_process_id(), self._last_id
        if time.monotonic() >= self._next_full or (
            newest is not None and before is not None and newest < before
        ):
            return self.rescan()  # due, or the ids started again from the smallest
        if newest is not None and before is not None and (newest > before or self._retry):
            self._check_ids([*self._retry, *range(before + 1, newest + 1)])
            self._last_id = newest
        return self.known

    def _check_ids(self, ids: list[int]) -> None:
        retried, self._retry = set(self._retry), []
        for pid in ids:
            parent = parent_of(pid)
            if parent is None:
                self.known.discard(pid)
                if pid not in retried:
                    self._retry.append(pid)  # an id is assigned a moment before its process is visible
            elif (parent == self._root or parent in self.known or parent in self._exclude) and _is_process(
                pid
            ):
                if pid not in self._exclude:
                    self.known.add(pid)
            else:
                self.known.discard(pid)


def last_process_id() -> int | None:
    """The id assigned last in this process's namespace, threads included; None where the system hides it."""
    if not LINUX:
        return None
    try:
        return int(read_small("/proc/loadavg").split()[4]) or None
    except (OSError, IndexError, ValueError):
        return None


def _is_process(pid: int) -> bool:
    """Whether the id is not that of a thread. Counting a thread would count its process's memory twice."""
    try:
        return f"\nTgid:\t{pid}\n".encode() in read_small(f"/proc/{pid}/status")
    except OSError:
        return False


def kill_tree(root: int, exclude: Iterable[int] = (), known: Iterable[int] = (), group: int = 0) -> set[int]:
    """Sends SIGKILL to every descendant of `root` until a scan finds no further one.

    A process that was sent SIGKILL cannot fork any more, so this ends. It does not wait until the processes
    have ended: one with much memory takes a while.

    Args:
        root: the process whose descendants are killed; it is not killed itself.
        exclude: descendants that are not killed.
        known: members found a moment ago, killed first, before any scan.
        group: a process group to kill first; 0: none.

    Returns:
        The processes that were sent SIGKILL.
    """
    killed: set[int] = set()
    if group:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    new = set(known).difference(exclude)
    while True:
        for pid in new:
            send(pid, signal.SIGKILL)
        killed |= new
        new = descendants(root, exclude) - killed
        if not new:
            return killed


def send(pid: int, number: int) -> bool:
    """Sends a signal; False if the process has ended or belongs to another user."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
