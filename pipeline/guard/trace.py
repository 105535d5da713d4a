"""The trace of one attempt: memory samples as CSV, with the phases as the user's JSON report and as a plot."""

from __future__ import annotations

import bisect
import csv
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.guard.memory_readers import MemoryReading
from stages.contract.events import Event, EventKind
from stages.contract.serial import RequestError, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEADER = ["time_utc", "pid_mib", "total_mib", "available_mib"]
FLUSH_SECS = 1.0
MIB_PER_GIB = 1024.0
LABEL_CHAR_SHARE = 0.0085
"""Width of one character of a label as a share of the plot's, with a little air; seen in the figure, which is
11 inches wide.
"""


@dataclass(frozen=True)
class MemorySample:
    """One sample of the guard, in MiB."""

    time_utc: str
    pid_mib: float
    """Of the watched process tree."""
    total_mib: float
    """Used in all on the device, or on the machine."""
    available_mib: float


class TraceError(ValueError):
    """A trace or event file that cannot be read; the message names file and line."""


def utc_text(seconds: float) -> str:
    """Seconds since the epoch as ISO 8601 with microseconds and `Z`."""
    return (
        datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    )


def utc_seconds(text: str) -> float:
    """The inverse of `utc_text`. Raises ValueError for other text."""
    return datetime.fromisoformat(text).timestamp()


class TraceWriter:
    """Appends samples to a CSV file, and hands them to the system about once a second."""

    def __init__(self, path: Path) -> None:
        """Opens the file, after what it holds already. Raises OSError if it cannot be written."""
        self._file = path.open("a", encoding="utf-8", newline="")
        if path.stat().st_size == 0:
            self._file.write(",".join(HEADER) + "\n")
        self._file.flush()
        self._flushed = time.monotonic()

    def add(self, seconds: float, reading: MemoryReading) -> None:
        """One sample taken at `seconds` since the epoch. Raises OSError if the disk does not take it."""
        row = f"{utc_text(seconds)},{reading.tree_mib:.1f},{reading.total_mib:.1f},{reading.available_mib:.1f}\n"
        self._file.write(row)
        if time.monotonic() - self._flushed >= FLUSH_SECS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is left. Raises OSError if the disk does not take it."""
        self._file.close()


def load_samples(csv_path: Path) -> list[MemorySample]:
    """All samples of a trace, in order. A last line cut short, as a killed guard leaves it, is left out.

    Raises:
        TraceError: naming file and line of anything else that is no sample, or if the file is missing.
    """
    lines = _whole_lines(csv_path)
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


def load_phases(events_path: Path) -> list[Event]:
    """The phase events of a stage, in order; none if the stage wrote no events. A last line cut short is left
    out.

    Raises:
        TraceError: naming file and line of anything else that is no event.
    """
    if not events_path.exists():
        return []
    phases = []
    for number, line in enumerate(_whole_lines(events_path), start=1):
        where = f"{events_path}:{number}"
        try:
            event = load(Event, json.loads(line), where)
            utc_seconds(event.time_utc)
        except (RequestError, ValueError) as error:
            raise TraceError(f"{where}: no event: {error}") from None
        if event.kind is EventKind.PHASE:
            phases.append(event)
    return phases


def _whole_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    return text.split("\n")[:-1]


def phases_report(samples: Sequence[MemorySample], events_jsonl_path: Path, pid: int) -> dict[str, Any]:
    """The memory at each phase, with the fields and units of the F# trainer's report, so that its readers
    take ours.

    `PidMemoryMiB` is the stage's own figure where the event carries one (`values["device_mib"]`), else the
    guard's sample nearest in time; `TotalMemoryMiB` is that sample's total. Both are whole MiB; without any
    sample they fall back on the stage's figure, or 0. Times have the seven decimals that .NET writes.

    Args:
        samples: as `load_samples` gives them, in order of time.
        events_jsonl_path: the stage's events; need not exist.
        pid: of the command.

    Raises:
        TraceError: if the events cannot be read.
    """
    times = [utc_seconds(sample.time_utc) for sample in samples]
    rows = []
    for event in load_phases(events_jsonl_path):
        nearest = _nearest(times, utc_seconds(event.time_utc))
        own = event.values.get("device_mib")
        pid_mib = own if own is not None else (samples[nearest].pid_mib if samples else 0.0)
        total_mib = samples[nearest].total_mib if samples else pid_mib
        rows.append(
            {
                "TimestampUtc": _dotnet(event.time_utc),
                "Phase": event.phase,
                "PidMemoryMiB": round(pid_mib),
                "TotalMemoryMiB": round(total_mib),
            }
        )
    return {"Pid": pid, "CreatedUtc": _dotnet(utc_text(time.time())), "Samples": rows}


def _nearest(times: Sequence[float], moment: float) -> int:
    """Index of the time nearest to `moment`; `times` rise."""
    after = bisect.bisect_left(times, moment)
    if after == 0 or (after < len(times) and times[after] - moment < moment - times[after - 1]):
        return after
    return after - 1


def _dotnet(time_utc: str) -> str:
    return time_utc.removesuffix("Z") + "0Z"


def plot_trace(
    samples: Sequence[MemorySample], phases: Sequence[Event], limit_gb: float, title: str, png_path: Path
) -> None:
    """Draws memory over time with the limit and the phases, and replaces `png_path` by it.

    The first of each phase is named above the plot; its repetitions are marked only. Text outside ASCII
    becomes `?`, so that no font for it is needed.

    Args:
        samples: as `load_samples` gives them; may be none or one.
        phases: as `load_phases` gives them; may be none.
        limit_gb: the guard's limit (GB of 1024 MiB); 0 draws none.
        title: one line.
        png_path: its folder must exist.

    Raises:
        OSError: if the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    draw_trace(figure, samples, phases, limit_gb, title)
    FigureCanvasAgg(figure)
    aside = png_path.with_name(f".{png_path.name}.{os.getpid()}.tmp")
    figure.savefig(aside, format="png")
    aside.replace(png_path)


