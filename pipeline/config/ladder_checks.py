"""What is wrong with a ladder and with a trainer's command, and the rungs that make a difference to that trainer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from pipeline.core.settings import Cause, LadderSettings, Rung, TrainerSettings
from pipeline.core.types import Outcome
from pipeline.run.ladder import _ARITHMETIC, _fits, _is_number, _typed
from stages.contract.command import placeholders, template_problems
from stages.contract.serial import did_you_mean


def ladder_problems(ladder: LadderSettings, recipe: Collection[str]) -> list[str]:
    """All problems of the ladder, each as `key: value: remedy`.

    Args:
        ladder: the rungs.
        recipe: the keys that a stage's recipe has, or the recipe itself: then values of a wrong type are
            found too.
    """
    recipe = _typed(recipe) if isinstance(recipe, Mapping) else recipe
    problems: list[str] = []
    if ladder.max_attempts < 1:
        problems.append(f"max_attempts: {ladder.max_attempts}: must be 1 or more; 1 never retries")
    for i, rung in enumerate(ladder.rungs):
        where = f"rungs[{i}]"
        if rung.after is Outcome.PASSED:
            problems.append(f"{where}.after: passed: nothing follows it; name another outcome")
        if not rung.change:
            problems.append(f"{where}.change: empty: a retry must change something")
        if not rung.why.strip():
            problems.append(f"{where}.why: empty: say the reason, it is written into the ledger")
        if rung.repeat and any(_competes(rung, later) for later in ladder.rungs[i + 1 :]):
            problems.append(
                f"{where}.repeat: true: only the last rung after {rung.after} may repeat; those behind it would starve"
            )
        for key, value in rung.change.items():
            problems += _problems_of_change(f"{where}.change.{key}", key, value, recipe)
    return problems


def _competes(rung: Rung, later: Rung) -> bool:
    """Whether both can follow one and the same attempt."""
    causes = {rung.cause, later.cause}
    return rung.after is later.after and (len(causes) == 1 or Cause.ANY in causes)


def _problems_of_change(where: str, key: str, value: Any, recipe: Collection[str]) -> list[str]:
    if key not in recipe:
        return [f"{where}: {value!r}: no such recipe key{did_you_mean(key, recipe)}"]
    if not isinstance(value, str) or value[:1] not in ("*", "+"):
        if isinstance(recipe, Mapping) and not _fits(recipe[key], value):
            return [f"{where}: {value!r}: the recipe has {recipe[key]!r} there: give a value of its type"]
        return []
    if not _ARITHMETIC.fullmatch(value):
        return [f"{where}: {value!r}: reads like arithmetic but is none: write '*0.5' or '+20'"]
    if isinstance(recipe, Mapping) and not _is_number(recipe[key]):
        return [
            f"{where}: {value!r}: arithmetic on {recipe[key]!r}, which is no number: give the new value itself"
        ]
    return []


def trainer_problems(trainer: TrainerSettings) -> list[str]:
    """All problems, each as `key: value: remedy`."""
    if not trainer.external:
        return []
    if not trainer.command.strip():
        return ["command: empty: give the program's command line, as conf/trainer/external.yaml does"]
    return [f"command: {problem}" for problem in template_problems(trainer.command)]


def usable(ladder: LadderSettings, trainer: TrainerSettings) -> LadderSettings:
    """The rungs that make a difference: another program sees only what its command names, and its rows."""
    if not trainer.external:
        return ladder
    seen = {"data", *placeholders(trainer.command)}
    return replace(ladder, rungs=[rung for rung in ladder.rungs if seen & set(rung.change)])
