"""The schedule's factor by step, and a parameter group's factor by name."""

from __future__ import annotations

import itertools

import pytest

from stages.contract.recipe import Schedule
from stages.optim.schedule import group_lr_factor, schedule_factor, unmatched_groups
from tests.stages.engine.tiny import request_of

GROUPS = {"model.layers.1": 0.5, "model.layers.1.mlp": 2.0, "lm_head": 3.0}


@pytest.mark.parametrize("schedule", list(Schedule))
def test_warm_up_is_linear_and_the_end_is_the_smallest_rate(schedule: Schedule) -> None:
    request = request_of(steps=20, warmup_steps=4, schedule=schedule, min_lr_ratio=0.1)
    factors = [schedule_factor(step, request) for step in range(1, 21)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[-1] == pytest.approx(1.0 if schedule is Schedule.CONSTANT else 0.1)
    assert all(a >= b for a, b in itertools.pairwise(factors[3:]))


def test_half_way_the_cosine_and_the_line_are_in_the_middle() -> None:
    for schedule in (Schedule.COSINE, Schedule.LINEAR):
        request = request_of(steps=20, warmup_steps=0, schedule=schedule, min_lr_ratio=0.0)
        assert schedule_factor(10, request) == pytest.approx(0.5)


def test_the_longest_prefix_decides_the_group() -> None:
    names = ("model.layers.1.mlp.up_proj", "model.layers.1.q", "model.layers.2.q", "lm_head.weight")
    assert [group_lr_factor(name, GROUPS) for name in names] == [2.0, 0.5, 1.0, 3.0]


def test_a_group_without_a_parameter_is_found() -> None:
    assert unmatched_groups(["model.layers.1.mlp.up_proj"], GROUPS) == ["lm_head"]
