"""What lies in an attempt's folder beside the logs: requests, command, what it is judged by, verdict, probes
and trace.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.core.hashing import sha256_file
from pipeline.core.settings import Settings, StageKind, StageSettings
from pipeline.core.types import Attempt, Change, ProbeRow, StartFrom, Verdict, WeightRef
from pipeline.guard.trace import TraceError, load_samples
from pipeline.ledger.step_plot import STEPS_NAME, plot_steps
from pipeline.ledger.trace_report import phases_report, plot_trace
from pipeline.processes.stage_process import Job, ProcessResult, StageCommands, write_request
from pipeline.run.stage_request import stage_job, stage_request
from stages.contract.event_reader import read_events
from stages.contract.events import EventKind
from stages.contract.recipe import Recipe
from stages.contract.serial import dump


@dataclass(frozen=True)
class AttemptStart:
    """Where an attempt starts, and what led to it."""

    recipe: Recipe
    weight: WeightRef
    """Its input."""
    start_from: StartFrom = StartFrom.INPUT
    changes: tuple[Change, ...] = ()
    why: str = ""


AGAIN = "again-"
"""Before the files of the request that repeats an attempt by hand: it writes beside the first one's files,
never over them.
"""
JUDGING_NAME = "judging.json"
REPORT_NAME = "trace.json"


def again_job(stage: StageSettings, folder: str, commands: StageCommands) -> Job:
    """The job that `command.txt` runs."""
    return Job(stage_job(stage, folder, commands).command, folder, AGAIN)


def write_folder(
    attempt: Attempt,
    stage: StageSettings,
    start: AttemptStart,
    settings: Settings,
    commands: StageCommands,
    root: Path,
    resume: str = "",
) -> Job:
    """Makes the attempt's folder, with its request and with the request and command that repeat it by hand,
    from the beginning.

    Args:
        attempt: as data.
        stage: tells the kind.
        start: its recipe and input weight.
        settings: of the run.
        commands: how stage processes are started.
        root: what relative paths are relative to.
        resume: the saved state that the attempt goes on from.

    Raises:
        FileExistsError: if the folder holds a request already.
    """
    job = stage_job(stage, attempt.folder, commands)
    for each, state in ((job, resume), (again_job(stage, attempt.folder, commands), "")):
        write_request(
            each, stage_request(stage, start.recipe, start.weight, each, settings.guard, state), root
        )
    folder = root / attempt.folder
    (folder / "command.txt").write_text(attempt.command + "\n", encoding="utf-8")
    (folder / JUDGING_NAME).write_text(dump(judging(settings, stage, root)), encoding="utf-8")
    return job


def judging(settings: Settings, stage: StageSettings, root: Path) -> dict[str, Any]:
    """All that a verdict depends on beside the weight."""
    if stage.kind is StageKind.INIT:
        return {}
    base = "" if settings.from_nothing else sha256_file(root / settings.model.weight)
    probes = {file: sha256_file(root / file) for file in stage.probes.files}
    return {"base": base, "probes": probes, "settings": json.loads(dump(stage.probes))}


def write_verdict(verdict: Verdict, folder: Path) -> None:
    """`verdict.json` with everything, and `probes.csv` with a line for each probe."""
    (folder / "verdict.json").write_text(dump(verdict), encoding="utf-8")
    names = [f.name for f in fields(ProbeRow)]
    with (folder / "probes.csv").open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in verdict.rows:
            writer.writerow(
                [" ".join(row.flags) if name == "flags" else getattr(row, name) for name in names]
            )


def write_trace(attempt: Attempt, job: Job, ended: ProcessResult, limit_gb: float, root: Path) -> list[str]:
    """`trace.json` in the user's own format with figures and steps beside the phases, `trace.png`, and
    `steps.png`.

    A trace that cannot be read is reported, and spoils nothing.

    Returns:
        What was wrong with the trace, if anything.
    """
    folder = root / attempt.folder
    try:
        samples = load_samples(root / job.path("trace.csv"))
        events, bad = read_events(root / job.path("events.jsonl"))
        phases = [event for event in events if event.kind is EventKind.PHASE]
        steps = [event for event in events if event.kind is EventKind.STEP]
        report = phases_report(samples, phases, ended.report.child_pid if ended.report else 0)
        report["PeakMemoryMiB"] = round(max((sample.pid_mib for sample in samples), default=0.0))
        report["Figures"] = ended.result.figures
        report["Steps"] = [{"Step": step.step, **step.values} for step in steps]
        report["Recipe"] = attempt.recipe
        (folder / REPORT_NAME).write_text(
            json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        title = f"{attempt.experiment} {attempt.stage} attempt {attempt.number}"
        plot_trace(samples, phases, limit_gb, title, folder / "trace.png")
        if steps:
            plot_steps(steps, folder / STEPS_NAME, title)
    except TraceError as error:
        return [str(error)]
    return bad
