"""The folder of an attempt: requests, report, pictures and tables, each written once."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pipeline.evaluate.answers import read_answers
from pipeline.run import summary
from pipeline.run.session import run
from stages.contract.requests import TrainRequest
from stages.contract.serial import load_file
from tests.pipeline.project import COMMANDS, project, settings_of
from tests.pipeline.run.test_attempt import attempt

__all__ = ["project"]


def test_the_folder_tells_the_whole_story(project: Path) -> None:
    done = attempt(project)
    folder = project / done.attempt.folder
    assert done.attempt.folder == "artifacts/runs/run/01-G-attempt1"
    request = load_file(TrainRequest, folder / "request.json")
    assert (request.input_weight, request.lr, request.steps) == ("model/base.dat", 1e-3, 12)
    assert not [
        value for value in vars(request).values() if isinstance(value, str) and value.startswith("/")
    ], "paths from the root"
    trace = json.loads((folder / "trace.json").read_text(encoding="utf-8"))
    assert [sample["Phase"] for sample in trace["Samples"]] == ["start", "exported"]
    for name in ("trace.png", "steps.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG"), name
    with (folder / "probes.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(read_answers(folder / "answers.jsonl")) == 10
    assert {row["ok"] for row in rows} == {"True"}
    assert json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["outcome"] == "passed"
    assert done.end.figures == {"loss": 1 / 12}
    assert done.end.peak_mib > 1
    assert done.end.seconds > 0


def test_an_attempt_never_runs_into_an_old_folder(project: Path) -> None:
    old = project / "artifacts" / "runs" / "run" / "01-G-attempt1"
    old.mkdir(parents=True)
    (old / "request.json").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError):
        attempt(project)
    assert (old / "request.json").read_text(encoding="utf-8") == "mine"


def test_an_attempt_leaves_a_report_of_phases_figures_and_steps(project: Path) -> None:
    """With stand-ins for what computes; its path stands at the end of what is printed."""
    settings = settings_of(project, {"A": {"data": ["data/two.tsv"], "steps": 10}})
    result = run(settings, project, "command", "", COMMANDS)
    told = io.StringIO()
    summary.write(result.end, result.attempts, told)
    file = project / result.attempts[-1].attempt.folder / "trace.json"
    assert f"{result.attempts[-1].attempt.folder}/trace.json" in told.getvalue().splitlines()[-1]
    report = json.loads(file.read_text(encoding="utf-8"))
    assert [sample["Phase"] for sample in report["Samples"]] == ["start", "exported"]
    assert [step["Step"] for step in report["Steps"]] == list(range(1, 11)) and report["Figures"] == {
        "loss": 0.1
    }
    assert report["Recipe"]["steps"] == 10 and report["PeakMemoryMiB"] > 0
