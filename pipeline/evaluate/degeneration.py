"""Finds degeneration in one answer: repetition, a single token, no end of turn, non-finite logits, no text.

`pipeline.evaluate.mode_collapse` compares several answers.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from stages.contract.events import Answer, Finish
from stages.contract.rows import Expectation

REPETITION = "repetition"
ONE_TOKEN = "one_token"
NO_END_OF_TURN = "no_end_of_turn"
NON_FINITE = "non_finite"
EMPTY = "empty"

SPOILING = frozenset({REPETITION, ONE_TOKEN, NON_FINITE, EMPTY})
"""An answer with one of these is not good, even if it contains what was asked for: 我是 F# 之神之神之神."""

MAX_NGRAM = 16
"""Longest repeated unit in tokens, enough for a phrase such as 我是 F# 之神。 in a byte-level tokenizer."""
MIN_REPEATS = 3
MIN_RUN_TOKENS = 12
MIN_SHORT_RUN_TOKENS = 6
MIN_ONE_TOKEN = 4
MIN_COMPRESS_BYTES = 64


@dataclass(frozen=True)
class RepeatedRun:
    """Consecutive tokens that repeat one n-gram."""

    start: int
    """Index of its first token."""
    ngram: int
    """Tokens of the repeated unit."""
    length: int
    """Tokens of all repeats, the last of which may be partial."""

    @property
    def repeats(self) -> int:
        """Whole repeats of the n-gram."""
        return self.length // self.ngram if self.ngram else 0


def longest_run(
    token_ids: Sequence[int], max_ngram: int = MAX_NGRAM, min_repeats: int = MIN_REPEATS
) -> RepeatedRun:
    """The longest consecutive repetition in an answer.

    Tokens repeat with period n as long as each equals the one n before it, so one pass per period finds all
    runs: O(len × max_ngram).

    Args:
        token_ids: the generated ids.
        max_ngram: longest period, in tokens.
        min_repeats: least number of whole repeats.

    Returns:
        The longest run, and among equals the one with the shortest period; of length 0 if there is none.
    """
    best = RepeatedRun(0, 0, 0)
    for ngram in range(1, max_ngram + 1):
        equal = 0
        for i in range(ngram, len(token_ids)):
            equal = equal + 1 if token_ids[i] == token_ids[i - ngram] else 0
            length = equal + ngram
            if length > best.length and length >= min_repeats * ngram:
                best = RepeatedRun(i + 1 - length, ngram, length)
    return best


def compression_ratio(text: str) -> float:
    """Size of the zlib stream (level 9) over the size of the text in UTF-8 bytes; 1.0 for an empty text."""
    data = text.encode("utf-8", "surrogatepass")
    return len(zlib.compress(data, 9)) / len(data) if data else 1.0


def compression_floor(size: int) -> float:
    """The compression ratio below which a text of `size` UTF-8 bytes counts as repetition.

    Short texts always compress badly, so the floor falls with length. Measured on windows of 64 to 512 bytes:
    ordinary Chinese and English sentences have ratios of 0.83 (64 bytes) to 0.57 (512), counting and numbered
    lists 0.64 to 0.232, two words in random order (之神神之之 …) at most 0.52 to 0.17. The curve lies between
    the last two.
    """
    return 0.18 + 24.0 / size


def _repeats(answer: Answer, short_counts: bool) -> bool:
    run = longest_run(answer.token_ids)
    if run.length >= MIN_RUN_TOKENS:
        return True
    # 之神之神之神 is too short for the first rule, but there is little else in such an answer.
    most_of_it = run.length >= MIN_SHORT_RUN_TOKENS and 2 * run.length >= len(answer.token_ids)
    if short_counts and run.ngram > 1 and most_of_it:
        return True
    size = len(answer.text.encode("utf-8", "surrogatepass"))
    return size >= MIN_COMPRESS_BYTES and compression_ratio(answer.text) < compression_floor(size)


def _one_token(answer: Answer) -> bool:
    ids = answer.token_ids
    # 9999 is a wrong sum and no collapse; more of one digit is.
    short_number = answer.text.strip().isdecimal() and len(ids) < MIN_RUN_TOKENS
    return len(ids) >= MIN_ONE_TOKEN and len(set(ids)) == 1 and not short_number


def examine(answer: Answer, expectation: Expectation) -> tuple[str, ...]:
    """The signs of degeneration in one answer.

    An answer that is, as a whole, what was asked for (a `=` part) is never repetition: to copy 1 1 1 1 is the
    task. Where a whole answer is asked for, a wrong one with a few repeats (貓、 three times instead of two)
    is no repetition either, unless it goes on and on.

    Args:
        answer: with its token ids, without the end of turn.
        expectation: of its probe.

    Returns:
        Those of `repetition`, `one_token`, `no_end_of_turn`, `non_finite`, `empty` that apply, in this order.
    """
    exact = tuple(parts for parts in expectation.alternatives if any(part.startswith("=") for part in parts))
    found: list[str] = []
    if not (exact and Expectation(exact, expectation.forbidden).met_by(answer.text)):
        one_token = _one_token(answer)
        if one_token or _repeats(answer, short_counts=not exact):
            found.append(REPETITION)
        if one_token:
            found.append(ONE_TOKEN)
    if answer.finish is Finish.LENGTH:
        found.append(NO_END_OF_TURN)
    if answer.finish is Finish.NON_FINITE:
        found.append(NON_FINITE)
    if not answer.text.strip():
        found.append(EMPTY)
    return tuple(found)
