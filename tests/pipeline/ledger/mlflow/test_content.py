"""What MLflow gets of a run and an attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.types import AttemptEnd, Outcome, RunEnd
from pipeline.guard.trace import MemorySample
from pipeline.ledger.journal import Journal
from pipeline.ledger.mlflow.content import (
    MAX_PARAM_CHARS,
    attempt_ended,
    attempt_opened,
    attempt_reused,
    event_metrics,
    flat,
    run_ended,
    run_opened,
    thinned,
)
from pipeline.ledger.schema import AttemptRow
from stages.contract.events import Event, EventKind
from tests.pipeline.ledger.samples import RUN, attempt, end, step, write_folder


def closed(journal: Journal, last: AttemptEnd) -> AttemptRow:
    """An attempt that ended so."""
    journal.open_attempt(attempt())
    journal.close_attempt(attempt(), last)
    return journal.attempt(attempt().id)


def test_run_has_its_command_settings_and_end(journal: Journal) -> None:
    opened = run_opened(journal.run(RUN))
    assert opened.texts == {
        "command.txt": "python -m pipeline +experiment=stageG\n",
        "settings.yaml": "seed: 0\n",
    }
    assert opened.status == ""
    journal.close_run(RUN, RunEnd(Outcome.PASSED, "w.dat", "f" * 64, ("1: passed", "2: passed")))
    ended = run_ended(journal.run(RUN))
    assert (ended.status, ended.tags["weight_sha256"]) == ("FINISHED", "f" * 64)
    assert ended.tags["mlflow.note.content"] == "- 1: passed\n- 2: passed"
    assert "passed(通過)" in ended.texts["DevLog.md"]


def test_attempt_opens_with_its_parameters_and_lineage(journal: Journal) -> None:
    journal.open_attempt(attempt(2))
    opened = attempt_opened(journal.attempt(f"{RUN}/G/2"))
    assert (opened.params["lr_groups.lm_head"], opened.params["attempt"]) == ("10.0", "2")
    assert opened.params["data"] == '[{"path": "d.tsv"}]'
    assert opened.tags["data.datasets/身份.tsv"] == "b" * 64
    assert (opened.tags["why"], opened.tags["changes"]) == ("崩壞之後降低 lr", "`lr`:0.0002 → 0.0001")
    assert opened.texts == {}


def test_long_parameter_is_cut_and_goes_along_as_text(journal: Journal) -> None:
    long = "字" * 7000
    journal.open_attempt(attempt(note=long))
    opened = attempt_opened(journal.attempt(attempt().id))
    assert len(opened.params["note"]) <= MAX_PARAM_CHARS
    assert opened.params["note"].startswith("字" * 5900)
    assert opened.texts == {"params/note.txt": long}


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(Outcome.PASSED, "FINISHED"), (Outcome.MEASURED, "FINISHED"), (Outcome.OVER_LIMIT, "FAILED")],
)
def test_outcome_decides_the_status(journal: Journal, outcome: Outcome, status: str) -> None:
    assert attempt_ended(closed(journal, end(outcome)), Path(), 300, []).status == status


def test_interrupted_attempt_is_killed_and_says_why(journal: Journal) -> None:
    journal.open_attempt(attempt())
    journal.interrupt_attempt(attempt(), "Ctrl-C")
    ended = attempt_ended(journal.attempt(attempt().id), Path(), 300, [])
    assert (ended.status, ended.tags["outcome"], ended.tags["reason"]) == ("KILLED", "interrupted", "Ctrl-C")


def test_every_picture_and_file_of_the_folder_goes_along(journal: Journal, tmp_path: Path) -> None:
    write_folder(tmp_path, attempt())
    (tmp_path / attempt().folder / "steps.png").write_bytes(b"\x89PNG")
    ended = attempt_ended(closed(journal, end()), tmp_path, 10, [("loss", 1.0, 2, 3)])
    names = {"request.json", "command.txt", "trace.png", "trace.csv", "steps.png"}
    assert {path.name for path in ended.files} == names
    assert ended.metrics[0] == ("loss", 1.0, 2, 3)
    memory = [metric for metric in ended.metrics if metric[0] == "memory/pid_mib"]
    assert len(memory) == 10 and max(metric[1] for metric in memory) == 999.0


def test_trace_that_cannot_be_read_goes_along_as_a_file_only(journal: Journal, tmp_path: Path) -> None:
    write_folder(tmp_path, attempt())
    (tmp_path / attempt().folder / "trace.csv").write_text("no trace\nat all\n")
    ended = attempt_ended(closed(journal, end()), tmp_path, 10, [])
    assert not [metric for metric in ended.metrics if metric[0].startswith("memory/")]
    assert "trace.csv" in {path.name for path in ended.files}


def test_reused_attempt_is_a_tag(journal: Journal) -> None:
    row = closed(journal, end())
    assert attempt_reused(row).tags == {"reused.G.1": row.id}


@pytest.mark.parametrize("kind", [EventKind.NOTE, EventKind.PROGRESS])
def test_events_without_figures_are_not_sent(kind: EventKind) -> None:
    assert event_metrics([Event("2026-01-01T00:00:00.000000Z", kind, text="x", values={"a": 1.0})]) == []


def test_steps_and_memory_at_phases_are_metrics() -> None:
    phase = Event(
        "2026-01-01T00:00:00.000000Z", EventKind.PHASE, phase="exported", values={"device_mib": 5.0}
    )
    metrics = event_metrics([phase, step(7, 0.5)])
    assert metrics[0] == ("phase/exported/device_mib", 5.0, 1767225600000, 0)
    assert ("loss", 0.5, 7) in {(name, value, number) for name, value, _, number in metrics}


def test_recipe_is_flat_with_dotted_names() -> None:
    recipe = {"a": {"b": {"c": 1}}, "empty": {}, "list": [1, {"x": "字"}], "on": True}
    assert flat(recipe) == {"a.b.c": "1", "empty": "{}", "list": '[1, {"x": "字"}]', "on": "True"}


def test_thinning_keeps_the_peak_and_the_order() -> None:
    samples = [
        MemorySample(f"2026-01-01T00:00:{i % 60:02d}.000000Z", float(i * 7919 % 1000), 0, 0)
        for i in range(997)
    ]
    few = thinned(samples, 100)
    assert len(few) == 100
    assert max(s.pid_mib for s in few) == max(s.pid_mib for s in samples)
    places = [samples.index(s) for s in few]
    assert places == sorted(places)
    assert thinned(samples[:50], 100) == samples[:50]
