"""What the next attempt of a stage changes after each verdict, and from which weight it starts."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.core.settings import Cause, LadderSettings, Rung
from pipeline.core.types import Change, Outcome, StartFrom
from stages.contract import TrainRequest
from stages.contract.serial import to_jsonable

_ARITHMETIC = re.compile(r"([*+])\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_FLOATS = frozenset(name for name, kind in typing.get_type_hints(TrainRequest).items() if kind is float)


@dataclass(frozen=True)
class PastAttempt:
    """One finished attempt as the ladder sees it."""

    recipe: Mapping[str, Any]
    outcome: Outcome
    rung: int | None = None
    """Index in `LadderSettings.rungs` of the rung that led to this attempt; None for the first."""
    start_from: StartFrom = StartFrom.INPUT
    cause: Cause = Cause.OTHER
    """Matters after `broken`: `NON_FINITE` if the loss or the logits were."""


@dataclass(frozen=True)
class NextAttempt:
    """The next attempt."""

    recipe: dict[str, Any]
    changes: tuple[Change, ...]
    """Against the attempt before it. Never empty."""
    start_from: StartFrom
    why: str
    rung: int


@dataclass(frozen=True)
class LadderExhausted:
    """There is no next attempt."""

    reason: str


def next_attempt(
    recipe: Mapping[str, Any], history: Sequence[PastAttempt], settings: LadderSettings
) -> NextAttempt | LadderExhausted:
    """Decides what follows the last attempt of a stage.

    The first rung for its outcome that is not used up is taken, unless its arithmetic cannot move a value
    (half of a batch of 1) or it leads to a recipe that was tried: then the one after it is.

    Args:
        recipe: the stage's configured recipe. A key that an attempt's own recipe lacks is taken from here.
        history: every attempt of the stage, oldest first; the last has just failed.
        settings: the ladder, whose `check` found nothing.

    Returns:
        The next attempt, whose recipe differs from every one tried; or why there is none.

    Raises:
        ValueError: if nothing was tried yet or the last attempt passed, or a rung does arithmetic on what is
            no number.
    """
    if not history:
        raise ValueError(
            "history is empty: the first attempt runs the stage's own recipe; the ladder begins after it"
        )
    last = history[-1]
    if last.outcome is Outcome.PASSED:
        raise ValueError("the last attempt passed: there is nothing to retry")
    if len(history) >= settings.max_attempts:
        return LadderExhausted(f"{len(history)} of at most {settings.max_attempts} attempts are used up")
    present = _typed({**recipe, **last.recipe})
    tried = [to_jsonable({**recipe, **attempt.recipe}) for attempt in history]
    fitting = _fitting(last, settings)
    if not fitting:
        return LadderExhausted(f"no rung of the ladder follows {last.outcome} ({last.cause})")
    used = {attempt.rung for attempt in history}
    for i in fitting:
        rung = settings.rungs[i]
        if i in used and not (rung.repeat and i == fitting[-1]):
            continue
        new = _climb(present, rung)
        if new is not None and to_jsonable(new) not in tried:
            return NextAttempt(new, changes(present, new), _start(rung, last), rung.why, i)
    return LadderExhausted(
        f"every rung after {last.outcome} is used, moves nothing, or leads to a recipe that was tried already"
    )


def _fitting(last: PastAttempt, settings: LadderSettings) -> list[int]:
    """Indices of the rungs for the last outcome and its cause."""
    return [
        i
        for i, rung in enumerate(settings.rungs)
        if rung.after is last.outcome and rung.cause in (Cause.ANY, last.cause)
    ]


def _climb(present: Mapping[str, Any], rung: Rung) -> dict[str, Any] | None:
    """The recipe after a rung; None if its arithmetic leaves a value where it is, or leads out of the
    numbers.

    A value that is set may hold already (the data file, at the second fall): the rung still moves what it
    multiplies.
    """
    new = dict(present)
    for key, value in rung.change.items():
        match = _ARITHMETIC.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            new[key] = value
            continue
        old = present.get(key)
        if not _is_number(old):
            raise ValueError(
                f"ladder: {key}: {value!r} on {old!r}, which is no number: give the new value itself"
            )
        moved = _moved(old, match[1], float(match[2]))
        if moved is None or moved == old:
            return None
        new[key] = moved
    return _typed(new)


def _typed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe whose rates are floats: YAML reads `clip_norm: 1` as a whole number, and half of that would
    round up to 1.
    """
    return {
        key: float(value) if key in _FLOATS and _is_number(value) else value for key, value in recipe.items()
    }


def _moved(old: Any, sign: str, by: float) -> int | float | None:
    result = old * by if sign == "*" else old + by
    if not math.isfinite(result):
        return None
    shown = float(f"{result:.12g}")  # 1e-3 * 0.3 is to read 0.0003, in the command and in the ledger
    return max(1, math.ceil(shown)) if isinstance(old, int) else shown


def _start(rung: Rung, last: PastAttempt) -> StartFrom:
    if rung.start_from is not None:
        return rung.start_from
    return StartFrom.BASE if last.outcome in (Outcome.COLLAPSED, Outcome.BROKEN) else last.start_from


def _fits(old: Any, new: Any) -> bool:
    """Whether a value may stand where the recipe has `old`: the same type, or a whole number for a float."""
    if isinstance(old, float):
        return _is_number(new)
    if isinstance(old, str):
        return isinstance(new, str)  # an enum of strings and its value
    return old is None or type(new) is type(old)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """The settings that differ between two recipes, in the old one's order, new keys last; None stands for a
    missing key.
    """
    keys = [*old, *(key for key in new if key not in old)]
    pairs = ((key, to_jsonable(old.get(key)), to_jsonable(new.get(key))) for key in keys)
    return tuple(Change(key, before, after) for key, before, after in pairs if before != after)
