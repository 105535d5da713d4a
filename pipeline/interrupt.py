"""Ctrl-C and SIGTERM, counted: the first asks for an orderly end, the second for an end at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While entered, SIGINT and SIGTERM only count here; whoever works looks at `asked` between two small pieces of work."""

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        """Takes the signals over. To be entered in the main thread."""
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the signals back to whom they belonged."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
