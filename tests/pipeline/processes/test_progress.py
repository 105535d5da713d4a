"""The view of a run: plain lines in a file, a live line in a terminal, a stream whose reader is gone."""

from __future__ import annotations

import io
import os
from pathlib import Path

from pipeline.processes.progress import Progress, TolerantStream
from stages.contract.events import Event, EventKind

WHEN = "2026-01-01T00:00:00.000000Z"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO) -> None:
    """A short run with every kind of event."""
    with Progress(stream) as progress:
        progress.event(Event(WHEN, EventKind.NOTE, text="before the first process"))
        progress.begin("[1/1] G · attempt 1", 4)
        progress.event(Event(WHEN, EventKind.PHASE, phase="model_loaded"))
        progress.event(Event(WHEN, EventKind.STEP, step=2, total=4, values={"loss": 1.25, "lr": 1e-4}))
        progress.event(Event(WHEN, EventKind.NOTE, text="a note"))
        progress.memory(2048.0)
        progress.say("G attempt 1: passed")


def test_a_file_gets_only_lines_that_stay() -> None:
    stream = io.StringIO()
    show(stream)
    assert stream.getvalue() == "G attempt 1: passed\n"


def test_a_terminal_shows_step_loss_and_memory() -> None:
    stream = Terminal()
    show(stream)
    shown = stream.getvalue()
    assert "before the first process" not in shown
    for part in ("[1/1] G · attempt 1", "2/4", "loss 1.25", "2.00 GB", "  a note\n", "G attempt 1: passed\n"):
        assert part in shown, part
    assert "lr" not in shown


def test_a_reader_that_is_gone_is_no_error(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = TolerantStream(open(write_end, "w", buffering=1))  # noqa: PTH123, SIM115 - closing it would fail
    assert stream.write("text\n") == 5
    stream.flush()
    assert stream.fileno() == write_end
