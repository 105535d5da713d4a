"""What the next attempt of a stage changes after each verdict, and from which weight it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.recipe_change import changed, changes_between
from pipeline.core.settings import Cause, LadderSettings, Rung
from pipeline.core.types import Change, Outcome, StartFrom
from stages.contract.recipe import Recipe


@dataclass(frozen=True)
class PastAttempt:
    """One finished attempt as the ladder sees it."""

    recipe: Recipe
    outcome: Outcome
    rung: int | None = None
    """Index in `LadderSettings.rungs` of the rung that led to this attempt; None for the first."""
    start_from: StartFrom = StartFrom.INPUT
    cause: Cause = Cause.OTHER
    """Matters after `broken`: `NON_FINITE` if the loss or the logits were."""


@dataclass(frozen=True)
class NextAttempt:
    """The next attempt."""

    recipe: Recipe
    changes: tuple[Change, ...]
    """Against the attempt before it. Never empty."""
    start_from: StartFrom
    why: str
    rung: int


@dataclass(frozen=True)
class LadderExhausted:
    """There is no next attempt."""

    reason: str


def next_attempt(history: Sequence[PastAttempt], ladder: LadderSettings) -> NextAttempt | LadderExhausted:
    """Decides what follows the last attempt of a stage.

    The first rung for its outcome that is not used up is taken, unless its arithmetic cannot move a value
    (half of a batch of 1) or it leads to a recipe that was tried: then the one after it is.

    Args:
        history: every attempt of the stage, oldest first; the last has just failed.
        ladder: the rungs, without problems (see `pipeline.config.value_checks`).

    Returns:
        The next attempt, whose recipe differs from every one tried; or why there is none.

    Raises:
        ValueError: if nothing was tried yet or the last attempt passed, or a rung does arithmetic on what is
            no number.
    """
    if not history:
        raise ValueError(
            "history is empty: the first attempt has the stage's own recipe; the ladder comes after it"
        )
    last = history[-1]
    if last.outcome is Outcome.PASSED:
        raise ValueError("the last attempt passed: there is nothing to retry")
    if len(history) >= ladder.max_attempts:
        return LadderExhausted(f"{len(history)} of at most {ladder.max_attempts} attempts are used up")
    tried = [attempt.recipe for attempt in history]
    fitting = _fitting(last, ladder)
    if not fitting:
        return LadderExhausted(f"no rung of the ladder follows {last.outcome} ({last.cause})")
    used = {attempt.rung for attempt in history}
    for i in fitting:
        rung = ladder.rungs[i]
        if i in used and not (rung.repeat and i == fitting[-1]):
            continue
        new = changed(last.recipe, rung.change)
        if new is not None and new not in tried:
            return NextAttempt(new, changes_between(last.recipe, new), _start(rung, last), rung.why, i)
    return LadderExhausted(
        f"every rung after {last.outcome} is used, moves nothing, or leads to a recipe that was tried already"
    )


def _fitting(last: PastAttempt, ladder: LadderSettings) -> list[int]:
    """Indices of the rungs for the last outcome and its cause."""
    causes = (Cause.ANY, last.cause)
    return [i for i, rung in enumerate(ladder.rungs) if rung.after is last.outcome and rung.cause in causes]


def _start(rung: Rung, last: PastAttempt) -> StartFrom:
    if rung.start_from is not None:
        return rung.start_from
    return StartFrom.BASE if last.outcome in (Outcome.COLLAPSED, Outcome.BROKEN) else last.start_from
