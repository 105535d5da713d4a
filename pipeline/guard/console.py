"""The guard's messages to the user, written without ever waiting for the terminal."""

from __future__ import annotations

import os
import select
from contextlib import suppress

STDERR = 2


def print_line(text: str) -> None:
    """Writes one line to stderr. If the terminal is gone or does not read, the line is dropped."""
    line = f"guard: {text}\n".encode(errors="replace")[: select.PIPE_BUF]
    with suppress(OSError):
        if select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, line)
