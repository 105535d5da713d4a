"""Changes of a recipe: values of the right type, arithmetic, what differs, and the record."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.core.recipe_change import change_problems, changed, changes_between, recorded
from pipeline.core.settings import StageKind
from pipeline.core.types import Change
from stages.contract.recipe import DataSource, Recipe, Rounding

RECIPE = Recipe(data=[DataSource("a.tsv")], lr=1e-3, steps=100)


def test_values_take_the_types_of_their_fields() -> None:
    new = changed(RECIPE, {"lr": 1, "rounding": "nearest", "data": [{"path": "b.tsv"}]})
    assert new is not None
    assert (new.lr, new.rounding, new.data) == (1.0, Rounding.NEAREST, [DataSource("b.tsv")])
    assert isinstance(new.lr, float)


def test_arithmetic_moves_a_value_or_there_is_no_change() -> None:
    assert changed(RECIPE, {"lr": "*0.3", "steps": "+20"}) == Recipe(
        data=[DataSource("a.tsv")], lr=3e-4, steps=120
    )
    assert changed(RECIPE, {"grad_accum": "*0.5"}) is None, "half of 1 stays 1"
    assert changed(RECIPE, {"lr": "*1e400"}) is None
    with pytest.raises(ValueError, match="is no number"):
        changed(RECIPE, {"data": "*2"})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("step", 3, "did you mean 'steps'?"),
        ("lr", "*half", "reads like arithmetic"),
        ("data", "*2", "which is no number"),
        ("steps", 0.5, "the recipe has 100 there"),
        ("gradient_checkpointing", 1, "the recipe has False there"),
        ("rounding", "up", "give a value of its type"),
        ("batch_size", 0, "0: must be 1 or more"),
        ("lr", "*0.5", ""),
        ("rounding", "nearest", ""),
    ],
)
def test_problems_say_what_is_wrong_with_a_value(key: str, value: Any, says: str) -> None:
    problems = change_problems(RECIPE, key, value)
    assert (len(problems) == 1 and says in problems[0]) if says else problems == []


def test_differences_are_plain_values_in_the_order_of_the_fields() -> None:
    new = changed(RECIPE, {"rounding": "nearest", "data": [{"path": "b.tsv"}], "lr": 2e-3})
    assert new is not None
    assert changes_between(RECIPE, new) == (
        Change("data", [{"path": "a.tsv", "repeat": 1}], [{"path": "b.tsv", "repeat": 1}]),
        Change("lr", 1e-3, 2e-3),
        Change("rounding", "stochastic", "nearest"),
    )
    assert changes_between(RECIPE, RECIPE) == ()


def test_the_record_holds_what_counts_for_the_kind_of_stage() -> None:
    whole = recorded(RECIPE, StageKind.TRAIN)
    assert whole["lr"] == 1e-3 and whole["data"] == [{"path": "a.tsv", "repeat": 1}] and "seed" in whole
    assert set(recorded(RECIPE, StageKind.INIT)) == {"data", "seed", "scale_rule"}
