"""Judges the answers of a weight: identity, contrast, ability, health, relative to the base and to limits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Check, Outcome, ProbeRow, Verdict
from pipeline.evaluate.degeneration import (
    EMPTY,
    NO_END_OF_TURN,
    NON_FINITE,
    ONE_TOKEN,
    REPETITION,
    SPOILING,
    examine,
)
from pipeline.evaluate.mode_collapse import SAME_ANSWER, mark_same_answers
from stages.contract.events import Answer
from stages.contract.rows import Expectation, Probe, ProbeKind

LEAK = "leak"

_EVIDENCE_CHARACTERS = 48
"""Most characters of a prompt or an answer in an evidence line."""
_LIMITS = (
    (NON_FINITE, "non_finite_max", False, Outcome.COLLAPSED),
    (REPETITION, "collapse_repetition", False, Outcome.COLLAPSED),
    (NO_END_OF_TURN, "collapse_no_end_of_turn", False, Outcome.COLLAPSED),
    (SAME_ANSWER, "collapse_same_answer", False, Outcome.COLLAPSED),
    (EMPTY, "collapse_empty", False, Outcome.COLLAPSED),
    (LEAK, "collapse_leak", False, Outcome.COLLAPSED),
    ("ability_ratio", "collapse_ability", True, Outcome.COLLAPSED),
    ("identity_train", "identity_train_min", True, Outcome.UNDERFIT),
    ("identity_heldout", "identity_heldout_min", True, Outcome.UNDERFIT),
    (LEAK, "leak_max", False, Outcome.UNDERFIT),
    ("contrast_ok", "contrast_min", True, Outcome.UNDERFIT),
    ("contrast_ratio", "contrast_ratio_min", True, Outcome.UNDERFIT),
    ("ability", "ability_min", True, Outcome.UNDERFIT),
    ("ability_ratio", "ability_ratio_min", True, Outcome.UNDERFIT),
    (REPETITION, "repetition_max", False, Outcome.UNDERFIT),
    (NO_END_OF_TURN, "no_end_of_turn_max", False, Outcome.UNDERFIT),
)
"""Figure, field of `Thresholds`, whether it is a lower limit, the outcome past it; worst outcomes first."""


@dataclass(frozen=True)
class _Figure:
    """A value with the rows that count against it, from which the evidence is taken."""

    value: float
    against: tuple[ProbeRow, ...] = ()
    total: int = 0
    """Rows of the figure."""
    known: int = 0
    """Those that the base weight answers well."""


def judge(
    probes: Sequence[Probe],
    answers: Sequence[Answer],
    base_answers: Sequence[Answer] | None,
    thresholds: Thresholds,
) -> Verdict:
    """Decides whether a weight has passed, is underfit, has collapsed or is broken.

    Args:
        probes: in the order in which they were answered.
        answers: of the judged weight, one per probe, in the same order.
        base_answers: of the base weight, likewise. None if there is none; then nothing relative is judged.
        thresholds: the limits.

    Returns:
        The verdict with its figures, every limit that was applied, a line of evidence for each failed figure,
        and a row per probe. A figure without probes is absent.

    Raises:
        ValueError: if there are no probes, or `base_answers` are of other probes. Neither says anything about
            the weight.
    """
    if not probes:
        raise ValueError("no probes: a weight cannot be judged without them; name a probe file")
    if base_answers is not None and (problem := _mismatch(probes, base_answers)):
        raise ValueError(f"base weight's answers: {problem}; probe the base weight again with these files")
    if problem := _mismatch(probes, answers):
        return Verdict(Outcome.BROKEN, evidence=(f"answers: {problem}",))

    rows = mark_same_answers(probes, _rows(probes, answers, base_answers))
    figures = _figures(rows)
    checks = _checks(figures, thresholds)
    failed = [check for check in checks if not check.ok]
    evidence: dict[str, str] = {}
    for check in failed:  # the worst outcome comes first: a figure is explained by its worst failure
        evidence.setdefault(check.figure, _evidence_line(check, figures[check.figure]))
    return Verdict(
        outcome=failed[0].outcome if failed else Outcome.PASSED,
        figures={name: figure.value for name, figure in figures.items()},
        evidence=tuple(evidence.values()),
        rows=tuple(rows),
        checks=tuple(checks),
    )


def _mismatch(probes: Sequence[Probe], answers: Sequence[Answer]) -> str:
    """How the answers do not match the probes, naming the first probe; empty if they do."""
    for i, probe in enumerate(probes):
        name = f"{probe.file}:{probe.line}: {probe.prompt[:60]!r}"
        if i == len(answers):
            return f"{len(answers)} for {len(probes)} probes; the first without an answer is {name}"
        answer = answers[i]
        if (answer.file, answer.line, answer.prompt) != (probe.file, probe.line, probe.prompt):
            other = f"{answer.file}:{answer.line}: {answer.prompt[:60]!r}"
            return f"{name} has in its place the answer to {other}"
    if len(answers) > len(probes):
        extra = answers[len(probes)]
        name = f"{extra.file}:{extra.line}: {extra.prompt[:60]!r}"
        return f"{len(answers)} for {len(probes)} probes; {name} was not asked for"
    return ""


def _rows(
    probes: Sequence[Probe], answers: Sequence[Answer], base_answers: Sequence[Answer] | None
) -> list[ProbeRow]:
    rows: list[ProbeRow] = []
    for i, (probe, answer) in enumerate(zip(probes, answers, strict=True)):
        ok, flags = _assess(answer, probe.expectation)
        base_text, base_ok = "", None
        if base_answers is not None:
            base_text = base_answers[i].text
            base_ok, base_flags = _assess(base_answers[i], probe.expectation)
            if NO_END_OF_TURN in base_flags:
                # A long answer, or too short a limit: the weight has lost nothing.
                flags = tuple(flag for flag in flags if flag != NO_END_OF_TURN)
        about = (probe.kind.value, probe.group, probe.split, probe.prompt)
        rows.append(ProbeRow(*about, answer.text, ok, base_text, base_ok, flags))
    return rows


def _assess(answer: Answer, expectation: Expectation) -> tuple[bool, tuple[str, ...]]:
    """Whether an answer is good, and its flags."""
    flags = examine(answer, expectation)
    if expectation.leaks(answer.text):
        flags = (*flags, LEAK)
    return expectation.met_by(answer.text) and not SPOILING.intersection(flags), flags


def _figures(rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    of_kind = {kind: [row for row in rows if row.kind == kind] for kind in ProbeKind}
    figures: dict[str, _Figure] = {}
    for split in ("train", "heldout"):
        if chosen := [row for row in of_kind[ProbeKind.IDENTITY] if row.split == split]:
            figures[f"identity_{split}"] = _good_share(chosen)
    if contrast := of_kind[ProbeKind.CONTRAST]:
        figures[LEAK] = _flagged_share(contrast, LEAK)
        figures["contrast_ok"] = _good_share(contrast)
        figures |= _against_base("contrast", contrast)
    if ability := of_kind[ProbeKind.ABILITY]:
        figures["ability"] = _good_share(ability)
        figures |= _against_base("ability", ability)
    for (kind, group), chosen in _groups([*ability, *of_kind[ProbeKind.HEALTH]]).items():
        figures[f"{kind}/{group or 'other'}"] = _good_share(chosen)
    for flag in (REPETITION, ONE_TOKEN, NO_END_OF_TURN, NON_FINITE, EMPTY):
        figures[flag] = _flagged_share(rows, flag)
    return figures | _same_answer([row for row in rows if row.kind != ProbeKind.IDENTITY])


def _groups(rows: Sequence[ProbeRow]) -> dict[tuple[str, str], list[ProbeRow]]:
    groups: dict[tuple[str, str], list[ProbeRow]] = defaultdict(list)
    for row in rows:
        groups[row.kind, row.group].append(row)
    return groups


def _flagged_share(rows: Sequence[ProbeRow], flag: str) -> _Figure:
    against = tuple(row for row in rows if flag in row.flags)
    return _Figure(len(against) / len(rows), against, len(rows))


def _good_share(rows: Sequence[ProbeRow]) -> _Figure:
    # The best examples come first: what the base weight answers well.
    against = tuple(sorted((row for row in rows if not row.ok), key=lambda row: not row.base_ok))
    known = sum(row.base_ok is True for row in rows)
    return _Figure((len(rows) - len(against)) / len(rows), against, len(rows), known)


def _against_base(name: str, rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    """The base weight's share, and the ratio to it unless the base answers nothing well."""
    if rows[0].base_ok is None:
        return {}
    known = sum(row.base_ok is True for row in rows)
    figures = {f"{name}_base": _Figure(known / len(rows), total=len(rows))}
    if known:
        lost = tuple(row for row in rows if row.base_ok and not row.ok)
        figures[f"{name}_ratio"] = _Figure(sum(row.ok for row in rows) / known, lost, len(rows))
    return figures


