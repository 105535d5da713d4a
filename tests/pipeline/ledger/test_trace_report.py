"""Phases with their memory in the fields of the F# trainer's report, and the plot."""

from __future__ import annotations

import json
import re
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.guard.trace import MemorySample
from pipeline.ledger.trace_report import phases_report, plot_trace
from stages.contract.clock import utc_seconds, utc_text
from stages.contract.events import Event, EventKind, Phase

START = datetime(2026, 2, 26, 0, 44, 16, 245862, UTC).timestamp()
MEMORY = st.floats(0, 2e5)


def samples_at(*pairs: tuple[float, float]) -> list[MemorySample]:
    return [MemorySample(utc_text(START + seconds), mib, mib + 1000, 5000.0) for seconds, mib in pairs]


def phase(seconds: float, name: str, **values: float) -> Event:
    return Event(utc_text(START + seconds), EventKind.PHASE, phase=name, values=values)


def test_the_report_has_the_fields_of_the_fsharp_trainer() -> None:
    events = (
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
    rows = [(row["Phase"], row["PidMemoryMiB"], row["TotalMemoryMiB"]) for row in report["Samples"]]
    assert rows == [
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


def test_phases_without_samples() -> None:
    events = (phase(0, Phase.START), phase(1, Phase.EXPORTED, device_mib=7.0))
    rows = [(row["PidMemoryMiB"], row["TotalMemoryMiB"]) for row in phases_report([], events, 1)["Samples"]]
    assert rows == [(0, 0), (7, 7)]
    assert phases_report([], [], 1)["Samples"] == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(-10, 110))
def test_the_nearest_sample_is_taken(times: list[float], moment: float) -> None:
    samples = samples_at(*((second, number) for number, second in enumerate(sorted(times))))
    events = [phase(moment, Phase.START)]
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

    from pipeline.ledger.trace_report import draw_trace

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
