"""Starts a command in such a way that no part of it can outlive the guard.

    guard ── supervisor ── command ── …

The supervisor is a second small process that sleeps until the command or the guard ends:
- The guard dies, even by SIGKILL: the pipe between them closes, and the supervisor kills its descendants.
- The supervisor dies: the kernel kills the command (PR_SET_PDEATHSIG), its orphans become the guard's
  children, and the guard, which sees the other pipe close, kills them.
On Linux both are child subreapers (prctl(2), PR_SET_CHILD_SUBREAPER), so a process that daemonizes stays
their descendant. If guard and supervisor are killed at the same instant, the command itself is killed too,
but not its children. The supervisor has a session of its own, so a signal to the guard's process group or
terminal does not reach it. Without prctl (macOS) a process that daemonized cannot be found; the others are
found through their group and their parents.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from pipeline.guard.process_tree import LINUX, kill_tree

Prctl = Callable[[int, int], int]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLOSE_SECS = 10.0
"""How long to wait for the supervisor. A killed process can stay in the kernel for long: a dead disk, or
100 GB of memory to free.
"""
RELEASE = b"r"
OOM_SCORE_ADJ = "500"
"""If the machine runs out of memory, the kernel kills this before the guard, the shell or the terminal."""


class SupervisorKilledError(OSError):
    """The supervisor was killed before the command's process existed."""


@dataclass
class SupervisedCommand:
    """A command under its supervisor. Its process exists, but waits before exec until `release`."""

    supervisor_pid: int
    child_pid: int
    control: int
    """Write end of a pipe: one byte releases the command; closing it (or dying) ends everything."""
    status: int
    """Read end of a pipe: lines of `failed ERRNO` and `exit STATUS`; it closes when the supervisor ends."""
    _partial: bytes = field(default=b"", repr=False)

    def release(self) -> None:
        """Lets the command start. Does nothing if the supervisor has ended, which `messages` reports."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.control, RELEASE)

    def messages(self) -> list[list[str]]:
        """The supervisor's lines since the last call, as words; `[["lost"]]` if it has ended.

        Blocks if there is nothing yet.
        """
        data = os.read(self.status, 4096)
        if not data:
            return [["lost"]]
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [line.decode().split() for line in whole]

    def close(self) -> None:
        """Ends the supervisor and whatever is left of the tree, and waits up to `CLOSE_SECS` for that."""
        os.close(self.control)
        os.close(self.status)
        end = time.monotonic() + CLOSE_SECS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.supervisor_pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.001)


def start(command: Sequence[str]) -> SupervisedCommand:
    """Forks supervisor and command. On return the command's process waits for `SupervisedCommand.release`.

    Call it while this process has one thread, and before it installs signal handlers.

    Raises:
        SupervisorKilledError: if the supervisor was killed in the meantime; the kernel has then killed the
            command's process.
        OSError: if no process can be made.
    """
    prctl = _prctl()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    control_read, control_write = os.pipe()
    status_read, status_write = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.close(control_write)
        os.close(status_read)
        _run_and_exit(lambda: _run_supervisor(command, control_read, status_write, prctl))
    os.close(control_read)
    os.close(status_write)
    supervised = SupervisedCommand(supervisor, 0, control_write, status_read)
    words = supervised.messages()[0]
    if words[0] != "pid":
        ended = os.waitpid(supervisor, 0)[1]
        supervised.close()
        if os.WIFSIGNALED(ended):
            raise SupervisorKilledError(
                f"the guard's second process {supervisor} was ended by signal {os.WTERMSIG(ended)}"
            )
        raise OSError(f"the supervisor could not make a process for {command[0]}")
    supervised.child_pid = int(words[1])
    return supervised


def _run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Runs `work` in a forked process and exits: none of the parent's code may run after it."""
    try:
        work()
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(1)


def _prctl() -> Prctl:
    if not LINUX:
        return lambda option, value: 0
    function = ctypes.CDLL(None, use_errno=True).prctl
    function.argtypes = [ctypes.c_int, ctypes.c_ulong]
    return function


def _run_supervisor(command: Sequence[str], control: int, status: int, prctl: Prctl) -> None:
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    release_read, release_write = os.pipe()
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(release_write)
        os.close(control)
        _run_and_exit(lambda: _exec(command, release_read, status, prctl, own_pid))
    os.close(release_read)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the guard decides what they mean
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    os.write(status, f"pid {child}\n".encode())
    ended = False
    while True:
        ended = _reap(child, status) or ended
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        if control in ready:
            byte = os.read(control, 1)
            if not byte:
                break  # the guard has ended, or is done with the command
            os.write(release_write, byte)
    kill_tree(own_pid, group=0 if ended else child)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def _reap(child: int, status: int) -> bool:
    """Waits for all children that ended. If the command is one, reports it to the guard and returns True."""
    found = False
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = True
                os.write(status, f"exit {ended[1]}\n".encode())
    return found


def _exec(command: Sequence[str], release: int, status: int, prctl: Prctl, supervisor: int) -> None:
    """Becomes the command once it is released."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)  # it died before the line above took effect
    os.setpgid(0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, which exec would pass on
    if LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    if os.read(release, 1) != RELEASE:
        os._exit(1)  # the supervisor ended first
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(status, f"failed {error.errno}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
