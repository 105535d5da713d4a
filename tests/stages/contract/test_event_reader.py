"""Reading an event stream: whole lines once, growing files, lines that are no events."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.contract.event_reader import EventReader, read_events
from stages.contract.events import Event, EventKind, Phase

WHEN = "2026-01-01T00:00:00.000000Z"


def test_a_growing_file_gives_every_whole_line_once(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    reader = EventReader(file)
    assert reader.read() == []
    line = Event(WHEN, EventKind.NOTE, text="字").line().encode()
    counted = []
    with file.open("ab", buffering=0) as stream:
        for part in (line[:5], line[5:-2], line[-2:] + line[:3], line[3:] + b"broken\n" + line):
            stream.write(part)
            counted.append(len(reader.read()))
    assert counted == [0, 0, 1, 2]
    assert len(reader.bad) == 1 and f"{file}:3: no event: b'broken'" in reader.bad[0]


def test_other_line_ends_in_a_text_end_no_line(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    events = [
        Event(WHEN, EventKind.STEP, step=1, text="行\u2028分隔\r"),
        Event(WHEN, EventKind.PHASE, Phase.START),
    ]
    file.write_text("".join(event.line() for event in events) + '{"time_utc": "20', encoding="utf-8")
    assert read_events(file) == (events, [])
    assert read_events(tmp_path / "none.jsonl") == ([], [])


@pytest.mark.parametrize("line", ["{}", "no json", '{"time_utc": "yesterday", "kind": "phase"}'])
def test_a_line_that_is_no_event_is_named_and_stops_nothing(tmp_path: Path, line: str) -> None:
    file = tmp_path / "events.jsonl"
    event = Event(WHEN, EventKind.PHASE, Phase.START)
    file.write_text(event.line() + line + "\n" + event.line(), encoding="utf-8")
    events, bad = read_events(file)
    assert events == [event, event]
    assert len(bad) == 1 and "events.jsonl:2" in bad[0]
