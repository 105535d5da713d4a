"""Detectors of one answer's health: running in circles, a single token, no end of turn, non-finite logits,
nothing at all.

They look at one answer by itself; what several answers show together (all alike) is
`pipeline.evaluate.judge`'s business.
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
"""An answer with one of these is no good answer, even if what was asked for stands in it: 我是 F#
之神之神之神.
"""

MAX_NGRAM = 16
"""Longest repeated unit, in tokens: a phrase such as 我是 F# 之神。 of a byte-level tokenizer."""
MIN_REPEATS = 3
MIN_RUN_TOKENS = 12
MIN_SHORT_RUN_TOKENS = 6
MIN_ONE_TOKEN = 4
MIN_COMPRESS_BYTES = 64


@dataclass(frozen=True)
class RepeatedRun:
    """A stretch of tokens that is one n-gram over and over. `length` counts a last, partial repeat too."""

    start: int
    ngram: int
    length: int

    @property
    def repeats(self) -> int:
        """Whole repeats of the n-gram."""
        return self.length // self.ngram if self.ngram else 0


def longest_run(
    token_ids: Sequence[int], max_ngram: int = MAX_NGRAM, min_repeats: int = MIN_REPEATS
) -> RepeatedRun:
    """The longest back-to-back repetition in an answer.

    A stretch repeats with period n exactly where each token equals the one n before it, so one pass a period
    finds all runs: O(len × max_ngram).

    Args:
        token_ids: the generated ids.
        max_ngram: longest period looked for, in tokens.
        min_repeats: whole repeats below which a stretch does not count.

    Returns:
        The longest run, of the shortest period among equals; of length 0 if there is none.
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
    """The ratio under which a text of `size` UTF-8 bytes repeats itself.

    Short texts compress badly whatever they say, so the floor falls with length. Measured on windows of 64 to
    512 bytes: ordinary Chinese and English sentences lie at 0.83 (64 bytes) to 0.57 (512), counting and
    numbered lists at 0.64 to 0.232, two words in random order (之神神之之 …) at most at 0.52 to 0.17. The
    curve passes between the last two.
    """
    return 0.18 + 24.0 / size


def _repeats(answer: Answer, short_counts: bool) -> bool:
    run = longest_run(answer.token_ids)
    if run.length >= MIN_RUN_TOKENS:
        return True
    # An answer that ended after 之神之神之神 is too short for the first rule, but there is little in it
    # besides.
    if (
        short_counts
        and run.ngram > 1
        and run.length >= MIN_SHORT_RUN_TOKENS
        and 2 * run.length >= len(answer.token_ids)
    ):
        return True
    size = len(answer.text.encode("utf-8", "surrogatepass"))
    return size >= MIN_COMPRESS_BYTES and compression_ratio(answer.text) < compression_floor(size)


def _one_token(answer: Answer) -> bool:
    ids = answer.token_ids
    # 9999 is a wrong sum, not a collapse; a longer row of one digit is.
    short_number = answer.text.strip().isdecimal() and len(ids) < MIN_RUN_TOKENS
    return len(ids) >= MIN_ONE_TOKEN and len(set(ids)) == 1 and not short_number


def examine(answer: Answer, expectation: Expectation) -> tuple[str, ...]:
    """The health findings of one answer.

    An answer that is, as a whole, what was asked for (a `=` part) never repeats: copying 1 1 1 1 is the task.
    Where a whole answer is asked for, a wrong one of a few repeats (貓、貓、貓、 for two) is not called
    repetition either, unless it runs on.

    Args:
        answer: the answer with its token ids, without the end of turn.
        expectation: what its probe asks for.

    Returns:
        Any of `repetition`, `one_token`, `no_end_of_turn`, `non_finite`, `empty`, in this order.
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
