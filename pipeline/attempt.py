"""One attempt of a stage in its own folder: train, answer, judge, and put the weight where its verdict says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import attempt_files as files
from pipeline import placing, saved_states
from pipeline.answers import AnswerBook, AnswersFailed, Question, load_probes
from pipeline.guard_words import BLIND_FIGURE
from pipeline.hashing import sha256_file
from pipeline.interrupt import Stop
from pipeline.judge import judge
from pipeline.ladder import Cause
from pipeline.ledger import Ledger
from pipeline.plan import WEIGHT_NAME, Model, attempt_folder, content_key, data_hashes
from pipeline.process import Ended, Job, StageCommands, Watcher, command_line, run_guarded
from pipeline.progress import Progress
from pipeline.settings import Settings, StageKind, StageSettings
from pipeline.words import Attempt, AttemptEnd, Change, Outcome, StartFrom, Verdict
from stages.contract import Answer, ExitCode

_MADE_ANEW = (Outcome.BROKEN, Outcome.OVER_LIMIT, Outcome.MEASURED)
"""What no later run takes from the ledger."""


class Interrupted(RuntimeError):
    """The user asked to stop. What is unfinished is closed as interrupted, and run again by the same command."""


@dataclass(frozen=True)
class Bench:
    """What all attempts of a run share."""

    root: Path
    settings: Settings
    run_id: str
    commands: StageCommands
    code: str
    book: AnswerBook
    ledger: Ledger
    progress: Progress
    stop: Stop


@dataclass(frozen=True)
class Start:
    """Where an attempt starts, and what led to it."""

    recipe: dict[str, Any]
    model: Model
    start_from: StartFrom = StartFrom.INPUT
    changes: tuple[Change, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Done:
    """A finished attempt with what the ladder and the next stage need."""

    attempt: Attempt
    end: AttemptEnd
    model: Model | None
    """What the next stage starts from; None unless passed."""
    cause: Cause = Cause.OTHER
    reused: bool = False


def prepare(bench: Bench, index: int, number: int, start: Start) -> Attempt:
    """The attempt as data: its folder, key, command. Nothing is written yet.

    Args:
        bench: the run's.
        index: of the stage, from 0.
        number: of the attempt within its stage, from 1.
        start: its recipe and input.
    """
    stage = bench.settings.stages[index]
    folder = attempt_folder(bench.settings, bench.run_id, index, stage.name, number)
    return Attempt(
        run_id=bench.run_id,
        experiment=bench.settings.name,
        stage=stage.name,
        number=number,
        content_key=content_key(stage, start.recipe, start.model, bench.root, bench.code),
        folder=folder,
        command=command_line(files.again_job(stage, folder, bench.commands), bench.settings.guard, bench.root),
        recipe=start.recipe,
        start_from=start.start_from,
        input_weight=start.model.weight,
        input_sha256=start.model.sha256,
        data=data_hashes(start.recipe, bench.root),
        changes=start.changes,
        why=start.why,
    )


def find_finished(bench: Bench, stage: StageSettings, attempt: Attempt, model: Model) -> Done | None:
    """The same attempt of an earlier run, if it was judged by the same measure and, having passed, its weight is still there."""
    hit = bench.ledger.find_finished(attempt.content_key) if bench.settings.reuse else None
    if hit is None or hit[1].verdict is None or hit[1].outcome in _MADE_ANEW:
        return None
    old, end = hit
    record = bench.root / old.folder / files.JUDGING_NAME
    if not record.is_file() or json.loads(record.read_text(encoding="utf-8")) != files.judging(bench.settings, stage, bench.root):
        return None
    passed = end.outcome is Outcome.PASSED
    folder = str(Path(end.output_weight).parent) if stage.kind is StageKind.INIT else model.dir
    return Done(old, end, Model(folder, end.output_weight, end.output_sha256) if passed else None, reused=True)


def carry_out(bench: Bench, index: int, attempt: Attempt, model: Model, base: Sequence[Answer] | None) -> Done:
    """Runs an attempt to its verdict, and records it.

    Args:
        bench: the run's.
        index: of the stage, from 0.
        attempt: as `prepare` gives it.
        model: its input.
        base: the base weight's answers to the stage's probes; None if there is no base weight.

    Raises:
        Interrupted: if the user asked to stop before there was a verdict; the attempt is closed as interrupted.
    """
    began = time.monotonic()
    stage = bench.settings.stages[index]
    title = f"[{index + 1}/{len(bench.settings.stages)}] {stage.name} · attempt {attempt.number}"
    bench.ledger.open_attempt(attempt)
    state = saved_states.latest(bench.ledger, attempt, bench.root)
    if state:
        bench.progress.say(f"  goes on from {state} 從中斷處繼續")
    job = files.write_folder(attempt, stage, model, bench.settings, bench.commands, bench.root, state)
    bench.progress.begin(title, attempt.recipe.get("steps"))
    trained = run_guarded(job, bench.settings.guard, bench.root, _watcher(bench, attempt, "train"))
    made = _made(stage, model, job, trained, bench.root)
    bench.ledger.stage_finished(attempt, replace(trained.result, output=made.weight, sha256=made.sha256))

    def write_trace() -> None:
        for fault in files.write_trace(attempt, job, trained, bench.settings.guard.gpu_limit_gb, bench.root):
            bench.progress.say(f"  trace: {fault}")

    verdict, failed = None, trained
    if trained.exit_code == ExitCode.OK:
        saved_states.drop(bench.ledger, attempt, bench.root)
    if trained.exit_code != ExitCode.OK:
        write_trace()
    elif stage.kind is StageKind.INIT or stage.measures:
        verdict = Verdict(Outcome.MEASURED if stage.measures else Outcome.PASSED)
        write_trace()
    else:
        bench.progress.begin(f"{title} · probes", None)
        try:
            _go_on(bench, attempt)
            verdict = _verdict(bench, stage, attempt, made, base, write_trace)
        except AnswersFailed as error:
            failed = error.ended
    if verdict is None and (failed.exit_code == ExitCode.INTERRUPTED or bench.stop.asked):
        _interrupt(bench, attempt)
    if verdict is None and failed.from_outside:
        _interrupt(bench, attempt, "killed from outside, by a person or by the kernel out of memory (dmesg) 被外部終止")
    return _settle(bench, stage, attempt, made, trained, failed, verdict, time.monotonic() - began)


def watcher(bench: Bench) -> Watcher:
    """For a process that belongs to no attempt."""
    return Watcher(on_event=bench.progress.event, on_memory=bench.progress.memory, stop=bench.stop)


def _watcher(bench: Bench, attempt: Attempt, role: str, meanwhile: Callable[[], None] = lambda: None) -> Watcher:
    def on_event(event: Any) -> None:
        bench.progress.event(event)
        if role == "train":
            bench.ledger.event(attempt, event)

    def on_start(pid: int) -> None:
        bench.ledger.process_started(attempt, pid, role)

    return Watcher(on_start, on_event, bench.progress.memory, meanwhile, bench.stop)


def _made(stage: StageSettings, model: Model, job: Job, trained: Ended, root: Path) -> Model:
    """What the process wrote; with an empty hash if it wrote no weight. A weight without a result (a crash) is hashed here."""
    is_model = stage.kind is StageKind.INIT
    folder = job.path("model") if is_model else model.dir
    weight = f"{folder}/{WEIGHT_NAME}" if is_model else job.path(WEIGHT_NAME)
    written = (root / weight).is_file()
    return Model(folder, weight, trained.result.sha256 or sha256_file(root / weight) if written else "")


def _verdict(
    bench: Bench,
    stage: StageSettings,
    attempt: Attempt,
    made: Model,
    base: Sequence[Answer] | None,
    meanwhile: Callable[[], None],
) -> Verdict:
    question = Question(made, stage.probes, attempt.recipe)
    answers = bench.book.ask(question, attempt.folder, "answers", _watcher(bench, attempt, "probe", meanwhile))
    verdict = judge(load_probes(stage.probes.files, bench.root), answers, base, stage.probes.thresholds)
    bench.ledger.judged(attempt, verdict)
    files.write_verdict(verdict, bench.root / attempt.folder)
    return verdict


def _go_on(bench: Bench, attempt: Attempt) -> None:
    if bench.stop.asked:
        _interrupt(bench, attempt)


def _interrupt(bench: Bench, attempt: Attempt, why: str = "stopped by the user 使用者中斷") -> None:
    reason = f"{attempt.stage} attempt {attempt.number}: {why}"
    bench.ledger.interrupt_attempt(attempt, reason)
    raise Interrupted(reason)


def _settle(
    bench: Bench,
    stage: StageSettings,
    attempt: Attempt,
    made: Model,
    trained: Ended,
    failed: Ended,
    verdict: Verdict | None,
    seconds: float,
) -> Done:
    """Puts the weight in its place and closes the attempt in the ledger."""
    outcome = verdict.outcome if verdict else outcome_of(failed.exit_code)
    placed = _place(bench, stage, attempt, made, outcome) if made.sha256 else None
    end = AttemptEnd(
        outcome=outcome,
        exit_code=failed.exit_code,
        verdict=verdict,
        error=failed.error,
        output_weight=placed.weight if placed else "",
        output_sha256=placed.sha256 if placed else "",
        peak_mib=trained.report.figures.peak_mib if trained.report else 0.0,
        seconds=seconds,
        figures=trained.result.figures | ({BLIND_FIGURE: 1.0} if trained.report and trained.report.blind else {}),
    )
    if placed and outcome is not Outcome.PASSED:
        placing.write_reason((bench.root / placed.weight).parent, attempt, end)
    bench.ledger.close_attempt(attempt, end)
    return Done(attempt, end, placed if outcome is Outcome.PASSED else None, _cause(failed, verdict))


def _place(bench: Bench, stage: StageSettings, attempt: Attempt, made: Model, outcome: Outcome) -> Model:
    """Moves the weight, kept or discarded; returns it in its place."""
    root, artifacts = bench.root, bench.settings.artifacts
    is_model = stage.kind is StageKind.INIT
    source = root / (made.dir if is_model else made.weight)
    if outcome is Outcome.PASSED:
        place = placing.kept_place(source, root / artifacts / "weights" / attempt.experiment, stage.name, made.sha256)
    else:
        name = f"{attempt.run_id}-{attempt.stage}-attempt{attempt.number}"
        place = root / artifacts / "_trash" / name / source.name
    target = str(place.relative_to(root) if place.is_relative_to(root) else place)
    moved = Model(target, f"{target}/{WEIGHT_NAME}", made.sha256) if is_model else Model(made.dir, target, made.sha256)
    bench.ledger.moving_weight(made.weight, moved.weight, outcome.value)
    placing.move(source, place, made.sha256)
    return moved


def outcome_of(code: int) -> Outcome:
    """What an exit code means where there are no answers to judge by."""
    return Outcome.OVER_LIMIT if code in (ExitCode.GUARD_KILLED, ExitCode.OVER_LIMIT) else Outcome.BROKEN


def _cause(failed: Ended, verdict: Verdict | None) -> Cause:
    if failed.exit_code == ExitCode.NON_FINITE or (verdict is not None and verdict.figures.get("non_finite", 0.0) > 0):
        return Cause.NON_FINITE
    if verdict is not None and verdict.outcome is Outcome.UNDERFIT:
        missing = any(check.figure.startswith("identity") for check in verdict.checks if not check.ok)
        return Cause.OTHER if missing else Cause.SPILL
    return Cause.OTHER
