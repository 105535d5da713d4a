"""The recipe: marks and bounds of its fields, on which content key, probe request and command rely."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from stages.contract.command import RECIPE_PLACEHOLDERS
from stages.contract.fields import Affects
from stages.contract.recipe import ComputeDtype, DataSource, Recipe, resolved_dtype
from stages.contract.requests import ProbeRequest
from stages.contract.serial import dump, load_text

RECIPE = Recipe(data=[DataSource("a.tsv", 2)])


def test_what_affects_answers_is_what_a_probe_request_takes() -> None:
    asked = set(RECIPE.values(Affects.RESULT_AND_ANSWERS))
    assert asked == {"template", "compute_dtype", "scale_rule", "device", "threads"}
    assert asked <= {f.name for f in fields(ProbeRequest)}


def test_what_affects_neither_is_only_speed_memory_and_report() -> None:
    neither = set(RECIPE.values(Affects.NEITHER))
    assert neither == {"memory_limit_gb", "log_every", "checkpoint_every"}
    assert len(RECIPE.values(*Affects)) == len(fields(Recipe))


def test_a_recipe_comes_back_from_its_text() -> None:
    assert load_text(Recipe, dump(RECIPE), "") == RECIPE


def test_every_number_of_a_recipe_may_stand_in_a_command() -> None:
    names = {f.name for f in fields(Recipe) if isinstance(getattr(RECIPE, f.name), (int, float, str))}
    assert {name for name in names if not name.startswith("offload_")} == set(RECIPE_PLACEHOLDERS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"data": []}, "data: empty"),
        ({"data": [DataSource("a", 0)]}, "data[0].repeat: 0: must be 1 or more"),
        ({"lr": 2.0}, "more than 1 moves every weight"),
        ({"steps": 3}, "warmup_steps: 5: more than steps (3)"),
        ({"lr_groups": {"lm_head": -1.0}}, "lr_groups.lm_head"),
        ({"stop_after": "lunch"}, "stop_after: lunch: none of start"),
        ({"eps": 0.0}, "eps: 0.0: must lie in (0, 1)"),
        ({"offload_weights": True}, "offload_weights: true: refused"),
    ],
)
def test_impossible_values_are_named(changes: dict[str, object], says: str) -> None:
    assert RECIPE.check() == []
    (problem,) = replace(RECIPE, **changes).check()  # type: ignore[arg-type]
    assert says in problem


def test_auto_is_resolved_by_the_kind_of_device_and_a_choice_stays() -> None:
    assert resolved_dtype(ComputeDtype.AUTO, "cuda") is ComputeDtype.BF16
    assert RECIPE.resolved("cpu").compute_dtype is ComputeDtype.FP32
    assert replace(RECIPE, compute_dtype=ComputeDtype.FP16).resolved("cpu").compute_dtype is ComputeDtype.FP16
    assert RECIPE.resolved("cuda").device == "cuda"
