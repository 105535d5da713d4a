"""The view of a run: a live line in a terminal (stage, step, loss, memory, time left), else plain text."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast

from stages.contract.events import Event, EventKind


class TolerantStream:
    """A stream whose writes never fail: if its reader is gone (tmux killed, `| head`), they are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, or drops it."""
        with suppress(OSError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes what was written, or drops it."""
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        """All other attributes are the stream's."""
        return getattr(self._stream, name)


class Progress:
    """The view of one run: in a terminal a line that is updated, elsewhere only the lines of `say`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = cast(TextIO, TolerantStream(stream or sys.stderr))
        self._live: Any = None
        self._task: Any = None
        self._title = ""
        self._values: dict[str, str] = {}
        self._tty = self._stream.isatty()

    def __enter__(self) -> Progress:
        """Shows the live line, if the stream is a terminal."""
        if self._tty:
            self._live = _bar(self._stream)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def begin(self, title: str, total: int | None = None) -> None:
        """A process begins, as `[2/2] G · attempt 1`; `total` is its number of steps, None if not known."""
        self._title, self._values = title, {}
        if self._live is None:
            return
        if self._task is not None:
            self._live.remove_task(self._task)
        self._task = self._live.add_task(title, total=total, details="")

    def event(self, event: Event) -> None:
        """Shows an event of the process."""
        if self._live is None or self._task is None:
            return
        if event.kind is EventKind.NOTE and event.text:
            self.say(f"  {event.text}")
        if event.kind is EventKind.PHASE:
            self._values["phase"] = event.phase
        if event.kind is EventKind.STEP:
            self._values.pop("phase", None)
            self._values |= {
                key: f"{key} {event.values[key]:.3g}"
                for key in ("loss", "update_ratio")
                if key in event.values
            }
        if event.kind in (EventKind.STEP, EventKind.PROGRESS):
            self._live.update(self._task, completed=event.step, total=event.total or None)
        self._live.update(self._task, details=" · ".join(self._values.values()))

    def memory(self, mib: float) -> None:
        """Shows the memory of the process tree now, in MiB."""
        if self._live is not None and self._task is not None:
            self._values["memory"] = f"{mib / 1024:.2f} GB"
            self._live.update(self._task, details=" · ".join(self._values.values()))

    def say(self, text: str) -> None:
        """Prints a line that stays, above the live line."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()


def _bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[details]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("剩 left"),
        TimeRemainingColumn(),
    )
    return Bars(*columns, console=Console(file=stream), transient=True, refresh_per_second=8)
