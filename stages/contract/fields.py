"""Dataclass fields that say their unit, their bounds and what they change, and the check of the bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_KEY = "setting"


class Affects(StrEnum):
    """What another value of a setting changes."""

    RESULT = "result"
    """The weight that a training exports."""
    RESULT_AND_ANSWERS = "result and answers"
    """Also what one and the same weight answers."""
    NEITHER = "neither"
    """Only speed, memory, or what is reported."""


@dataclass(frozen=True)
class Setting:
    """What a field says of itself beside its type and default."""

    unit: str = ""
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    affects: Affects = Affects.RESULT
    written: bool = False
    """For a path: whether the process writes there."""

    @property
    def bounded(self) -> bool:
        """Whether there is any bound."""
        return any(b is not None for b in (self.at_least, self.above, self.at_most, self.below))

    def holds(self, value: float) -> bool:
        """Whether a value is finite and within all bounds."""
        return (
            math.isfinite(value)
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def remedy(self, whole: bool) -> str:
        """What a value must be, in words. `whole`: the setting is a whole number."""
        low = self.at_least if self.at_least is not None else self.above
        high = self.at_most if self.at_most is not None else self.below
        if low is not None and high is not None:
            left, right = "[" if self.at_least is not None else "(", "]" if self.at_most is not None else ")"
            return f"must lie in {left}{low:g}, {high:g}{right}"
        kind = "" if whole else "a finite number, "
        if low is None:
            return (
                f"must be {kind}{high:g} or less"
                if self.at_most is not None
                else f"must be {kind}less than {high:g}"
            )
        return (
            f"must be {kind}{low:g} or more"
            if self.at_least is not None
            else f"must be {kind}more than {low:g}"
        )


def setting(
    default: Any = dataclasses.MISSING,
    *,
    factory: Callable[[], Any] | Any = dataclasses.MISSING,
    **words: Any,
) -> Any:
    """A dataclass field with a `Setting`.

    Args:
        default: of the field; left out, the field is required.
        factory: makes the default, for lists and mappings.
        words: the fields of `Setting`.
    """
    metadata = {_KEY: Setting(**words)}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def setting_of(field: dataclasses.Field[Any]) -> Setting:
    """What a field says of itself; the plain `Setting()` if nothing."""
    return field.metadata.get(_KEY, Setting())


def bound_problems(value: Any) -> list[str]:
    """Every number of a dataclass that is out of its bounds, as `key: value: remedy`. None is in any bounds."""
    problems = []
    for field in dataclasses.fields(value):
        own, found = setting_of(field), getattr(value, field.name)
        if own.bounded and found is not None and not own.holds(found):
            problems.append(f"{field.name}: {found}: {own.remedy(isinstance(found, int))}")
    return problems
