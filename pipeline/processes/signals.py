"""Ctrl-C, SIGTERM and a terminal that is gone, counted: the first asks for an orderly end, the second for an
end at once.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, SIGINT, SIGTERM and SIGHUP only count here; whoever works looks at `asked` between two
    small pieces of work.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        """Takes the signals over. To be entered in the main thread."""
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the run is to outlive its terminal
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        """Gives the signals back to whom they belonged."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
