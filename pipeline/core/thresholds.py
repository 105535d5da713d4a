"""The limits of the judge: what a weight must show, and which failure means that it has collapsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stages.contract.fields import setting


def _share(default: float | None) -> Any:
    return setting(default, at_least=0.0, at_most=1.0)


@dataclass(frozen=True)
class Thresholds:
    """Limits of a verdict: shares in [0, 1], but for `ability_group_slack`. `None` switches a limit off.

    A value equal to its limit is within it. The limits that begin with `collapse_` separate `collapsed` from
    `underfit`; the others separate `underfit` from `passed`. A limit applies only if there are probes for it,
    and base answers where it needs them.
    """

    identity_train_min: float | None = _share(0.95)
    """Least share of good answers to identity probes whose phrasing is in training files."""
    identity_heldout_min: float | None = _share(0.95)
    """Least share of good answers to identity probes of unseen phrasing."""
    leak_max: float | None = _share(0.02)
    """Most contrast answers that show a forbidden part: 我是誰 answered with the model's own identity."""
    contrast_ratio_min: float | None = _share(0.9)
    """Least share of good contrast answers, relative to the base weight's."""
    contrast_min: float | None = _share(None)
    """Least share of good contrast answers, absolute."""
    ability_ratio_min: float | None = _share(0.95)
    """Least share of good ability answers, relative to the base weight's."""
    ability_group_ratio_min: float | None = _share(0.8)
    """The same for each group of ability and health probes; the next two limits soften it."""
    ability_group_slack: int = setting(1, unit="answers", at_least=0)
    """Good answers that any group may lose whatever the ratio says: one of four is no trend."""
    ability_group_floor: float = _share(0.2)
    """A group with no larger share of good base answers is not compared: near chance, all is noise."""
    ability_min: float | None = _share(None)
    """Least share of good ability answers, absolute: for a weight that has no base to compare with."""
    ability_group_min: float | None = _share(None)
    """The same for each group of ability and health probes."""
    repetition_max: float | None = _share(0.0)
    """Most answers that repeat themselves."""
    no_end_of_turn_max: float | None = _share(0.02)
    """Most answers cut at their longest length where the base weight's answer ended by itself."""
    non_finite_max: float = _share(0.0)
    """Most answers stopped by NaN or infinite logits; above it the weight has collapsed. All: broken."""
    collapse_repetition: float = _share(0.05)
    """Above this share of answers that repeat themselves, the weight has collapsed."""
    collapse_no_end_of_turn: float = _share(0.3)
    """Above this share of answers without an end, the weight has collapsed."""
    collapse_same_answer: float = _share(0.5)
    """Above this share of wrong answers with the same text, or the identity, the weight has collapsed."""
    collapse_empty: float = _share(0.3)
    """Above this share of empty answers, the weight has collapsed."""
    collapse_leak: float = _share(0.3)
    """Above this leak, the weight has collapsed: it answers everything with the identity."""
    collapse_ability: float = _share(0.5)
    """Below this ability relative to the base weight's, the weight has collapsed."""
