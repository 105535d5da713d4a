"""The progress bar: redrawn on a terminal, rare elsewhere, complete at the end."""

from __future__ import annotations

import io

import pytest

from stages.weights import byte_progress
from stages.weights.byte_progress import ByteProgress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "drawn"), [(_Terminal(), 9), (io.StringIO(), 0)])
def test_bars(stream: io.StringIO, drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(byte_progress.time, "monotonic", lambda: next(clock) / 4)
    progress = ByteProgress(10_000_000, stream)
    for _ in range(9):
        progress.add(1_000_000)
    assert stream.getvalue().count("\r") == drawn and "\n" not in stream.getvalue()
    progress.add(1_000_000)
    progress.close()
    assert stream.getvalue().splitlines()[-1].startswith(f"[{'#' * 30}] 100% 10 of 10 MB")
