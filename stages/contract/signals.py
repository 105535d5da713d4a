"""Requests to stop: SIGINT, SIGTERM and SIGHUP, counted between two small steps of work."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any, NoReturn

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """A context manager that counts stop signals.

    Each signal also arrives as one byte, its number, on a pipe: the object can be given to `select`.
    """

    def __init__(
        self, second_ends: bool = False, may_be_ignored: Collection[signal.Signals] = (signal.SIGHUP,)
    ) -> None:
        """Counts from the start of the `with` block.

        Args:
            second_ends: whether the second signal has its default effect and ends the process at once.
            may_be_ignored: signals that stay ignored where they already are, as SIGHUP under `nohup`. SIGINT
                is ignored in a script's background jobs, which can be asked to stop all the same.
        """
        self.count = 0
        self._second_ends = second_ends
        self._may_be_ignored = may_be_ignored
        self._before: dict[signal.Signals, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def __enter__(self) -> StopSignals:
        """Installs the handlers. Only the main thread may do so."""
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        # The pipe first: a signal that is counted must also arrive on it.
        self._wakeup_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if number not in self._may_be_ignored or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the handlers of before."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

    def fileno(self) -> int:
        """The read end of the pipe, for `select`.

        Raises:
            ValueError: outside of the `with` block.
        """
        if self._pipe is None:
            raise ValueError("StopSignals: not entered: use it in a `with` block")
        return self._pipe[0]

    def arrived(self) -> list[int]:
        """The numbers of the signals since the last call, in order: of all that have a Python handler."""
        try:
            return list(os.read(self.fileno(), 4096))
        except BlockingIOError:
            return []

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self._second_ends and self.count > 1:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def exit_process(code: int) -> NoReturn:
    """Ends the process. A stop signal during the interpreter's teardown no longer changes its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    sys.exit(code)
