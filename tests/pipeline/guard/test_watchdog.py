"""The watchdog's bookkeeping; what it does to processes is tested with a whole guard in `test_guard*.py`."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import pytest

from pipeline.core.guard_limits import GuardLimits, ReaderKind
from pipeline.guard.memory_readers import UNIFIED_FLOOR_GB, MemoryReadError, MemoryReading
from pipeline.guard.report import Reason
from pipeline.guard.supervisor import SupervisedCommand
from pipeline.guard.trace import TraceWriter, load_samples
from pipeline.guard.watchdog import BLIND_SECS, Watchdog, _next_poll, min_available_gb

NO_PROCESS = 1 << 23
"""Above the largest process id that Linux assigns."""


class ScriptedReader:
    """A reader that gives the readings of a list, one after the other; None: it cannot read."""

    kind = ReaderKind.NVML

    def __init__(self, *readings: MemoryReading | None, unified: bool = False) -> None:
        self.readings, self.unified = list(readings), unified

    def describe(self) -> str:
        return "a list"

    def read(self, pids: Collection[int]) -> MemoryReading:
        if (reading := self.readings.pop(0)) is None:
            raise MemoryReadError("no answer")
        return reading

    def close(self) -> None:
        pass


def watchdog_of(reader: ScriptedReader, trace: TraceWriter | None = None, **limits: float) -> Watchdog:
    """A watchdog over a command that does not exist."""
    supervised = SupervisedCommand(NO_PROCESS, NO_PROCESS, -1, -1)
    return Watchdog(GuardLimits(**{"gpu_limit_gb": 1.0, **limits}), supervised, reader, trace, None)


def test_the_least_free_memory_is_the_users_or_that_of_unified_memory() -> None:
    unified, apart = ScriptedReader(unified=True), ScriptedReader()
    assert min_available_gb(GuardLimits(8), unified) == UNIFIED_FLOOR_GB
    assert min_available_gb(GuardLimits(8), apart) == min_available_gb(GuardLimits(8), None) == 0
    for given in (0.0, 2.5):
        assert min_available_gb(GuardLimits(8, min_available_gb=given), unified) == given


def test_missed_polls_are_not_made_up_for() -> None:
    now = time.monotonic()
    assert _next_poll(now, 1.0) == now + 1.0
    late = _next_poll(now - 10.0, 1.0)
    assert now + 1.0 <= late < now + 2.0


def test_readings_are_recorded_with_peak_and_least(tmp_path: Path) -> None:
    readings = [MemoryReading(10.04, 1, 500), MemoryReading(30, 1, 300), MemoryReading(20, 1, 400)]
    trace = TraceWriter(tmp_path / "trace.csv")
    watchdog = watchdog_of(ScriptedReader(*readings), trace)
    for _ in readings:
        watchdog._sample(time.monotonic())
    trace.close()
    figures = watchdog.figures
    assert (figures.samples, figures.peak_mib, figures.least_available_mib) == (3, 30, 300)
    samples = load_samples(tmp_path / "trace.csv")
    assert [sample.pid_mib for sample in samples] == [10.0, 30, 20]
    assert figures.peak_time == samples[1].time_utc


@pytest.mark.fault("the disk is full while the guard writes its trace", how="/dev/full")
def test_a_trace_that_cannot_be_written_ends_and_the_guard_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipeline.guard.trace.FLUSH_SECS", 0.0)
    watchdog = watchdog_of(ScriptedReader(*[MemoryReading(1, 1, 1)] * 3))
    writer = TraceWriter.__new__(TraceWriter)
    writer._file, writer._flushed = open("/dev/full", "w"), 0.0  # noqa: PTH123, SIM115 - closing it fails
    watchdog._trace = writer
    for _ in range(3):
        watchdog._sample(time.monotonic())
    assert watchdog.figures.samples == 3
    assert len(watchdog.figures.notes) == 1 and "the trace ends" in watchdog.figures.notes[0]


def test_an_excess_counts_from_its_first_sample_and_is_forgotten_in_between() -> None:
    over, under = MemoryReading(2000, 1, 1), MemoryReading(10, 1, 1)
    watchdog = watchdog_of(ScriptedReader(over, over, under, over, over, over), gpu_over_secs=1.0)
    for moment in (0.0, 0.9, 1.0, 1.1, 2.0):
        watchdog._sample(moment)
        assert watchdog.reason is Reason.ENDED
    watchdog._kill = lambda now: None  # type: ignore[method-assign] - it would kill this process's children
    watchdog._sample(2.2)
    assert watchdog.reason is Reason.MEMORY and "over the limit of 1024 MiB" in watchdog.message


def test_reading_errors_count_only_when_they_last() -> None:
    watchdog = watchdog_of(ScriptedReader(None, MemoryReading(1, 1, 1), None, None))
    for moment in (0.0, BLIND_SECS, BLIND_SECS + 0.1):
        watchdog._sample(moment)
    assert (watchdog.figures.failed_reads, watchdog.reason) == (2, Reason.ENDED)
    watchdog._sample(2 * BLIND_SECS + 0.2)
    assert watchdog.reason is Reason.BLIND and "no answer" in watchdog.message
