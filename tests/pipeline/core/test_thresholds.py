"""The limits of a verdict: bounds of every field, a meaning of every field, and a typed Hydra config."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from dataclasses import fields, replace

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.core import thresholds
from pipeline.core.thresholds import Thresholds
from stages.contract.fields import bound_problems


def test_the_defaults_are_within_bounds() -> None:
    assert bound_problems(Thresholds()) == []


@pytest.mark.parametrize("name", [field.name for field in fields(Thresholds)])
def test_every_limit_has_its_bounds(name: str) -> None:
    impossible = [-0.1, math.nan] + ([] if name == "ability_group_slack" else [1.1])
    for value in impossible:
        (problem,) = bound_problems(replace(Thresholds(), **{name: value}))
        assert problem.startswith(f"{name}: {value}: must ")
    assert bound_problems(replace(Thresholds(), **{name: 1})) == []


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
