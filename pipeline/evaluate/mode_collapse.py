"""Mode collapse: the text, or the identity, with which a weight wrongly answers different questions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipeline.core.types import ProbeRow
from stages.contract.rows import Expectation, Probe, ProbeKind, normalize

SAME_ANSWER = "same_answer"

_PREFIX = 6
"""Characters, after normalization, that tell an answer to be the identity: 我是f#之, 我是通義千問."""
_MIN_PREFIX = 4
"""Shorter answers are compared as a whole only: half of all sentences begin with 我是."""


def mark_same_answers(probes: Sequence[Probe], rows: Sequence[ProbeRow]) -> list[ProbeRow]:
    """Flags the wrong answers with the most frequent text, or those that say the identity if these are more.

    Answers to identity probes are left out: they should be the same. A text counts only if it answers
    different things: more than one group or, if all probes are of one group, more than one expectation. Good
    answers never count: many sums are 12.

    Args:
        probes: as answered.
        rows: one per probe, in the same order, with `ok` decided.

    Returns:
        The rows, some with the flag `same_answer` added.
    """
    others = [i for i, row in enumerate(rows) if row.kind != ProbeKind.IDENTITY]
    wrong = [i for i in others if not rows[i].ok]
    several_groups = len({(rows[i].kind, rows[i].group) for i in others}) > 1

    def subject(i: int) -> object:
        return (rows[i].kind, rows[i].group) if several_groups else probes[i].expectation

    by_text: dict[str, list[int]] = defaultdict(list)
    for i in wrong:
        by_text[normalize(rows[i].answer)].append(i)
    says_identity = _identity_test(probes, rows)
    candidates = [*by_text.values(), [i for i in wrong if says_identity(rows[i].answer)]]
    spread = [indices for indices in candidates if len({subject(i) for i in indices}) > 1]
    marked = set(sorted(spread, key=len)[-1]) if spread else set()
    return [
        replace(row, flags=(*row.flags, SAME_ANSWER)) if i in marked else row for i, row in enumerate(rows)
    ]


def _identity_test(probes: Sequence[Probe], rows: Sequence[ProbeRow]) -> Callable[[str], bool]:
    """A test whether a text says the identity: as probes expect it, or as the usual answer begins."""
    identity = [probe for probe in probes if probe.kind is ProbeKind.IDENTITY]
    wanted = {parts for probe in identity for parts in probe.expectation.alternatives}
    said = Counter(normalize(row.answer) for row in rows if row.kind == ProbeKind.IDENTITY)
    usual = said.most_common(1)[0][0][:_PREFIX] if said else ""

    def test(text: str) -> bool:
        starts = len(usual) >= _MIN_PREFIX and normalize(text).startswith(usual)
        return starts or any(Expectation((parts,), ()).met_by(text) for parts in wanted)

    return test