def _same_answer(rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    """The share of marked answers, averaged over groups: one large group alone is no collapse."""
    shares = [_flagged_share(group, SAME_ANSWER) for group in _groups(rows).values()]
    if not shares:
        return {}
    against = tuple(row for share in shares for row in share.against)
    return {SAME_ANSWER: _Figure(sum(share.value for share in shares) / len(shares), against, len(rows))}


def _checks(figures: dict[str, _Figure], thresholds: Thresholds) -> list[Check]:
    """Every limit for which there is a figure, the worst outcome first."""
    limits = [(name, getattr(thresholds, key), at_least, outcome) for name, key, at_least, outcome in _LIMITS]
    if figures[NON_FINITE].value == 1.0:
        # Broken means that all are: the limit is the largest share that leaves one answer to read.
        limits.insert(0, (NON_FINITE, 1.0 - 1.0 / figures[NON_FINITE].total, False, Outcome.BROKEN))
    for name, figure in figures.items():
        if "/" in name:
            limits.append((name, thresholds.ability_group_min, True, Outcome.UNDERFIT))
            limits.append((name, _group_limit(figure, thresholds), True, Outcome.UNDERFIT))
    checks = []
    for name, limit, at_least, outcome in limits:
        if limit is not None and name in figures:
            value = figures[name].value
            ok = value >= limit if at_least else value <= limit
            checks.append(Check(name, value, limit, at_least, outcome, ok))
    return checks


def _group_limit(figure: _Figure, thresholds: Thresholds) -> float | None:
    """Least share of a group: the base's good answers less those that may be lost, by ratio or slack."""
    ratio = thresholds.ability_group_ratio_min
    if ratio is None or figure.known <= thresholds.ability_group_floor * figure.total:
        return None
    by_ratio = math.floor((1.0 - ratio) * figure.known + 1e-9)  # 0.2 of 5 is 1, and not 0.9999999
    return max(0, figure.known - max(by_ratio, thresholds.ability_group_slack)) / figure.total


def _evidence_line(check: Check, figure: _Figure) -> str:
    limit = f"limit {'≥' if check.at_least else '≤'} {check.limit:.3f}"
    text = f"{check.figure} {check.value:.3f}, {limit} ({len(figure.against)} of {figure.total})"
    if figure.against:
        row = figure.against[0]
        text += f": {_shortened(row.prompt)} → {_shortened(row.answer)}"
    return text


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line[:_EVIDENCE_CHARACTERS] + "…" if len(line) > _EVIDENCE_CHARACTERS else line or "(nothing)"
