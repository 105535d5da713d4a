"""The memory trace of one guarded command: samples as CSV, written while it runs and read afterwards."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.guard.memory_readers import MemoryReading
from stages.contract.clock import utc_seconds, utc_text

HEADER = ["time_utc", "pid_mib", "total_mib", "available_mib"]
FLUSH_SECS = 1.0


@dataclass(frozen=True)
class MemorySample:
    """One sample of the guard, in MiB."""

    time_utc: str
    pid_mib: float
    """Of the watched process tree."""
    total_mib: float
    """Used by all processes: on the GPUs, or on the machine if it has none or shares its memory with them."""
    available_mib: float


class TraceError(ValueError):
    """A trace or event file that cannot be read; the message names file and line."""


class TraceWriter:
    """Appends samples to a CSV file and flushes it about once a second."""

    def __init__(self, path: Path) -> None:
        """Opens the file for appending. Raises OSError if it cannot be written."""
        self._file = path.open("a", encoding="utf-8", newline="")
        if path.stat().st_size == 0:
            self._file.write(",".join(HEADER) + "\n")
        self._file.flush()
        self._flushed = time.monotonic()

    def add(self, seconds: float, reading: MemoryReading) -> None:
        """Appends one sample taken at `seconds` since the epoch. Raises OSError if it cannot be written."""
        mib = f"{reading.tree_mib:.1f},{reading.total_mib:.1f},{reading.available_mib:.1f}"
        self._file.write(f"{utc_text(seconds)},{mib}\n")
        if time.monotonic() - self._flushed >= FLUSH_SECS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes the last samples. Raises OSError if they cannot be written."""
        self._file.close()


def load_samples(csv_path: Path) -> list[MemorySample]:
    """All samples of a trace, in order. An incomplete last line, which a killed guard leaves, is ignored.

    Raises:
        TraceError: if the file is missing, or naming file and line of anything else that is not a sample.
    """
    try:
        lines = csv_path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError as error:
        raise TraceError(f"{csv_path}: {error.strerror}") from None
    if not lines:
        return []
    if lines[0].split(",") != HEADER:
        raise TraceError(
            f"{csv_path}:1: {lines[0]!r} is not the header {','.join(HEADER)!r}: not a trace of the guard"
        )
    samples = []
    for number, row in enumerate(csv.reader(lines[1:]), start=2):
        try:
            moment, pid, total, available = row
            utc_seconds(moment)
            samples.append(MemorySample(moment, float(pid), float(total), float(available)))
        except ValueError as error:
            raise TraceError(f"{csv_path}:{number}: {','.join(row)!r} is no sample: {error}") from None
    return samples
