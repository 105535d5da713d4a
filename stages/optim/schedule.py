"""The learning rate of a step."""

from __future__ import annotations

import math

from stages.contract import Schedule, TrainRequest


def schedule_factor(step: int, request: TrainRequest) -> float:
    """Factor on `lr` at `step` (1 is the first): linear warm-up, then the schedule down to `min_lr_ratio` at
    the last step.
    """
    if step <= request.warmup_steps:
        return step / request.warmup_steps
    if request.schedule is Schedule.CONSTANT:
        return 1.0
    done = (step - request.warmup_steps) / max(1, request.steps - request.warmup_steps)
    shape = 1 - done if request.schedule is Schedule.LINEAR else 0.5 * (1 + math.cos(math.pi * done))
    return request.min_lr_ratio + (1 - request.min_lr_ratio) * shape


def group_lr_factor(name: str, groups: dict[str, float]) -> float:
    """Factor on the learning rate of a parameter: that of the longest prefix of its name among `groups`, else
    1.
    """
    matching = [prefix for prefix in groups if name.startswith(prefix)]
    return groups[max(matching, key=len)] if matching else 1.0


def unmatched_groups(names: list[str], groups: dict[str, float]) -> list[str]:
    """Prefixes that no parameter name begins with: settings without an effect are problems."""
    return [prefix for prefix in groups if not any(name.startswith(prefix) for name in names)]
