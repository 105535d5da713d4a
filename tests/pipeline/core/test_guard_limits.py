"""The guard's limits: impossible numbers are named."""

from __future__ import annotations

import math

import pytest

from pipeline.core.guard_limits import GuardLimits
from stages.contract.fields import bound_problems


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_limits_name_each_impossible_number(value: float) -> None:
    limits = GuardLimits(
        value,
        gpu_poll_secs=value,
        gpu_over_secs=value,
        min_available_gb=value,
        time_limit=value,
        grace_secs=value,
    )
    named = {problem.split(":")[0] for problem in bound_problems(limits)}
    never = {"gpu_limit_gb", "gpu_poll_secs"}
    assert named == (
        never if value == 0 else never | {"gpu_over_secs", "min_available_gb", "time_limit", "grace_secs"}
    )


def test_a_limit_in_gb_is_counted_in_units_of_1024_mib() -> None:
    assert GuardLimits(108).limit_mib == 110_592
    assert bound_problems(GuardLimits(108)) == []
