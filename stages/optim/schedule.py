"""Factors on the learning rate: the schedule's, by step, and a parameter group's, by name."""

from __future__ import annotations

import math

from stages.contract.recipe import Schedule
from stages.contract.requests import TrainRequest


def schedule_factor(step: int, request: TrainRequest) -> float:
    """The schedule's factor on `lr` at `step` (1 is the first).

    It warms up linearly, then follows `schedule` down to `min_lr_ratio` at the last step.
    """
    if step <= request.warmup_steps:
        return step / request.warmup_steps
    if request.schedule is Schedule.CONSTANT:
        return 1.0
    done = (step - request.warmup_steps) / max(1, request.steps - request.warmup_steps)
    shape = 1 - done if request.schedule is Schedule.LINEAR else 0.5 * (1 + math.cos(math.pi * done))
    return request.min_lr_ratio + (1 - request.min_lr_ratio) * shape


def group_lr_factor(name: str, groups: dict[str, float]) -> float:
    """A parameter group's factor on the learning rate: that of the longest prefix of `name`, else 1."""
    matching = [prefix for prefix in groups if name.startswith(prefix)]
    return groups[max(matching, key=len)] if matching else 1.0


def unmatched_groups(names: list[str], groups: dict[str, float]) -> list[str]:
    """Prefixes of `groups` that no parameter name begins with: they would have no effect."""
    return [prefix for prefix in groups if not any(name.startswith(prefix) for name in names)]
