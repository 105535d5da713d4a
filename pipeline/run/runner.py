"""A run of an experiment: for each stage attempt → judge → next stage, or the ladder's next attempt, until it
has passed or nothing is left to try.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.settings import StageKind, StageSettings
from pipeline.core.types import Outcome, RunEnd, StartFrom, WeightRef
from pipeline.evaluate.answers import ProbeQuery, ProbingError
from pipeline.run import summary
from pipeline.run.attempt import (
    AttemptResult,
    RunContext,
    RunInterrupted,
    carry_out,
    find_finished,
    prepare,
)
from pipeline.run.attempt_files import AttemptStart
from pipeline.run.ladder import LadderExhausted, PastAttempt, next_attempt
from pipeline.run.plan import base_weight
from stages.contract.events import Answer, ExitCode

NO_RETRY = (ExitCode.BAD_INPUT, ExitCode.DISAGREE, ExitCode.NO_SPACE)
"""Exit codes of a stage that no change of a recipe can cure."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and the exit code that says so: 0 passed, 1 failed, 2 bad input, 130 interrupted."""

    end: RunEnd
    exit_code: int
    attempts: tuple[AttemptResult, ...]


@dataclass(frozen=True)
class StageOutcome:
    """How a stage ended."""

    last: AttemptResult
    why: str = ""
    """Why there is no further attempt; empty unless the last one failed."""


def new_run_id(experiment: str) -> str:
    """`YYYYMMDD-HHMMSS-<experiment>-<4 hex>`, in local time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{experiment}-{secrets.token_hex(2)}"


class Runner:
    """Carries out one run. The ledger is open, the settings are checked, the lock is held."""

    def __init__(self, context: RunContext, command: str) -> None:
        """Readies a run.

        Args:
            context: of the run.
            command: the line that started this run, and resumes it.
        """
        self._context = context
        self._command = command
        self._base = base_weight(context.settings, context.root)
        self._attempts: list[AttemptResult] = []

    def run(self, settings_yaml: str) -> RunResult:
        """Carries out all stages, and records the run.

        Args:
            settings_yaml: the composed settings, for the record.
        """
        context = self._context
        context.ledger.open_run(context.run_id, context.settings.name, self._command, settings_yaml)
        if self._base.path:
            context.ledger.base_weight(self._base.path, self._base.sha256)
        context.progress.say(f"run {context.run_id}")
        for attempt in context.ledger.interrupted():
            context.progress.say(
                f"  interrupted before, run again if it is part of this 先前中斷: {attempt.folder}"
            )
        try:
            result = self._stages()
        except RunInterrupted as stopped:
            context.ledger.interrupt_run(context.run_id, str(stopped))
            lines = (*summary.lines(self._attempts), str(stopped))
            return self._result(
                RunEnd(Outcome.BROKEN, summary=lines, resume_command=self._command), ExitCode.INTERRUPTED
            )
        context.ledger.close_run(context.run_id, result.end)
        return result

    def _stages(self) -> RunResult:
        weight = self._base
        for index, stage in enumerate(self._context.settings.stages):
            try:
                result = self._stage(index, weight)
            except ProbingError as error:
                if self._context.stop.count or error.ended.from_outside:
                    who = "stopped by the user" if self._context.stop.count else "killed from outside"
                    raise RunInterrupted(f"{who} while the base weight was asked 中斷") from error
                return self._failed(Outcome.BROKEN, str(error), error.ended.exit_code)
            end = result.last.end
            if end.outcome is Outcome.MEASURED:  # no stage comes after it
                return self._result(
                    RunEnd(Outcome.MEASURED, summary=summary.lines(self._attempts)), ExitCode.OK
                )
            if result.last.weight is None:
                return self._failed(end.outcome, result.why, end.exit_code)
            weight = result.last.weight
            self._context.progress.say(f"stage {stage.name}: passed → {weight.path}")
        return self._result(
            RunEnd(Outcome.PASSED, weight.path, weight.sha256, summary.lines(self._attempts)), ExitCode.OK
        )

    def _failed(self, outcome: Outcome, why: str, exit_code: int) -> RunResult:
        lines = (*summary.lines(self._attempts), why)
        code = ExitCode.BAD_INPUT if exit_code == ExitCode.BAD_INPUT else ExitCode.FAILED
        return self._result(RunEnd(outcome, summary=lines, resume_command=self._command), code)

    def _result(self, end: RunEnd, exit_code: int) -> RunResult:
        return RunResult(end, exit_code, tuple(self._attempts))

    def _stage(self, index: int, weight: WeightRef) -> StageOutcome:
        """Tries a stage until it passes or nothing is left to try."""
        stage = self._context.settings.stages[index]
        start = AttemptStart(stage.recipe, weight)
        past: list[PastAttempt] = []
        rung: int | None = None
        while True:
            last = self._attempt(index, len(past) + 1, start)
            self._attempts.append(last)
            if last.weight is not None or last.end.outcome is Outcome.MEASURED:
                return StageOutcome(last)
            self._say_failed(last)
            if last.end.exit_code in NO_RETRY:
                return StageOutcome(last, f"{stage.name}: no retry can help: {last.end.error.strip()}")
            past.append(PastAttempt(start.recipe, last.end.outcome, rung, start.start_from, last.cause))
            step = next_attempt(past, stage.ladder)
            if isinstance(step, LadderExhausted):
                return StageOutcome(last, f"{stage.name}: {step.reason}")
            rung = step.rung
            source = self._base if step.start_from is StartFrom.BASE else weight
            start = AttemptStart(step.recipe, source, step.start_from, step.changes, step.why)
            self._context.progress.say(f"  → {step.why}")

    def _attempt(self, index: int, number: int, start: AttemptStart) -> AttemptResult:
        context, stage = self._context, self._context.settings.stages[index]
        if context.stop.count:
            raise RunInterrupted(f"{stage.name} attempt {number}: not begun, stopped by the user 使用者中斷")
        attempt = prepare(context, index, number, start)
        found = find_finished(context, stage, attempt, start)
        if found:
            context.ledger.reuse_attempt(context.run_id, found.attempt)
            context.progress.say(
                f"{stage.name} attempt {number}: found in the ledger 沿用: {found.end.outcome.value}"
            )
            return found
        if context.settings.reuse and (other := context.ledger.find_other_code(attempt)):
            context.progress.say(
                f"{stage.name} attempt {number}: finished before by other code, trained again "
                f"程式碼已改,重新訓練: {other.folder}"
            )
        return carry_out(context, index, attempt, start, self._base_answers(stage))

    def _base_answers(self, stage: StageSettings) -> Sequence[Answer] | None:
        """The base weight's answers, before the first training that needs them: a bad base weight shows
        itself here.
        """
        context = self._context
        if stage.kind is StageKind.INIT or not self._base.path or stage.measures:
            return None
        context.progress.begin("base weight · probes")
        folder = f"{context.settings.artifacts}/runs/{context.run_id}/base-{stage.name}"
        query = ProbeQuery(self._base, stage.probes, stage.recipe)
        return context.answers.ask(query, folder, "answers", context.callbacks())

    def _say_failed(self, last: AttemptResult) -> None:
        end = last.end
        self._context.progress.say(f"{last.attempt.stage} attempt {last.attempt.number}: {end.outcome.value}")
        evidence = end.verdict.evidence if end.verdict else (end.error.strip().splitlines() or [""])[-1:]
        for line in list(evidence)[:4]:
            self._context.progress.say(f"  - {line}")
        if end.output_weight:
            self._context.progress.say(f"  weight 權重 → {end.output_weight}")
