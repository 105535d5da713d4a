"""Bounds of settings, and how they are put into words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from stages.contract.fields import Affects, Setting, bound_problems, setting, setting_of


@dataclass(frozen=True)
class _Example:
    count: int = setting(1, at_least=1)
    rate: float = setting(0.5, at_least=0.0, below=1.0)
    limit: float | None = setting(None, above=0.0)
    free: int = 7


def test_what_is_within_its_bounds_is_no_problem() -> None:
    assert bound_problems(_Example()) == []
    assert bound_problems(_Example(count=1, rate=0.0, limit=1e9, free=-3)) == []


@pytest.mark.parametrize(
    ("example", "says"),
    [
        (_Example(count=0), "count: 0: must be 1 or more"),
        (_Example(rate=1.0), "rate: 1.0: must lie in [0, 1)"),
        (_Example(rate=math.nan), "rate: nan: must lie in [0, 1)"),
        (_Example(limit=0.0), "limit: 0.0: must be a finite number, more than 0"),
        (_Example(limit=math.inf), "limit: inf: must be a finite number, more than 0"),
    ],
)
def test_what_is_out_of_bounds_is_named_with_its_remedy(example: _Example, says: str) -> None:
    assert bound_problems(example) == [says]


def test_upper_bounds_alone_and_both_sides_read_well() -> None:
    assert Setting(at_most=3).remedy(whole=True) == "must be 3 or less"
    assert Setting(below=3).remedy(whole=False) == "must be a finite number, less than 3"
    assert Setting(above=0, at_most=1).remedy(whole=False) == "must lie in (0, 1]"


def test_a_field_without_words_affects_the_result_and_has_no_bounds() -> None:
    plain = setting_of(_Example.__dataclass_fields__["free"])
    assert plain == Setting() and plain.affects is Affects.RESULT and not plain.bounded
