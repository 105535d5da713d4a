"""What is wrong with the values of settings beyond their types: bounds, limits, ladders, trainers, addresses.

Every function returns all problems, each as `key: value: remedy`.
"""

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
from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Outcome
from stages.contract.command import placeholders, template_problems
from stages.contract.fields import bound_problems
from stages.contract.recipe import Recipe

_ADDRESS = re.compile(r"(sqlite:///|https?://|postgresql|mysql|mssql|databricks)")
_SAME_FIGURE = (
    ("repetition_max", "collapse_repetition", False),
    ("no_end_of_turn_max", "collapse_no_end_of_turn", False),
    ("leak_max", "collapse_leak", False),
    ("ability_ratio_min", "collapse_ability", True),
)
"""Pairs of limits on one figure, and whether they are lower limits."""


def ladder_problems(ladder: LadderSettings, recipe: Recipe) -> list[str]:
    """The problems of a ladder.

    Args:
        ladder: the rungs.
        recipe: of the stage; the changes must fit its types and bounds.
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
            remedy = f"only the last rung after {rung.after} may repeat; later ones would never be reached"
            problems.append(f"{where}.repeat: true: {remedy}")
        for key, value in rung.change.items():
            problems += [f"{where}.change.{key}: {text}" for text in change_problems(recipe, key, value)]
    return problems


def _hides(rung: Rung, later: Sequence[Rung]) -> bool:
    """Whether a rung that repeats would hide a later one: both can follow the same attempt."""
    return any(
        rung.after is other.after and (rung.cause is other.cause or Cause.ANY in (rung.cause, other.cause))
        for other in later
    )


def trainer_problems(trainer: TrainerSettings) -> list[str]:
    """The problems of an external trainer's command."""
    if not trainer.external:
        return []
    if not trainer.command.strip():
        return ["command: empty: give the program's command line, as conf/trainer/external.yaml does"]
    return [f"command: {problem}" for problem in template_problems(trainer.command)]


def usable_rungs(ladder: LadderSettings, trainer: TrainerSettings) -> LadderSettings:
    """The rungs that make a difference: an external program sees only the rows and what its command names."""
    if not trainer.external:
        return ladder
    seen = {"data", *placeholders(trainer.command)}
    return replace(ladder, rungs=[rung for rung in ladder.rungs if seen & set(rung.change)])


def probe_problems(probes: ProbeSettings) -> list[str]:
    """The problems of how a weight is probed and judged."""
    limits = [f"thresholds.{problem}" for problem in threshold_problems(probes.thresholds)]
    return limits + bound_problems(probes)


def threshold_problems(thresholds: Thresholds) -> list[str]:
    """The problems of the limits of a verdict: out of bounds, or in the wrong order."""
    problems = bound_problems(thresholds)
    for name, collapse, lower in _SAME_FIGURE:
        value, limit = getattr(thresholds, name), getattr(thresholds, collapse)
        if value is not None and (limit > value if lower else limit < value):
            side = "above" if lower else "below"
            remedy = f"lies {side} {name} ({value}); nothing could be underfit: swap them"
            problems.append(f"{collapse}: {limit}: {remedy}")
    return problems


def tracking_problems(tracking: TrackingSettings) -> list[str]:
    """The problems of MLflow's settings."""
    problems = bound_problems(tracking)
    if tracking.uri and not _ADDRESS.match(tracking.uri):
        remedy = "write sqlite:///file.db, http://host:port, or nothing for SQLite in artifacts/mlflow"
        problems.append(f"uri: {tracking.uri}: {remedy}")
    return problems
