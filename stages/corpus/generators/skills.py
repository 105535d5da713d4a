"""Skills whose answers are computed: addition, subtraction, comparison, ordering, counting, copying.

Slot values are held out, not only phrasings: no training prompt has the numbers, lists or strings of a
held-out one, in whatever order they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from stages.corpus import chance
from stages.corpus.phrases.lexicon import nouns
from stages.corpus.phrases.skill_phrasings import (
    ADDITION,
    ASCENDING,
    COPYING,
    COUNTING,
    DESCENDING,
    LARGER,
    SMALLER,
    SUBTRACTION,
)
from stages.corpus.samples import Lang, Phrasing, Sample, fill, in_lang

HELDOUT_PER_SKILL = 60


def samples() -> list[Sample]:
    """Training and held-out samples of all computed skills."""
    made: list[Sample] = []
    made += _arithmetic(
        "addition",
        ADDITION,
        [(a, b) for a in range(51) for b in range(a + 1)],
        lambda a, b: a + b,
        both_orders=True,
    )
    made += _arithmetic(
        "subtraction", SUBTRACTION, [(a, b) for a in range(51) for b in range(a + 1)], lambda a, b: a - b
    )
    made += _comparison()
    made += _ordering()
    made += _lists("counting", COUNTING, 4000, _count_lists(), lambda items: str(len(items)))
    made += _lists("copying", COPYING, 9000, _copy_lists(), None)
    return made


def _choose(group: str, options: tuple[Phrasing, ...], key: str, heldout: bool) -> Phrasing:
    """A training phrasing, or for held-out samples an unseen one in half of the cases; languages are equally
    likely.
    """
    lang = chance.pick(list(Lang), f"{group} lang {key}")
    unseen = heldout and chance.number(f"{group} unseen {key}", 2) == 1
    return chance.pick(
        [p for p in options if p.lang is lang and p.heldout == unseen], f"{group} phrasing {key}"
    )


def _arithmetic(
    group: str,
    options: tuple[Phrasing, ...],
    pairs: list[tuple[int, int]],
    answer: Callable[[int, int], int],
    both_orders: bool = False,
) -> list[Sample]:
    made = []
    order = chance.shuffled(pairs, group)
    for position, (a, b) in enumerate(order):
        heldout = position < HELDOUT_PER_SKILL
        for repeat in range(1 if heldout else 3):
            key = f"{a} {b} {repeat}"
            swap = both_orders and chance.number(f"{group} swap {a} {b}", 2) != repeat % 2
            first, second = (b, a) if swap else (a, b)
            phrasing = _choose(group, options, key, heldout)
            prompt = fill(phrasing.template, key, a=first, b=second)
            made.append(Sample(group, phrasing.lang, prompt, str(answer(first, second)), heldout))
    return made


def _comparison() -> list[Sample]:
    made = []
    pairs = chance.sample(list(combinations(range(100), 2)), 4500, "comparison")
    for position, pair in enumerate(pairs):
        heldout = position < HELDOUT_PER_SKILL
        key = f"{pair}"
        larger = position % 2 == 0
        phrasing = _choose("comparison", LARGER if larger else SMALLER, key, heldout)
        first, second = chance.shuffled(pair, f"comparison {key}")
        answer = max(pair) if larger else min(pair)
        made.append(
            Sample(
                "comparison",
                phrasing.lang,
                fill(phrasing.template, key, a=first, b=second),
                str(answer),
                heldout,
            )
        )
    return made


def _ordering() -> list[Sample]:
    digits = [c for n in (3, 4) for c in combinations(range(10), n)]
    numbers = chance.sample(list(combinations(range(10, 60), 3)), 4000, "ordering numbers")
    made = []
    for sets, heldout_count, repeats in ((digits, 40, 6), (numbers, 20, 1)):
        for position, chosen in enumerate(chance.shuffled(sets, f"ordering {len(sets)}")):
            heldout = position < heldout_count
            for repeat in range(1 if heldout else repeats):
                key = f"{chosen} {repeat}"
                ascending = chance.number(f"ordering direction {key}", 2) == 0
                phrasing = _choose("ordering", ASCENDING if ascending else DESCENDING, key, heldout)
                shown = ", ".join(map(str, chance.shuffled(chosen, f"ordering shown {key}")))
                answer = ", ".join(map(str, sorted(chosen, reverse=not ascending)))
                made.append(
                    Sample(
                        "ordering", phrasing.lang, fill(phrasing.template, key, items=shown), answer, heldout
                    )
                )
    return made


def _words(lang: Lang) -> list[str]:
    return [in_lang(lang, zh, en) for en, zh, _ in nouns()]


def _count_lists() -> Iterator[tuple[Lang, list[str]]]:
    """Endless lists of 2 to 9 items: words, one repeated word, or numbers."""
    number = 0
    while True:
        key = f"count list {number}"
        lang = chance.pick(list(Lang), key + " lang")
        length = 2 + chance.number(key + " length", 8)
        kind = chance.number(key + " kind", 3)
        if kind == 0:
            items = chance.sample(_words(lang), length, key)
        elif kind == 1:
            items = [chance.pick(_words(lang), key)] * length
        else:
            items = [str(chance.number(f"{key} {i}", 100)) for i in range(length)]
        yield lang, items
        number += 1


def _copy_lists() -> Iterator[tuple[Lang, list[str]]]:
    """Endless strings of 2 to 5 words, digits or both."""
    number = 0
    while True:
        key = f"copy list {number}"
        lang = chance.pick(list(Lang), key + " lang")
        length = 2 + chance.number(key + " length", 4)
        words = chance.sample(_words(lang), length, key)
        digits = [str(chance.number(f"{key} {i}", 100)) for i in range(length)]
        kind = chance.number(key + " kind", 3)
        mixed = [chance.pick(both, f"{key} {i}") for i, both in enumerate(zip(words, digits, strict=True))]
        yield lang, (words, digits, mixed)[kind]
        number += 1


def _lists(
    group: str,
    options: tuple[Phrasing, ...],
    count: int,
    source: Iterator[tuple[Lang, list[str]]],
    answer: Callable[[list[str]], str] | None,
) -> list[Sample]:
    """`count` samples of different lists; the first `HELDOUT_PER_SKILL` are held out. Without `answer` the
    list is copied.
    """
    made: list[Sample] = []
    seen: set[tuple[str, ...]] = set()
    while len(made) < count:
        lang, items = next(source)
        if tuple(sorted(items)) in seen:
            continue
        seen.add(tuple(sorted(items)))
        heldout = len(made) < HELDOUT_PER_SKILL
        key = f"{len(made)}"
        unseen = heldout and len(made) % 2 == 1
        phrasing = chance.pick(
            [p for p in options if p.lang is lang and p.heldout == unseen], f"{group} {key}"
        )
        joined = (" " if answer is None else ", ").join(items)
        target = joined if answer is None else answer(items)
        made.append(Sample(group, lang, fill(phrasing.template, key, items=joined), target, heldout))
    return made