def draw_trace(
    figure: Figure, samples: Sequence[MemorySample], phases: Sequence[Event], limit_gb: float, title: str
) -> None:
    """Draws on a figure of 11 inches width; arguments as for `plot_trace`."""
    axes = figure.add_subplot()
    times = [utc_seconds(sample.time_utc) for sample in samples]
    marks = [utc_seconds(event.time_utc) for event in phases]
    start = min([*times, *marks], default=0.0)
    end = max([*times, *marks, start + 1.0])
    room = LABEL_CHAR_SHARE * max((len(event.phase) + 2 for event in phases), default=2)
    axes.set_xlim(-0.01 * (end - start), (1 + 1.2 * room) * (end - start))
    _draw_memory(
        axes,
        [moment - start for moment in times],
        [sample.pid_mib / MIB_PER_GIB for sample in samples],
        limit_gb,
    )
    _draw_phases(axes, [mark - start for mark in marks], [event.phase for event in phases])
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("memory of the process tree (GiB)")
    axes.grid(alpha=0.25)
    figure.suptitle(_ascii(title), fontsize=12)


def _draw_memory(axes: Axes, seconds: Sequence[float], memory: Sequence[float], limit_gb: float) -> None:
    top = max([*memory, 0.0])
    axes.fill_between(seconds, memory, color="tab:blue", alpha=0.12, linewidth=0)
    axes.plot(seconds, memory, color="tab:blue", linewidth=1.5, marker="o" if len(memory) < 2 else None)
    if memory:
        at = memory.index(top)
        axes.plot(
            seconds[at],
            top,
            "v",
            color="tab:blue",
            markersize=7,
            label=f"peak {top:.2f} GiB at {seconds[at]:.1f} s",
        )
    else:
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", color="gray", fontsize=14)
    # A limit far above the memory would press the curve flat: then it is named in the legend and lies
    # outside.
    outside = bool(memory) and limit_gb > 4 * top > 0
    if limit_gb > 0:
        label = f"limit {limit_gb:g} GiB" + (" (above the plot)" if outside else "")
        axes.plot([], [], color="tab:red", linestyle="--", label=label)
        if not outside:
            axes.axhline(limit_gb, color="tab:red", linestyle="--", linewidth=1.3)
    axes.set_ylim(0, 1.08 * max(top, 0.0 if outside else limit_gb, 0.001))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", framealpha=0.9)


def _draw_phases(axes: Axes, seconds: Sequence[float], names: Sequence[str]) -> None:
    left, right = axes.get_xlim()
    first: dict[str, float] = {}
    for moment, name in sorted(zip(seconds, names, strict=True), key=lambda pair: pair[0]):
        axes.axvline(moment, color="tab:gray", linestyle=":", linewidth=0.6, alpha=0.4)
        first.setdefault(name, moment)
    width = LABEL_CHAR_SHARE * (right - left)
    placed: list[tuple[float, int]] = []
    # From the right: a label lies above every later mark that it reaches over, so no line runs through a
    # text.
    for name, moment in reversed(first.items()):
        reach = moment + width * (len(name) + 1)
        lane = 1 + max((other for mark, other in placed if mark < reach), default=-1)
        placed.append((moment, lane))
        height = 1.015 + 0.045 * lane
        across = axes.get_xaxis_transform()  # x in seconds, y as a share of the plot's height
        axes.plot(
            [moment, moment],
            [0, height + 0.03],
            ":",
            color="tab:gray",
            linewidth=1.0,
            transform=across,
            clip_on=False,
        )
        axes.text(moment + 0.4 * width, height, _ascii(name), transform=across, fontsize=8, va="bottom")


def _ascii(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)
