"""One attempt of a stage in its own folder: train, answer, judge, put the weight where its verdict says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.recipe_change import recorded
from pipeline.core.settings import Cause, Settings, StageKind, StageSettings
from pipeline.core.types import Attempt, AttemptEnd, Outcome, Verdict, WeightRef
from pipeline.evaluate.answers import AnswerCache, ProbeQuery, ProbingError, load_probes
from pipeline.evaluate.judge import judge
from pipeline.guard.machine import Machine
from pipeline.guard.report import BLIND_FIGURE
from pipeline.ledger.ledger import Ledger
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import (
    Job,
    ProcessCallbacks,
    ProcessResult,
    StageCommands,
    command_line,
    run_guarded,
)
from pipeline.run import attempt_files as files
from pipeline.run import saved_states, weight_store
from pipeline.run.attempt_files import AttemptStart
from pipeline.run.content_key import content_key
from pipeline.run.stage_request import WEIGHT_NAME, attempt_folder
from stages.contract.events import Answer, ExitCode
from stages.contract.signals import StopSignals

_MADE_ANEW = (Outcome.BROKEN, Outcome.OVER_LIMIT, Outcome.MEASURED)
"""What no later run takes from the ledger."""


class RunInterrupted(RuntimeError):
    """The user asked to stop. What is unfinished is closed as interrupted; the same command runs it again."""


@dataclass(frozen=True)
class RunContext:
    """What all attempts of a run share."""

    root: Path
    settings: Settings
    run_id: str
    commands: StageCommands
    machine: Machine
    answers: AnswerCache
    ledger: Ledger
    progress: Progress
    stop: StopSignals

    def callbacks(self, attempt: Attempt | None = None, role: str = "train") -> ProcessCallbacks:
        """What happens while a process runs: of an attempt in a role, or of none."""

        def on_start(pid: int) -> None:
            if attempt:
                self.ledger.process_started(attempt, pid, role)

        return ProcessCallbacks(on_start, self.progress.event, self.progress.memory, self.stop)


@dataclass(frozen=True)
class AttemptResult:
    """A finished attempt with what the ladder and the next stage need."""

    attempt: Attempt
    end: AttemptEnd
    weight: WeightRef | None
    """What the next stage starts from; None unless passed."""
    cause: Cause = Cause.OTHER
    reused: bool = False


def prepare(context: RunContext, index: int, number: int, start: AttemptStart) -> Attempt:
    """The attempt as data: its folder, key, command. Nothing is written yet.

    Args:
        context: of the run.
        index: of the stage, from 0.
        number: of the attempt within its stage, from 1.
        start: its recipe and input.
    """
    stage = context.settings.stages[index]
    folder = attempt_folder(context.settings, context.run_id, index, stage.name, number)
    return Attempt(
        run_id=context.run_id,
        experiment=context.settings.name,
        stage=stage.name,
        number=number,
        content_key=content_key(stage, start.recipe, start.weight, context.root, context.machine),
        folder=folder,
        command=command_line(
            files.again_job(stage, folder, context.commands), context.settings.guard, context.root
        ),
        recipe=recorded(start.recipe, stage.kind),
        start_from=start.start_from,
        input_weight=start.weight.path,
        input_sha256=start.weight.sha256,
        data={source.path: sha256_file(context.root / source.path) for source in start.recipe.data},
        changes=start.changes,
        why=start.why,
    )


def find_finished(
    context: RunContext, stage: StageSettings, attempt: Attempt, start: AttemptStart
) -> AttemptResult | None:
    """The same attempt of an earlier run, if it was judged by the same measure and, having passed, its weight
    is still there.
    """
    hit = context.ledger.find_finished(attempt.content_key) if context.settings.reuse else None
    if hit is None or hit[1].verdict is None or hit[1].outcome in _MADE_ANEW:
        return None
    old, end = hit
    record = context.root / old.folder / files.JUDGING_NAME
    if not record.is_file() or json.loads(record.read_text(encoding="utf-8")) != files.judging(
        context.settings, stage, context.root
    ):
        return None
    passed = end.outcome is Outcome.PASSED
    folder = str(Path(end.output_weight).parent) if stage.kind is StageKind.INIT else start.weight.model_dir
    return AttemptResult(
        old, end, WeightRef(folder, end.output_weight, end.output_sha256) if passed else None, reused=True
    )


def carry_out(
    context: RunContext, index: int, attempt: Attempt, start: AttemptStart, base: Sequence[Answer] | None
) -> AttemptResult:
    """Runs an attempt to its verdict, and records it.

    Args:
        context: of the run.
        index: of the stage, from 0.
        attempt: as `prepare` gives it.
        start: its recipe and input.
        base: the base weight's answers to the stage's probes; None if there is no base weight.

    Raises:
        RunInterrupted: if the user asked to stop before there was a verdict; the attempt is closed as
            interrupted.
    """
    began = time.monotonic()
    stage = context.settings.stages[index]
    title = f"[{index + 1}/{len(context.settings.stages)}] {stage.name} · attempt {attempt.number}"
    context.ledger.open_attempt(attempt)
    state = saved_states.latest(context.ledger, attempt, context.root)
    if state:
        context.progress.say(f"  goes on from {state} 從中斷處繼續")
    job = files.write_folder(attempt, stage, start, context.settings, context.commands, context.root, state)
    context.progress.begin(title, None if stage.kind is StageKind.INIT else start.recipe.steps)
    trained = run_guarded(job, context.settings.guard, context.root, context.callbacks(attempt))
    made = _made(stage, start.weight, job, trained, context.root)
    context.ledger.stage_finished(attempt, replace(trained.result, output=made.path, sha256=made.sha256))

    def write_trace() -> None:
        for problem in files.write_trace(
            attempt, job, trained, context.settings.guard.gpu_limit_gb, context.root
        ):
            context.progress.say(f"  trace: {problem}")

    verdict, failed = None, trained
    if trained.exit_code == ExitCode.OK:
        saved_states.drop(context.ledger, attempt, context.root)
    if trained.exit_code != ExitCode.OK:
        write_trace()
    elif stage.kind is StageKind.INIT or stage.measures:
        verdict = Verdict(Outcome.MEASURED if stage.measures else Outcome.PASSED)
        write_trace()
    else:
        context.progress.begin(f"{title} · probes", None)
        try:
            _go_on(context, attempt)
            query = ProbeQuery(made, stage.probes, start.recipe)
            verdict = _verdict(context, attempt, query, base, write_trace)
        except ProbingError as error:
            failed = error.ended
    if verdict is None and (failed.exit_code == ExitCode.INTERRUPTED or context.stop.count):
        _interrupt(context, attempt)
    if verdict is None and failed.from_outside:
        _interrupt(
            context,
            attempt,
            "killed from outside, by a person or by the kernel out of memory (dmesg) 被外部終止",
        )
    return _settle(context, stage, attempt, made, trained, failed, verdict, time.monotonic() - began)


def _made(stage: StageSettings, source: WeightRef, job: Job, trained: ProcessResult, root: Path) -> WeightRef:
    """What the process wrote; with an empty hash if it wrote no weight. A weight without a result (a crash)
    is hashed here.
    """
    is_model = stage.kind is StageKind.INIT
    folder = job.path("model") if is_model else source.model_dir
    path = f"{folder}/{WEIGHT_NAME}" if is_model else job.path(WEIGHT_NAME)
    written = (root / path).is_file()
    return WeightRef(folder, path, trained.result.sha256 or sha256_file(root / path) if written else "")


def _verdict(
    context: RunContext,
    attempt: Attempt,
    query: ProbeQuery,
    base: Sequence[Answer] | None,
    write_trace: Callable[[], None],
) -> Verdict:
    """Asks the weight that the attempt made, and judges its answers."""
    callbacks = context.callbacks(attempt, "probe")
    with context.answers.asking(query, attempt.folder, "answers", callbacks) as wait_for_answers:
        write_trace()  # while the process starts up
        answers = wait_for_answers()
    probes = load_probes(query.probes.files, context.root)
    verdict = judge(probes, answers, base, query.probes.thresholds)
    files.write_verdict(verdict, context.root / attempt.folder)
    return verdict


def _go_on(context: RunContext, attempt: Attempt) -> None:
    if context.stop.count:
        _interrupt(context, attempt)


def _interrupt(context: RunContext, attempt: Attempt, why: str = "stopped by the user 使用者中斷") -> None:
    reason = f"{attempt.stage} attempt {attempt.number}: {why}"
    context.ledger.interrupt_attempt(attempt, reason)
    raise RunInterrupted(reason)


def _settle(
    context: RunContext,
    stage: StageSettings,
    attempt: Attempt,
    made: WeightRef,
    trained: ProcessResult,
    failed: ProcessResult,
    verdict: Verdict | None,
    seconds: float,
) -> AttemptResult:
    """Puts the weight in its place and closes the attempt in the ledger."""
    outcome = verdict.outcome if verdict else outcome_of(failed.exit_code)
    placed = _place(context, stage, attempt, made, outcome) if made.sha256 else None
    end = AttemptEnd(
        outcome=outcome,
        exit_code=failed.exit_code,
        verdict=verdict,
        error=failed.error,
        output_weight=placed.path if placed else "",
        output_sha256=placed.sha256 if placed else "",
        peak_mib=trained.report.figures.peak_mib if trained.report else 0.0,
        seconds=seconds,
        figures=trained.result.figures
        | ({BLIND_FIGURE: 1.0} if trained.report and trained.report.blind else {}),
    )
    if placed and outcome is not Outcome.PASSED:
        weight_store.write_reason((context.root / placed.path).parent, attempt, end)
    context.ledger.close_attempt(attempt, end)
    return AttemptResult(attempt, end, placed if outcome is Outcome.PASSED else None, _cause(failed, verdict))


def _place(
    context: RunContext, stage: StageSettings, attempt: Attempt, made: WeightRef, outcome: Outcome
) -> WeightRef:
    """Moves the weight, kept or discarded; returns it in its place."""
    root, artifacts = context.root, context.settings.artifacts
    is_model = stage.kind is StageKind.INIT
    source = root / (made.model_dir if is_model else made.path)
    if outcome is Outcome.PASSED:
        place = weight_store.kept_place(
            source, root / artifacts / "weights" / attempt.experiment, stage.name, made.sha256
        )
    else:
        name = f"{attempt.run_id}-{attempt.stage}-attempt{attempt.number}"
        place = root / artifacts / "_trash" / name / source.name
    target = str(place.relative_to(root) if place.is_relative_to(root) else place)
    moved = (
        WeightRef(target, f"{target}/{WEIGHT_NAME}", made.sha256)
        if is_model
        else WeightRef(made.model_dir, target, made.sha256)
    )
    context.ledger.moving_weight(made.path, moved.path, outcome.value)
    weight_store.move(source, place, made.sha256)
    return moved


def outcome_of(code: int) -> Outcome:
    """What an exit code means where there are no answers to judge by."""
    return Outcome.OVER_LIMIT if code in (ExitCode.GUARD_KILLED, ExitCode.OVER_LIMIT) else Outcome.BROKEN


def _cause(failed: ProcessResult, verdict: Verdict | None) -> Cause:
    if failed.exit_code == ExitCode.NON_FINITE or (
        verdict is not None and verdict.figures.get("non_finite", 0.0) > 0
    ):
        return Cause.NON_FINITE
    if verdict is not None and verdict.outcome is Outcome.UNDERFIT:
        missing = any(check.figure.startswith("identity") for check in verdict.checks if not check.ok)
        return Cause.OTHER if missing else Cause.SPILL
    return Cause.OTHER
