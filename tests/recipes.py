"""A recipe for tests of single steps: a constant rate from the first one, and nothing that decays."""

from __future__ import annotations

from typing import Any

from stages.contract.recipe import Schedule

PLAIN: dict[str, Any] = {
    "seq_len": 192,
    "warmup_steps": 0,
    "schedule": Schedule.CONSTANT,
    "min_lr_ratio": 0.0,
    "beta2": 0.999,
}
