"""Answers to a verdict: identity, contrast, ability and health of a weight, against the base weight's answers
and the limits.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.core.thresholds import Thresholds
from pipeline.core.types import Check, Outcome, ProbeRow, Verdict
from pipeline.evaluate import degeneration as health
from pipeline.evaluate.mode_collapse import SAME_ANSWER, mark_same_answers
from stages.contract.events import Answer
from stages.contract.rows import Expectation, Probe, ProbeKind

__all__ = ["Thresholds", "judge"]

LEAK = "leak"

_SHOWN = 48
"""Most characters of an answer in an evidence line."""

_COLLAPSE = (
    ("non_finite", "non_finite_max", False),
    ("repetition", "collapse_repetition", False),
    ("no_end_of_turn", "collapse_no_end_of_turn", False),
    ("same_answer", "collapse_same_answer", False),
    ("empty", "collapse_empty", False),
    ("leak", "collapse_leak", False),
    ("ability_ratio", "collapse_ability", True),
)
_UNDERFIT = (
    ("identity_train", "identity_train_min", True),
    ("identity_heldout", "identity_heldout_min", True),
    ("leak", "leak_max", False),
    ("contrast_ok", "contrast_min", True),
    ("contrast_ratio", "contrast_ratio_min", True),
    ("ability", "ability_min", True),
    ("ability_ratio", "ability_ratio_min", True),
    ("repetition", "repetition_max", False),
    ("no_end_of_turn", "no_end_of_turn_max", False),
)


@dataclass(frozen=True)
class _Figure:
    """A value with the rows that speak against it; the evidence is drawn from those."""

    value: float
    against: tuple[ProbeRow, ...] = ()
    total: int = 0
    known: int = 0
    """Rows of the figure that the base weight answers well."""


def judge(
    probes: Sequence[Probe],
    answers: Sequence[Answer],
    base_answers: Sequence[Answer] | None,
    thresholds: Thresholds,
) -> Verdict:
    """Says of one weight whether it passed, is underfit, has collapsed or is broken.

    Args:
        probes: in the order in which they were answered.
        answers: the judged weight's, one a probe, in the same order.
        base_answers: the base weight's, likewise; None if there is none, and then nothing relative is judged.
        thresholds: the limits.

    Returns:
        The verdict with its figures, every limit applied, one line of evidence for each that is not kept, and
        a row a probe. A figure without probes for it is absent.

    Raises:
        ValueError: if there are no probes, or `base_answers` are not of these probes: no verdict on this
            weight follows from that.
    """
    if not probes:
        raise ValueError("no probes: a weight cannot be judged without them; name a probe file")
    if base_answers is not None and (problem := _misfit(probes, base_answers)):
        raise ValueError(f"base weight's answers: {problem}; probe the base weight again with these files")
    if problem := _misfit(probes, answers):
        return Verdict(Outcome.BROKEN, evidence=(f"answers: {problem}",))

    rows = mark_same_answers(probes, _rows(probes, answers, base_answers))
    figures = _figures(rows)
    checked = _applied(figures, thresholds)
    return Verdict(
        outcome=_outcome([check for check, _ in checked]),
        figures={name: figure.value for name, figure in figures.items()},
        evidence=tuple(_evidence(checked)),
        rows=tuple(rows),
        checks=tuple(check for check, _ in checked),
    )


def _misfit(probes: Sequence[Probe], answers: Sequence[Answer]) -> str:
    """What is wrong with the pairing, naming the probe; empty if each answer is of the probe in its place."""
    for i, probe in enumerate(probes):
        name = f"{probe.file}:{probe.line}: {probe.prompt[:60]!r}"
        if i == len(answers):
            return f"{len(answers)} for {len(probes)} probes; the first without an answer is {name}"
        answer = answers[i]
        if (answer.file, answer.line, answer.prompt) != (probe.file, probe.line, probe.prompt):
            return (
                f"{name} has in its place the answer to {answer.file}:{answer.line}: {answer.prompt[:60]!r}"
            )
    if len(answers) > len(probes):
        extra = answers[len(probes)]
        return f"{len(answers)} for {len(probes)} probes; {extra.file}:{extra.line}: {extra.prompt[:60]!r} was not asked for"
    return ""


def _rows(
    probes: Sequence[Probe], answers: Sequence[Answer], base_answers: Sequence[Answer] | None
) -> list[ProbeRow]:
    rows: list[ProbeRow] = []
    for i, (probe, answer) in enumerate(zip(probes, answers, strict=True)):
        ok, flags = _look(answer, probe.expectation)
        base_text, base_ok = "", None
        if base_answers is not None:
            base_text = base_answers[i].text
            base_ok, base_flags = _look(base_answers[i], probe.expectation)
            if health.NO_END_OF_TURN in base_flags:
                # The base runs past the length too: the answer is long, or its length is set short. It shows
                # no loss.
                flags = tuple(flag for flag in flags if flag != health.NO_END_OF_TURN)
        place = (probe.kind.value, probe.group, probe.split, probe.prompt)
        rows.append(ProbeRow(*place, answer.text, ok, base_text, base_ok, flags))
    return rows


def _look(answer: Answer, expectation: Expectation) -> tuple[bool, tuple[str, ...]]:
    flags = health.examine(answer, expectation)
    if expectation.leaks(answer.text):
        flags = (*flags, LEAK)
    return expectation.met_by(answer.text) and not health.SPOILING.intersection(flags), flags


def _bad_share(rows: Sequence[ProbeRow], bad: Callable[[ProbeRow], bool]) -> _Figure:
    against = tuple(row for row in rows if bad(row))
    return _Figure(len(against) / len(rows), against, len(rows))


def _flagged(rows: Sequence[ProbeRow], flag: str) -> _Figure:
    return _bad_share(rows, lambda row: flag in row.flags)


def _good_share(rows: Sequence[ProbeRow]) -> _Figure:
    # What the base weight could do stands first: it is the telling example.
    against = tuple(sorted((row for row in rows if not row.ok), key=lambda row: not row.base_ok))
    return _Figure(
        (len(rows) - len(against)) / len(rows), against, len(rows), sum(row.base_ok is True for row in rows)
    )


def _figures(rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    of_kind = {kind: [row for row in rows if row.kind == kind] for kind in ProbeKind}
    figures: dict[str, _Figure] = {}
    for split in ("train", "heldout"):
        if pool := [row for row in of_kind[ProbeKind.IDENTITY] if row.split == split]:
            figures[f"identity_{split}"] = _good_share(pool)
    if pool := of_kind[ProbeKind.CONTRAST]:
        figures["leak"] = _flagged(pool, LEAK)
        figures["contrast_ok"] = _good_share(pool)
        figures.update(_against_base("contrast", pool))
    if pool := of_kind[ProbeKind.ABILITY]:
        figures["ability"] = _good_share(pool)
        figures.update(_against_base("ability", pool))
    for kind in (ProbeKind.ABILITY, ProbeKind.HEALTH):
        for group in dict.fromkeys(row.group for row in of_kind[kind]):
            figures[f"{kind.value}/{group or 'other'}"] = _good_share(
                [row for row in of_kind[kind] if row.group == group]
            )
    for flag in (health.REPETITION, health.ONE_TOKEN, health.NO_END_OF_TURN, health.NON_FINITE, health.EMPTY):
        figures[flag] = _flagged(rows, flag)
    figures.update(_same_answer(rows))
    return figures


def _against_base(name: str, rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    """The base weight's share and the ratio to it; no ratio where the base weight knows nothing that could be
    lost.
    """
    if rows[0].base_ok is None:
        return {}
    known = sum(row.base_ok is True for row in rows)
    figures = {f"{name}_base": _Figure(known / len(rows), total=len(rows))}
    if known:
        lost = tuple(row for row in rows if row.base_ok and not row.ok)
        figures[f"{name}_ratio"] = _Figure(sum(row.ok for row in rows) / known, lost, len(rows))
    return figures


def _same_answer(rows: Sequence[ProbeRow]) -> dict[str, _Figure]:
    """The share of answers marked alike, averaged over groups: one large group that fails in one way is no
    collapse.
    """
    groups: dict[tuple[str, str], list[ProbeRow]] = defaultdict(list)
    for row in rows:
        if row.kind != ProbeKind.IDENTITY:
            groups[row.kind, row.group].append(row)
    if not groups:
        return {}
    shares = [_flagged(pool, SAME_ANSWER) for pool in groups.values()]
    against = tuple(row for share in shares for row in share.against)
    return {
        SAME_ANSWER: _Figure(
            sum(share.value for share in shares) / len(shares), against, sum(share.total for share in shares)
        )
    }


def _applied(figures: dict[str, _Figure], thresholds: Thresholds) -> list[tuple[Check, _Figure]]:
    """Every limit for which there is a figure, the gravest outcome first."""
    checked: list[tuple[Check, _Figure]] = []

    def hold(name: str, limit: float | None, at_least: bool, outcome: Outcome) -> None:
        if limit is not None and name in figures:
            value = figures[name].value
            ok = value >= limit if at_least else value <= limit
            checked.append((Check(name, value, limit, at_least, outcome, ok), figures[name]))

    if figures[health.NON_FINITE].value == 1.0:
        # Broken means all of them: the limit is the last share that leaves one answer to read.
        hold(health.NON_FINITE, 1.0 - 1.0 / figures[health.NON_FINITE].total, False, Outcome.BROKEN)
    for name, key, at_least in _COLLAPSE:
        hold(name, getattr(thresholds, key), at_least, Outcome.COLLAPSED)
    for name, key, at_least in _UNDERFIT:
        hold(name, getattr(thresholds, key), at_least, Outcome.UNDERFIT)
    for name, figure in figures.items():
        if "/" in name:
            hold(name, thresholds.ability_group_min, True, Outcome.UNDERFIT)
            hold(name, _group_limit(figure, thresholds), True, Outcome.UNDERFIT)
    return checked


def _group_limit(figure: _Figure, thresholds: Thresholds) -> float | None:
    """Least share of a group, in whole answers: what the base weight knows, less what may be lost by ratio or
    by slack.
    """
    ratio = thresholds.ability_group_ratio_min
    if ratio is None or figure.known <= thresholds.ability_group_floor * figure.total:
        return None
    by_ratio = math.floor((1.0 - ratio) * figure.known + 1e-9)  # 0.2 of 5 is 1, and not 0.9999999
    return max(0, figure.known - max(by_ratio, thresholds.ability_group_slack)) / figure.total


def _outcome(checks: Sequence[Check]) -> Outcome:
    failed = {check.outcome for check in checks if not check.ok}
    return next(
        (o for o in (Outcome.BROKEN, Outcome.COLLAPSED, Outcome.UNDERFIT) if o in failed), Outcome.PASSED
    )


def _evidence(checked: Sequence[tuple[Check, _Figure]]) -> list[str]:
    """One line for each figure that passes a limit; the gravest of its limits is named."""
    first: dict[str, str] = {}
    for check, figure in checked:
        if not check.ok:
            first.setdefault(check.figure, _line(check, figure))
    return list(first.values())


def _line(check: Check, figure: _Figure) -> str:
    sign = "≥" if check.at_least else "≤"
    text = f"{check.figure} {check.value:.3f}, limit {sign} {check.limit:.3f} ({len(figure.against)} of {figure.total})"
    if figure.against:
        row = figure.against[0]
        text += f": {_shown(row.prompt)} → {_shown(row.answer)}"
    return text


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line[:_SHOWN] + "…" if len(line) > _SHOWN else line or "(nothing)"
