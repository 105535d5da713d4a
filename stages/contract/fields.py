"""Dataclass fields with a unit, bounds and a mark of what they affect; and the check of the bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_KEY = "setting"


class Affects(StrEnum):
    """What changes with the value of a setting."""

    RESULT = "result"
    """The weight that a training exports."""
    RESULT_AND_ANSWERS = "result and answers"
    """Also the answers of one and the same weight."""
    NEITHER = "neither"
    """Only speed, memory, or what is reported."""


@dataclass(frozen=True)
class Setting:
    """Metadata of a field beside its type and default. Bounds that are None do not apply."""

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
        """Says what the value must be.

        Args:
            whole: whether the setting is a whole number.
        """
        low = self.at_least if self.at_least is not None else self.above
        high = self.at_most if self.at_most is not None else self.below
        if low is not None and high is not None:
            left, right = "[" if self.at_least is not None else "(", "]" if self.at_most is not None else ")"
            return f"must lie in {left}{low:g}, {high:g}{right}"
        if low is None:
            bound = f"{high:g} or less" if self.at_most is not None else f"less than {high:g}"
        else:
            bound = f"{low:g} or more" if self.at_least is not None else f"more than {low:g}"
        return f"must be {'' if whole else 'a finite number, '}{bound}"


def setting(
    default: Any = dataclasses.MISSING,
    *,
    factory: Callable[[], Any] | Any = dataclasses.MISSING,
    **metadata: Any,
) -> Any:
    """A dataclass field with a `Setting`.

    Args:
        default: of the field; without a default the field is required.
        factory: makes the default, for lists and mappings.
        metadata: the fields of `Setting`.
    """
    about = {_KEY: Setting(**metadata)}
    if factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=factory, metadata=about)
    return dataclasses.field(default=default, metadata=about)


def setting_of(field: dataclasses.Field[Any]) -> Setting:
    """The `Setting` of a field; the plain `Setting()` for a field without one."""
    return field.metadata.get(_KEY, Setting())


def bound_problems(value: Any) -> list[str]:
    """Every value of a dataclass that is out of its bounds, as `key: value: remedy`. None is allowed."""
    problems = []
    for field in dataclasses.fields(value):
        about, found = setting_of(field), getattr(value, field.name)
        if about.bounded and found is not None and not about.holds(found):
            problems.append(f"{field.name}: {found}: {about.remedy(isinstance(found, int))}")
    return problems
