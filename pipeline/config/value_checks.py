"""What is wrong with the values of settings beyond their types: bounds, ladders, trainers, addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.core.recipe_change import change_problems
from pipeline.core.settings import (
    Cause,
    LadderSettings,
    ProbeSettings,
    Rung,
    TrackingSettings,
    TrainerSettings,
)
from pipeline.core.types import Outcome
from stages.contract.command import placeholders, template_problems
from stages.contract.fields import bound_problems
from stages.contract.recipe import Recipe


def ladder_problems(ladder: LadderSettings, recipe: Recipe) -> list[str]:
    """All problems of a ladder, each as `key: value: remedy`.

    Args:
        ladder: the rungs.
        recipe: the stage's own, whose types and bounds the changes must keep.
    """
    problems = bound_problems(ladder)
    for i, rung in enumerate(ladder.rungs):
        where = f"rungs[{i}]"
        if rung.after is Outcome.PASSED:
            problems.append(f"{where}.after: passed: nothing follows it; name another outcome")
        if not rung.change:
            problems.append(f"{where}.change: empty: a retry must change something")
        if not rung.why.strip():
            problems.append(f"{where}.why: empty: say the reason, it is written into the ledger")
        if rung.repeat and _hides(rung, ladder.rungs[i + 1 :]):
            remedy = (
                f"only the last rung after {rung.after} may repeat; those behind it would never be reached"
            )
            problems.append(f"{where}.repeat: true: {remedy}")
        for key, value in rung.change.items():
            problems += [f"{where}.change.{key}: {text}" for text in change_problems(recipe, key, value)]
    return problems


def _hides(rung: Rung, later: Sequence[Rung]) -> bool:
    """Whether a rung that repeats keeps a later one from being reached: both can follow the same attempt."""
    return any(
        rung.after is other.after and (rung.cause is other.cause or Cause.ANY in (rung.cause, other.cause))
        for other in later
    )


def trainer_problems(trainer: TrainerSettings) -> list[str]:
    """All problems of an external trainer's command, each as `key: value: remedy`."""
    if not trainer.external:
        return []
    if not trainer.command.strip():
        return ["command: empty: give the program's command line, as conf/trainer/external.yaml does"]
    return [f"command: {problem}" for problem in template_problems(trainer.command)]


def usable_rungs(ladder: LadderSettings, trainer: TrainerSettings) -> LadderSettings:
    """The rungs that make a difference: another program sees only what its command names, and its rows."""
    if not trainer.external:
        return ladder
    seen = {"data", *placeholders(trainer.command)}
    return replace(ladder, rungs=[rung for rung in ladder.rungs if seen & set(rung.change)])


def probe_problems(probes: ProbeSettings) -> list[str]:
    """All impossible numbers of how a weight is probed and judged, each as `key: value: remedy`."""
    return [f"thresholds.{problem}" for problem in probes.thresholds.check()] + bound_problems(probes)


def tracking_problems(tracking: TrackingSettings) -> list[str]:
    """All impossible settings of MLflow, each as `key: value: remedy`."""
    problems = bound_problems(tracking)
    if tracking.uri and not re.match(
        r"(sqlite:///|https?://|postgresql|mysql|mssql|databricks)", tracking.uri
    ):
        remedy = "write sqlite:///file.db, http://host:port, or nothing for SQLite in artifacts/mlflow"
        problems.append(f"uri: {tracking.uri}: {remedy}")
    return problems
