"""The trace: what is written is read back, phases get their memory, the report has the F# trainer's fields,
plots are drawn.
"""

from __future__ import annotations

import json
import re
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.guard.memory_readers import MemoryReading
from pipeline.guard.trace import (
    MemorySample,
    TraceError,
    TraceWriter,
    load_phases,
    load_samples,
    phases_report,
    plot_trace,
    utc_seconds,
    utc_text,
)
from stages.contract.events import Event, EventKind, Phase

START = datetime(2026, 2, 26, 0, 44, 16, 245862, UTC).timestamp()
MEMORY = st.floats(0, 2e5)


def samples_at(*pairs: tuple[float, float]) -> list[MemorySample]:
    return [MemorySample(utc_text(START + seconds), mib, mib + 1000, 5000.0) for seconds, mib in pairs]


def write_events(path: Path, *events: Event) -> Path:
    path.write_text("".join(event.line() for event in events), encoding="utf-8")
    return path


def phase(seconds: float, name: str, **values: float) -> Event:
    return Event(utc_text(START + seconds), EventKind.PHASE, phase=name, values=values)


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


def test_only_phases_are_taken_from_the_events(tmp_path: Path) -> None:
    step = Event(utc_text(START), EventKind.STEP, step=1, text="行\u2028分隔")
    path = write_events(tmp_path / "events.jsonl", phase(0, Phase.START), step, phase(1, Phase.BACKWARD_DONE))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"time_utc": "20')
    assert [event.phase for event in load_phases(path)] == ["start", "backward_done"]
    assert load_phases(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("line", ["{}", "no json", '{"time_utc": "yesterday", "kind": "phase"}'])
def test_an_event_that_is_none_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    path = write_events(tmp_path / "events.jsonl", phase(0, Phase.START))
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(TraceError, match=r"events\.jsonl:2"):
        load_phases(path)


def test_the_report_has_the_fields_of_the_fsharp_trainer(tmp_path: Path) -> None:
    events = write_events(
        tmp_path / "events.jsonl",
        phase(0.0, Phase.START),
        phase(10.9, Phase.MODEL_LOADED, device_mib=40807.4),
        phase(16.8, Phase.ZERO_GRAD_DONE),
        phase(107.1, Phase.OPTIMIZER_STEP_DONE),
    )
    samples = samples_at((0.01, 12.4), (10.9, 40000), (16.7, 41061.2), (17.5, 9), (100, 54423))
    report = phases_report(samples, events, 151217)
    assert list(report) == ["Pid", "CreatedUtc", "Samples"] and report["Pid"] == 151217
    assert [list(row) for row in report["Samples"]] == [
        ["TimestampUtc", "Phase", "PidMemoryMiB", "TotalMemoryMiB"]
    ] * 4
    told = [(row["Phase"], row["PidMemoryMiB"], row["TotalMemoryMiB"]) for row in report["Samples"]]
    assert told == [
        ("start", 12, 1012),
        ("model_loaded", 40807, 41000),
        ("zero_grad_done", 41061, 42061),
        ("optimizer_step_done", 54423, 55423),
    ]
    assert all(
        type(row["PidMemoryMiB"]) is int and type(row["TotalMemoryMiB"]) is int for row in report["Samples"]
    )
    # DateTime's round-trip format has seven decimals.
    for text in [report["CreatedUtc"], *(row["TimestampUtc"] for row in report["Samples"])]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z", text)
    assert report["Samples"][0]["TimestampUtc"] == "2026-02-26T00:44:16.2458620Z"
    json.dumps(report)


def test_phases_without_samples(tmp_path: Path) -> None:
    events = write_events(
        tmp_path / "e.jsonl", phase(0, Phase.START), phase(1, Phase.EXPORTED, device_mib=7.0)
    )
    told = [(row["PidMemoryMiB"], row["TotalMemoryMiB"]) for row in phases_report([], events, 1)["Samples"]]
    assert told == [(0, 0), (7, 7)]
    assert phases_report([], tmp_path / "none.jsonl", 1)["Samples"] == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(-10, 110))
def test_the_nearest_sample_is_taken(
    tmp_path_factory: pytest.TempPathFactory, times: list[float], moment: float
) -> None:
    samples = samples_at(*((second, number) for number, second in enumerate(sorted(times))))
    events = write_events(tmp_path_factory.mktemp("nearest") / "events.jsonl", phase(moment, Phase.START))
    (row,) = phases_report(samples, events, 1)["Samples"]
    taken = utc_seconds(samples[row["PidMemoryMiB"]].time_utc)
    event = utc_seconds(utc_text(START + moment))
    assert abs(taken - event) == min(abs(utc_seconds(sample.time_utc) - event) for sample in samples)


ONE_STEP = [
    (0.0, Phase.START),
    (10.9, Phase.MODEL_LOADED),
    (10.95, Phase.BATCH_READY),
    (16.8, Phase.ZERO_GRAD_DONE),
    (20.6, Phase.BACKWARD_DONE),
    (107.0, Phase.OPTIMIZER_STEP_DONE),
    (107.1, Phase.EXPORTED),
]


@pytest.mark.parametrize(
    ("samples", "events", "limit"),
    [
        ([], [], 0.0),
        ([], ONE_STEP, 108.0),
        ([(3.0, 100.0)], [], 1.0),
        ([(3.0, 0.0)], ONE_STEP[:1], 108.0),
        ([(t / 10, 60_000.0 - t) for t in range(1100)], ONE_STEP, 64.0),
        ([(t / 10, 700.0) for t in range(30)], [(t / 100, Phase.BACKWARD_DONE) for t in range(300)], 0.5),
    ],
)
def test_plots_are_drawn(
    tmp_path: Path, samples: list[tuple[float, float]], events: list[tuple[float, str]], limit: float
) -> None:
    png = tmp_path / "trace.png"
    png.write_bytes(b"older")
    plot_trace(
        samples_at(*samples), [phase(*event) for event in events], limit, "stageA 階段 · attempt 1", png
    )
    data = png.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG") and width >= 800 and height >= 400
    assert [path.name for path in tmp_path.iterdir()] == ["trace.png"]


def test_phase_labels_do_not_overlap() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pipeline.guard.trace import draw_trace

    for scale in (1.0, 0.01, 30.0):
        events = [
            phase(second * scale if index != 3 else second, name)
            for index, (second, name) in enumerate(ONE_STEP)
        ]
        figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
        draw_trace(figure, samples_at((0, 10), (107 * scale, 20)), events, 1.0, "title")
        FigureCanvasAgg(figure).draw()
        (axes,) = figure.axes
        boxes = [label.get_window_extent() for label in axes.texts]
        assert len(boxes) == 7
        for index, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[index + 1 :])
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
