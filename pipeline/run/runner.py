"""A run of an experiment: for each stage attempt → judge → next stage, or the ladder's next attempt, until
passed or used up.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.reader import with_sources
from pipeline.core.settings import Settings, StageKind, StageSettings
from pipeline.core.types import Outcome, RunEnd, StartFrom
from pipeline.evaluate.answers import AnswerCache, ProbeQuery, ProbingError
from pipeline.ledger.ledger import Ledger
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import StageCommands
from pipeline.run import summary
from pipeline.run.attempt import (
    AttemptResult,
    AttemptStart,
    RunContext,
    RunInterrupted,
    callbacks,
    carry_out,
    find_finished,
    prepare,
)
from pipeline.run.ladder import LadderExhausted, PastAttempt, next_attempt
from pipeline.run.plan import WeightRef, base_model, code_key
from stages.contract import Answer, ExitCode
from stages.contract.signals import StopSignals

NO_RETRY = (ExitCode.BAD_INPUT, ExitCode.DISAGREE, ExitCode.NO_SPACE)
"""Exit codes of a stage that no change of a recipe can cure."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and the exit code that says so: 0 passed, 1 failed, 2 bad input, 130 interrupted."""

    end: RunEnd
    exit_code: int
    done: tuple[AttemptResult, ...]


