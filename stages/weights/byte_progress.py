"""A progress bar in bytes, with MB/s."""

from __future__ import annotations

import time
from typing import TextIO


class ByteProgress:
    """A bar with MB/s on a stream: redrawn on a terminal, a line every ten seconds elsewhere."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.done, self.stream = max(1, total), 0, stream
        self.start = time.monotonic()
        self.interval = 0.2 if stream.isatty() else 10.0
        self.next = self.start + self.interval

    def add(self, nbytes: int) -> None:
        """Counts bytes that are done."""
        self.done += nbytes
        if time.monotonic() >= self.next:
            self._draw("\r" if self.stream.isatty() else "\n")
            self.next = time.monotonic() + self.interval

    def close(self) -> None:
        """Draws the last state."""
        self._draw("\n")

    def _draw(self, end: str) -> None:
        fraction = min(1.0, self.done / self.total)
        rate = self.done / 1e6 / max(1e-9, time.monotonic() - self.start)
        bar = "#" * int(30 * fraction)
        amount = f"{self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB, {rate:.0f} MB/s"
        self.stream.write(f"[{bar:<30}] {fraction:4.0%} {amount}{end}")
        self.stream.flush()
