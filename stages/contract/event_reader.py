"""Reads the event stream of a stage, whole or while it grows. A bad line is reported and skipped."""

from __future__ import annotations

import json
from pathlib import Path

from stages.contract.clock import utc_seconds
from stages.contract.events import Event
from stages.contract.serial import load


class EventReader:
    """Follows one event file."""

    def __init__(self, path: Path) -> None:
        """Reads nothing yet; the file need not exist."""
        self._path = path
        self._offset = 0
        self._lines = 0
        self.bad: list[str] = []
        """One message for each line so far that is no event, with file and line number."""

    def read(self) -> list[Event]:
        """The events written since the last call. A last line without its newline is left for the next call.

        Raises:
            OSError: if the file exists and cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        events = []
        for line in whole.split(b"\n")[:-1]:
            self._lines += 1
            try:
                event = load(Event, json.loads(line), "event")
                utc_seconds(event.time_utc)
                events.append(event)
            except ValueError as error:
                self.bad.append(f"{self._path}:{self._lines}: no event: {line[:80]!r}: {error}")
        return events


def read_events(path: Path) -> tuple[list[Event], list[str]]:
    """All events of a file, and a message for each line that is no event. A missing file has no events.

    Raises:
        OSError: if the file exists and cannot be read.
    """
    reader = EventReader(path)
    return reader.read(), reader.bad
