"""The trace: what is written is read back, line by line."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.guard.memory_readers import MemoryReading
from pipeline.guard.trace import MemorySample, TraceError, TraceWriter, load_samples
from stages.contract.clock import utc_seconds, utc_text

START = datetime(2026, 2, 26, 0, 44, 16, 245862, UTC).timestamp()
MEMORY = st.floats(0, 2e5)


def samples_at(*pairs: tuple[float, float]) -> list[MemorySample]:
    return [MemorySample(utc_text(START + seconds), mib, mib + 1000, 5000.0) for seconds, mib in pairs]


@given(st.floats(0, 4e9))
def test_times_are_kept_to_the_microsecond(seconds: float) -> None:
    text = utc_text(seconds)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert utc_seconds(text) == pytest.approx(seconds, abs=2e-6)


@given(rows=st.lists(st.tuples(MEMORY, MEMORY, MEMORY), max_size=20), parts=st.integers(1, 3))
def test_samples_come_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float, float]], parts: int
) -> None:
    """Appended by several guards in turn, the file has one header and every sample."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    for part in range(parts):
        writer = TraceWriter(path)
        for number, row in enumerate(rows):
            writer.add(START + part * 100 + number, MemoryReading(*row))
        writer.close()
    loaded = load_samples(path)
    assert len(loaded) == parts * len(rows)
    for sample, row in zip(loaded, rows * parts, strict=True):
        assert (sample.pid_mib, sample.total_mib, sample.available_mib) == pytest.approx(row, abs=0.051)
    assert path.read_text().count("time_utc,pid_mib,total_mib,available_mib\n") == 1


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    writer = TraceWriter(path)
    for second in range(3):
        writer.add(START + second, MemoryReading(10.0 * second, 0, 0))
    writer.close()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        lines = whole[:size].count(b"\n")
        assert [sample.pid_mib for sample in load_samples(path)] == [0.0, 10.0, 20.0][: max(0, lines - 1)]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("time,mib", ":1:"),
        ("time_utc,pid_mib,total_mib,available_mib\n2026-02-26T00:44:16.245862Z,1,2", ":2:"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_its_line(tmp_path: Path, line: str, place: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(line + "\n")
    with pytest.raises(TraceError, match=re.escape(f"{path}{place}")):
        load_samples(path)
    with pytest.raises(TraceError, match="No such file"):
        load_samples(tmp_path / "none.csv")
