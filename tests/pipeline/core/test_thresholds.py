"""The limits: impossible ones are all reported, and they fit a typed Hydra config."""

import ast
import inspect
import itertools
from dataclasses import fields

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.core import thresholds
from pipeline.core.thresholds import Thresholds


def test_the_defaults_are_possible() -> None:
    assert Thresholds().check() == []


def test_all_problems_are_reported_together() -> None:
    problems = Thresholds(
        leak_max=1.5, ability_ratio_min=float("nan"), ability_group_slack=-1, collapse_repetition=-0.1
    ).check()
    named = [fault.split(":")[0] for fault in problems]
    assert {"leak_max", "ability_ratio_min", "ability_group_slack", "collapse_repetition"} <= set(named)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        (Thresholds(leak_max=0.5), "collapse_leak"),
        (Thresholds(ability_ratio_min=0.4), "collapse_ability"),
        (Thresholds(repetition_max=0.2), "collapse_repetition"),
        (Thresholds(no_end_of_turn_max=0.4), "collapse_no_end_of_turn"),
    ],
)
def test_a_collapse_limit_on_the_wrong_side_is_a_problem(limits: Thresholds, key: str) -> None:
    assert [fault.split(":")[0] for fault in limits.check()] == [key]


def test_none_switches_a_limit_off_without_a_problem() -> None:
    assert (
        Thresholds(
            leak_max=None, repetition_max=None, ability_ratio_min=None, identity_train_min=None
        ).check()
        == []
    )


def test_they_are_a_structured_config() -> None:
    schema = OmegaConf.structured(Thresholds)
    merged = OmegaConf.merge(schema, {"leak_max": None, "ability_min": 0.9, "ability_group_slack": 2})
    assert OmegaConf.to_object(merged) == Thresholds(leak_max=None, ability_min=0.9, ability_group_slack=2)
    with pytest.raises(OmegaConfBaseException):
        OmegaConf.merge(schema, {"leak_mx": 0.1})


def test_every_field_says_what_it_means() -> None:
    body = next(
        node for node in ast.parse(inspect.getsource(thresholds)).body if isinstance(node, ast.ClassDef)
    ).body
    documented = {
        node.target.id
        for node, after in itertools.pairwise(body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(after, ast.Expr)
    }
    assert documented == {field.name for field in fields(Thresholds)}
