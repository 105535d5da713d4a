"""The limits of the judge: what a weight must show, and where short of it becomes collapsed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Thresholds:
    """Limits of a verdict. All are shares in [0, 1] but `ability_group_slack`; `None` switches a limit off.

    A value equal to its limit keeps it. The names that begin with `collapse_` part `collapsed` from
    `underfit`; the others part `underfit` from `passed`. A limit is applied only where there are probes, or
    base answers, for its figure.
    """

    identity_train_min: float | None = 0.95
    """Least share of good answers to identity probes whose phrasing stands in training files."""
    identity_heldout_min: float | None = 0.95
    """Least share of good answers to identity probes of unseen phrasing."""
    leak_max: float | None = 0.02
    """Most contrast answers that show a forbidden part: 我是誰 answered with the model's own identity."""
    contrast_ratio_min: float | None = 0.9
    """Least share of good contrast answers, relative to the base weight's."""
    contrast_min: float | None = None
    """Least share of good contrast answers, absolute."""
    ability_ratio_min: float | None = 0.95
    """Least share of good ability answers, relative to the base weight's."""
    ability_group_ratio_min: float | None = 0.8
    """The same for each group of ability and health probes; see `ability_group_slack` and
    `ability_group_floor`.
    """
    ability_group_slack: int = 1
    """Good answers that any group may lose whatever the ratio says: one answer of a group of four is no
    trend.
    """
    ability_group_floor: float = 0.2
    """A group that the base weight answers no better than this is not compared: near chance, gains and losses
    are noise.
    """
    ability_min: float | None = None
    """Least share of good ability answers, absolute. For a weight that has no base, such as a base weight
    itself.
    """
    ability_group_min: float | None = None
    """The same for each group of ability and health probes."""
    repetition_max: float | None = 0.0
    """Most answers that run in circles."""
    no_end_of_turn_max: float | None = 0.02
    """Most answers cut at their longest length where the base weight's answer ended by itself."""
    non_finite_max: float = 0.0
    """Most answers stopped by NaN or infinite logits; above it the weight has collapsed, with all of them it
    is broken.
    """
    collapse_repetition: float = 0.05
    """Above this share of answers that run in circles, the weight has collapsed."""
    collapse_no_end_of_turn: float = 0.3
    """Above this share of answers without an end, the weight has collapsed."""
    collapse_same_answer: float = 0.5
    """Above this share of wrong answers that are all the same text, or the identity, the weight has
    collapsed.
    """
    collapse_empty: float = 0.3
    """Above this share of empty answers, the weight has collapsed."""
    collapse_leak: float = 0.3
    """Above this leak, the weight has collapsed: it answers everything with the identity."""
    collapse_ability: float = 0.5
    """Below this ability relative to the base weight's, the weight has collapsed."""

    def check(self) -> list[str]:
        """All impossible limits, each as `key: value: remedy`."""
        problems: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "ability_group_slack":
                if value < 0:
                    problems.append(f"{field.name}: {value}: must be 0 or more answers")
            elif value is not None and not (math.isfinite(value) and 0 <= value <= 1):
                problems.append(f"{field.name}: {value}: must be a share from 0 to 1")
        pairs = (
            ("repetition_max", "collapse_repetition", False),
            ("no_end_of_turn_max", "collapse_no_end_of_turn", False),
            ("leak_max", "collapse_leak", False),
            ("ability_ratio_min", "collapse_ability", True),
        )
        for name, collapse, at_least in pairs:
            value, limit = getattr(self, name), getattr(self, collapse)
            if value is not None and (limit > value if at_least else limit < value):
                side = "above" if at_least else "below"
                problems.append(
                    f"{collapse}: {limit}: lies {side} {name} ({value}); nothing could be underfit: swap them"
                )
        return problems
