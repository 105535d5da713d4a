"""How the guard speaks to the user and hears signals, without ever waiting for either."""

from __future__ import annotations

import os
import select
from contextlib import suppress

STDERR = 2


def say(text: str) -> None:
    """One line to the user on stderr. A terminal that is gone or stopped must neither end the guard nor make
    it wait.
    """
    line = f"guard: {text}\n".encode(errors="replace")[: select.PIPE_BUF]
    with suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, line)
