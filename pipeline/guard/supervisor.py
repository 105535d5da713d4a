"""Starts a command so that no part of it can outlive the guard.

    guard ── supervisor ── command ── …

The supervisor is a second small process that sleeps until the command ends or the guard does:
- The guard dies, by SIGKILL even: the pipe between them closes, and the supervisor kills all its descendants.
- The supervisor dies: the kernel kills the command (PR_SET_PDEATHSIG), its orphans become the guard's children,
  and the guard, which sees the other pipe close, kills them.
Both are child subreapers on Linux (prctl(2), PR_SET_CHILD_SUBREAPER), so a process that daemonizes stays
their descendant. Who kills guard and supervisor in the same instant still ends the command itself, but not its
children. The supervisor is in a session of its own, so a signal to the guard's process group or terminal does not
reach it. Without prctl (macOS) a process that daemonized is out of reach; the rest is found through its group
and its parents.
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
"""A killed process can stay in the kernel for long (a dead disk, 100 GB to give back); the guard does not
wait for ever.
"""
OOM_SCORE_ADJ = "500"
"""If the machine does run out of memory, the kernel takes the command before the guard, the shell or the
terminal.
"""


class SupervisorKilledError(OSError):
    """The supervisor was killed before the command's process was there."""


@dataclass
class SupervisedCommand:
    """A command held by its supervisor, before and after it was let go."""

    supervisor_pid: int
    child_pid: int
    control: int
    """Write end: one byte lets the command start, closing it (or dying) ends everything."""
    status: int
    """Read end: lines of `failed ERRNO` and `exit STATUS`; its end means that the supervisor is gone."""
    _partial: bytes = field(default=b"", repr=False)

    def go(self) -> None:
        """Lets the command start. Until now its process waits before exec. That the supervisor is gone is for
        `lines` to tell.
        """
        with contextlib.suppress(BrokenPipeError):
            os.write(self.control, b"g")

    def lines(self) -> list[list[str]]:
        """What the supervisor wrote since the last call, as words; `[["lost"]]` if it is gone. Blocks if there is
        nothing yet.
        """
        data = os.read(self.status, 4096)
        if not data:
            return [["lost"]]
        *whole, self._partial = (self._partial + data).split(b"\n")
        return [line.decode().split() for line in whole]

    def close(self) -> None:
        """Ends the supervisor, and with it whatever is left of the tree, and waits up to `CLOSE_SECS` for that."""
        os.close(self.control)
        os.close(self.status)
        end = time.monotonic() + CLOSE_SECS
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.supervisor_pid, os.WNOHANG)[0] == 0 and time.monotonic() < end:
                time.sleep(0.001)


def start(command: Sequence[str]) -> SupervisedCommand:
    """Forks supervisor and command; the command's process exists on return, but waits for `SupervisedCommand.go`.

    To be called while this process has one thread, and before it installs signal handlers.

    Raises:
        SupervisorKilledError: if someone killed the supervisor meanwhile; the kernel has ended the command's process
            then.
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
        _leave(lambda: _keep(command, control_read, status_write, prctl))
    os.close(control_read)
    os.close(status_write)
    kept = SupervisedCommand(supervisor, 0, control_write, status_read)
    words = kept.lines()[0]
    if words[0] != "pid":
        ended = os.waitpid(supervisor, 0)[1]
        kept.close()
        if os.WIFSIGNALED(ended):
            raise SupervisorKilledError(
                f"the guard's second process {supervisor} was ended by signal {os.WTERMSIG(ended)}"
            )
        raise OSError(f"the supervisor could not make a process for {command[0]}")
    kept.child_pid = int(words[1])
    return kept


def _leave(work: Callable[[], None]) -> NoReturn:
    """Runs `work` as the whole life of a forked process: nothing of the parent's code may run after it."""
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


def _keep(command: Sequence[str], control: int, status: int, prctl: Prctl) -> None:
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    go_read, go_write = os.pipe()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        os.close(control)
        _leave(lambda: _become(command, go_read, status, prctl, me))
    os.close(go_read)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # what they mean is for the guard to say
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
                break  # the guard is gone, or done
            os.write(go_write, byte)
    kill_tree(me, group=0 if ended else child)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def _reap(child: int, status: int) -> bool:
    """Takes leave of all that ended; tells the guard of the command itself, and returns whether it was among
    them.
    """
    found = False
    with contextlib.suppress(ChildProcessError, BrokenPipeError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = True
                os.write(status, f"exit {ended[1]}\n".encode())
    return found


def _become(command: Sequence[str], go: int, status: int, prctl: Prctl, supervisor: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)  # it died before the line above took effect
    os.setpgid(0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, which exec would hand on
    if LINUX:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    if os.read(go, 1) != b"g":
        os._exit(1)  # never let go
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(status, f"failed {error.errno}\n".encode())
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
