"""How the guard speaks to the user and hears signals, without ever waiting for either."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STDERR = 2
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """One line to the user on stderr. A terminal that is gone or stopped must neither end the guard nor make
    it wait.
    """
    line = f"guard: {text}\n".encode(errors="replace")[: select.PIPE_BUF]
    with suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, line)


@contextmanager
def stop_signals() -> Iterator[int]:
    """Turns the signals that ask for an end into bytes of a pipe, whose read end this yields. Ignored ones
    (nohup) stay so.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    os.set_blocking(read_end, False)

    def take(number: int, frame: FrameType | None) -> None:
        """The byte in the pipe says it all."""

    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, take)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(-1)