def new_run_id(experiment: str) -> str:
    """`YYYYMMDD-HHMMSS-<experiment>-<4 hex>`, in local time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment}-{secrets.token_hex(2)}"


class Runner:
    """Carries out one run. The ledger is open, the settings are checked, the lock is held."""

    def __init__(
        self,
        settings: Settings,
        root: Path,
        ledger: Ledger,
        progress: Progress,
        stop: StopSignals,
        commands: StageCommands,
        command: str,
    ) -> None:
        """Readies a run.

        Args:
            settings: without problems.
            root: what relative paths are relative to.
            ledger: records it.
            progress: shows it.
            stop: entered; says when the user wants an end.
            commands: how stage processes are started.
            command: the line that started this run, and resumes it.
        """
        code = code_key()
        book = AnswerCache.of(settings, root, commands, code)
        run_id = new_run_id(settings.name)
        self._context = RunContext(root, settings, run_id, commands, code, book, ledger, progress, stop)
        self._command = command
        self._base = base_model(settings, root)
        self._done: list[AttemptResult] = []

    def run(self, settings_yaml: str) -> RunResult:
        """Carries out all stages, and records the run.

        Args:
            settings_yaml: the composed settings, for the record.
        """
        context = self._context
        context.ledger.open_run(context.run_id, context.settings.name, self._command, settings_yaml)
        if self._base.weight:
            context.ledger.base_weight(self._base.weight, self._base.sha256)
        context.progress.say(f"run {context.run_id}")
        for attempt in context.ledger.interrupted():
            context.progress.say(
                f"  interrupted before, run again if it is part of this 先前中斷: {attempt.folder}"
            )
        try:
            result = self._stages()
        except RunInterrupted as stopped:
            context.ledger.interrupt_run(context.run_id, str(stopped))
            end = RunEnd(
                Outcome.BROKEN,
                summary=(*summary.lines(self._done), str(stopped)),
                resume_command=self._command,
            )
            return RunResult(end, ExitCode.INTERRUPTED, tuple(self._done))
        context.ledger.close_run(context.run_id, result.end)
        return result

    def _stages(self) -> RunResult:
        model = self._base
        for index, stage in enumerate(self._context.settings.stages):
            try:
                last = self._stage(index, model)
            except ProbingError as error:
                if self._context.stop.count or error.ended.from_outside:
                    who = "stopped by the user" if self._context.stop.count else "killed from outside"
                    raise RunInterrupted(f"{who} while the base weight was asked 中斷") from error
                return self._failed(Outcome.BROKEN, str(error), error.ended.exit_code)
            if last.end.outcome is Outcome.MEASURED:  # no stage comes after it
                return RunResult(
                    RunEnd(Outcome.MEASURED, summary=summary.lines(self._done)),
                    ExitCode.OK,
                    tuple(self._done),
                )
            if last.model is None:
                return self._failed(last.end.outcome, self._why, last.end.exit_code)
            self._context.progress.say(f"stage {stage.name}: passed → {last.model.weight}")
            model = last.model
        end = RunEnd(Outcome.PASSED, model.weight, model.sha256, summary.lines(self._done))
        return RunResult(end, ExitCode.OK, tuple(self._done))

    def _failed(self, outcome: Outcome, why: str, exit_code: int) -> RunResult:
        lines = (*summary.lines(self._done), why)
        code = ExitCode.BAD_INPUT if exit_code == ExitCode.BAD_INPUT else ExitCode.FAILED
        return RunResult(
            RunEnd(outcome, summary=lines, resume_command=self._command), code, tuple(self._done)
        )

    def _stage(self, index: int, model: WeightRef) -> AttemptResult:
        """Tries a stage until it passes or nothing is left to try; `_why` then says why not."""
        stage = self._context.settings.stages[index]
        start = AttemptStart(stage.recipe, model)
        tried: list[PastAttempt] = []
        rung: int | None = None
        while True:
            done = self._attempt(index, len(tried) + 1, start)
            self._done.append(done)
            if done.model is not None or done.end.outcome is Outcome.MEASURED:
                return done
            self._say_failed(done)
            if done.end.exit_code in NO_RETRY:
                self._why = f"{stage.name}: no retry can help: {done.end.error.strip()}"
                return done
            tried.append(PastAttempt(start.recipe, done.end.outcome, rung, start.start_from, done.cause))
            step = next_attempt(stage.recipe, tried, stage.ladder)
            if isinstance(step, LadderExhausted):
                self._why = f"{stage.name}: {step.reason}"
                return done
            rung = step.rung
            source = self._base if step.start_from is StartFrom.BASE else model
            start = AttemptStart(with_sources(step.recipe), source, step.start_from, step.changes, step.why)
            self._context.progress.say(f"  → {step.why}")

    def _attempt(self, index: int, number: int, start: AttemptStart) -> AttemptResult:
        context, stage = self._context, self._context.settings.stages[index]
        if context.stop.count:
            raise RunInterrupted(f"{stage.name} attempt {number}: not begun, stopped by the user 使用者中斷")
        attempt = prepare(context, index, number, start)
        found = find_finished(context, stage, attempt, start.model)
        if found:
            context.ledger.reuse_attempt(context.run_id, found.attempt)
            context.progress.say(
                f"{stage.name} attempt {number}: found in the ledger 沿用: {found.end.outcome.value}"
            )
            return found
        return carry_out(context, index, attempt, start.model, self._base_answers(stage))

    def _base_answers(self, stage: StageSettings) -> Sequence[Answer] | None:
        """The base weight's answers, before the first training that needs them: a bad base weight shows
        itself here.
        """
        context = self._context
        if stage.kind is StageKind.INIT or not self._base.weight or stage.measures:
            return None
        context.progress.begin("base weight · probes")
        folder = f"{context.settings.artifacts}/runs/{context.run_id}/base-{stage.name}"
        return context.book.ask(
            ProbeQuery(self._base, stage.probes, stage.recipe), folder, "answers", callbacks(context)
        )

    def _say_failed(self, done: AttemptResult) -> None:
        end = done.end
        self._context.progress.say(f"{done.attempt.stage} attempt {done.attempt.number}: {end.outcome.value}")
        evidence = end.verdict.evidence if end.verdict else (end.error.strip().splitlines() or [""])[-1:]
        for line in list(evidence)[:4]:
            self._context.progress.say(f"  - {line}")
        if end.output_weight:
            self._context.progress.say(f"  weight 權重 → {end.output_weight}")
