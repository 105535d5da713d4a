"""Changes of a recipe: new values, or arithmetic on the present ones (`*0.5`, `+20`); and its record."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pipeline.core.settings import StageKind
from pipeline.core.types import Change
from stages.contract.fields import bound_problems
from stages.contract.recipe import Recipe
from stages.contract.requests import INIT_SETTINGS
from stages.contract.serial import RequestError, did_you_mean, load, to_jsonable

_ARITHMETIC = re.compile(r"([*+])\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_NAMES = tuple(f.name for f in fields(Recipe))


def changed(recipe: Recipe, change: Mapping[str, Any]) -> Recipe | None:
    """The recipe with a change; None if arithmetic leaves a value as it is, or its result is not finite.

    A new value may be equal to the present one.

    Args:
        recipe: as it is.
        change: recipe key → plain value as in JSON or YAML, or arithmetic as text. Whole numbers stay whole:
            rounded up, at least 1.

    Raises:
        ValueError: for a change with `change_problems`.
    """
    values: dict[str, Any] = {}
    for key, value in change.items():
        match = _ARITHMETIC.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            values[key] = value
            continue
        present = getattr(recipe, key)
        if not _is_number(present):
            raise ValueError(
                f"{key}: {value!r} on {present!r}, which is no number: give the new value itself"
            )
        moved = _moved(present, match[1], float(match[2]))
        if moved is None or moved == present:
            return None
        values[key] = moved
    return _with(recipe, values)


def change_problems(recipe: Recipe, key: str, value: Any) -> list[str]:
    """What is wrong with one key of a change, each as `value: remedy`."""
    if key not in _NAMES:
        return [f"{value!r}: no such recipe key{did_you_mean(key, _NAMES)}"]
    present = getattr(recipe, key)
    if isinstance(value, str) and value[:1] in ("*", "+"):
        if not _ARITHMETIC.fullmatch(value):
            return [f"{value!r}: reads like arithmetic but is none: write '*0.5' or '+20'"]
        if not _is_number(present):
            return [f"{value!r}: arithmetic on {present!r}, which is no number: give the new value itself"]
        return []
    try:
        new = _with(recipe, {key: value})
    except RequestError:
        return [f"{value!r}: the recipe has {to_jsonable(present)!r} there: give a value of its type"]
    wrong = [text for text in bound_problems(new) if text not in bound_problems(recipe)]
    return [text.removeprefix(f"{key}: ") for text in wrong]


def changes_between(old: Recipe, new: Recipe) -> tuple[Change, ...]:
    """The differences between two recipes, as plain values in the order of the fields."""
    pairs = ((name, to_jsonable(getattr(old, name)), to_jsonable(getattr(new, name))) for name in _NAMES)
    return tuple(Change(name, before, after) for name, before, after in pairs if before != after)


def recorded(recipe: Recipe, kind: StageKind) -> dict[str, Any]:
    """The settings that a kind of stage uses, as plain values for the record of an attempt."""
    names = INIT_SETTINGS if kind is StageKind.INIT else _NAMES
    return {name: to_jsonable(getattr(recipe, name)) for name in names}


def _with(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe with other values, which are converted to the types of their fields."""
    return load(Recipe, {**to_jsonable(recipe), **values}, "recipe")


def _moved(present: int | float, sign: str, by: float) -> int | float | None:
    result = present * by if sign == "*" else present + by
    if not math.isfinite(result):
        return None
    shown = float(f"{result:.12g}")  # 1e-3 * 0.3 must read 0.0003 in the command and in the ledger
    return max(1, math.ceil(shown)) if isinstance(present, int) else shown


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
