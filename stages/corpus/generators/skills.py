"""Skills whose answers are computed: addition, subtraction, comparison, ordering, counting, copying.

Values are held out, not only phrasings: no training prompt has the numbers, words or strings of a held-out
one, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations, count

from stages.corpus.examples import Example, Language, Phrasing, fill, in_language, select
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
from stages.corpus.seeded import seeded_choice, seeded_int, seeded_sample, seeded_shuffle

HELDOUT_PER_SKILL = 60


def examples() -> list[Example]:
    """Training and held-out examples of all computed skills."""
    return [
        *_arithmetic("addition", ADDITION, lambda a, b: a + b, both_orders=True),
        *_arithmetic("subtraction", SUBTRACTION, lambda a, b: a - b),
        *_comparison(),
        *_ordering(),
        *_lists("counting", COUNTING, 4000, _count_lists(), lambda items: str(len(items))),
        *_lists("copying", COPYING, 9000, _copy_lists(), None),
    ]


def _choose(group: str, options: tuple[Phrasing, ...], key: str, heldout: bool) -> Phrasing:
    """A training phrasing; for half of the held-out examples one that is held out. Any language."""
    language = seeded_choice(list(Language), f"{group} lang {key}")
    unseen = heldout and seeded_int(f"{group} unseen {key}", 2) == 1
    return seeded_choice(select(options, language, unseen), f"{group} phrasing {key}")


def _arithmetic(
    group: str,
    options: tuple[Phrasing, ...],
    answer: Callable[[int, int], int],
    both_orders: bool = False,
) -> list[Example]:
    made = []
    pairs = [(a, b) for a in range(51) for b in range(a + 1)]
    for position, (a, b) in enumerate(seeded_shuffle(pairs, group)):
        heldout = position < HELDOUT_PER_SKILL
        for repeat in range(1 if heldout else 3):
            key = f"{a} {b} {repeat}"
            swap = both_orders and seeded_int(f"{group} swap {a} {b}", 2) != repeat % 2
            first, second = (b, a) if swap else (a, b)
            phrasing = _choose(group, options, key, heldout)
            prompt = fill(phrasing.template, key, a=first, b=second)
            made.append(Example(group, phrasing.language, prompt, str(answer(first, second)), heldout))
    return made


def _comparison() -> list[Example]:
    made = []
    pairs = seeded_sample(list(combinations(range(100), 2)), 4500, "comparison")
    for position, pair in enumerate(pairs):
        heldout = position < HELDOUT_PER_SKILL
        key = f"{pair}"
        larger = position % 2 == 0
        phrasing = _choose("comparison", LARGER if larger else SMALLER, key, heldout)
        first, second = seeded_shuffle(pair, f"comparison {key}")
        answer = str(max(pair) if larger else min(pair))
        prompt = fill(phrasing.template, key, a=first, b=second)
        made.append(Example("comparison", phrasing.language, prompt, answer, heldout))
    return made


def _ordering() -> list[Example]:
    digits = [c for n in (3, 4) for c in combinations(range(10), n)]
    numbers = seeded_sample(list(combinations(range(10, 60), 3)), 4000, "ordering numbers")
    made = []
    for sets, heldout_count, repeats in ((digits, 40, 6), (numbers, 20, 1)):
        for position, chosen in enumerate(seeded_shuffle(sets, f"ordering {len(sets)}")):
            heldout = position < heldout_count
            for repeat in range(1 if heldout else repeats):
                key = f"{chosen} {repeat}"
                ascending = seeded_int(f"ordering direction {key}", 2) == 0
                phrasing = _choose("ordering", ASCENDING if ascending else DESCENDING, key, heldout)
                shown = ", ".join(map(str, seeded_shuffle(chosen, f"ordering shown {key}")))
                answer = ", ".join(map(str, sorted(chosen, reverse=not ascending)))
                prompt = fill(phrasing.template, key, items=shown)
                made.append(Example("ordering", phrasing.language, prompt, answer, heldout))
    return made


@cache
def _words(language: Language) -> list[str]:
    return [in_language(language, zh, en) for en, zh, _ in nouns()]


def _count_lists() -> Iterator[tuple[Language, list[str]]]:
    """Endless lists of 2 to 9 items: words, one repeated word, or numbers."""
    for number in count():
        key = f"count list {number}"
        language = seeded_choice(list(Language), key + " lang")
        length = 2 + seeded_int(key + " length", 8)
        kind = seeded_int(key + " kind", 3)
        if kind == 0:
            items = seeded_sample(_words(language), length, key)
        elif kind == 1:
            items = [seeded_choice(_words(language), key)] * length
        else:
            items = [str(seeded_int(f"{key} {i}", 100)) for i in range(length)]
        yield language, items


def _copy_lists() -> Iterator[tuple[Language, list[str]]]:
    """Endless strings of 2 to 5 words, digits or both."""
    for number in count():
        key = f"copy list {number}"
        language = seeded_choice(list(Language), key + " lang")
        length = 2 + seeded_int(key + " length", 4)
        words = seeded_sample(_words(language), length, key)
        digits = [str(seeded_int(f"{key} {i}", 100)) for i in range(length)]
        kind = seeded_int(key + " kind", 3)
        pairs = enumerate(zip(words, digits, strict=True))
        mixed = [seeded_choice(pair, f"{key} {i}") for i, pair in pairs]
        yield language, (words, digits, mixed)[kind]


def _lists(
    group: str,
    options: tuple[Phrasing, ...],
    size: int,
    source: Iterator[tuple[Language, list[str]]],
    answer: Callable[[list[str]], str] | None,
) -> list[Example]:
    """`size` examples of different lists, the first ones held out. Without `answer` the list is copied."""
    made: list[Example] = []
    seen: set[tuple[str, ...]] = set()
    while len(made) < size:
        language, items = next(source)
        if tuple(sorted(items)) in seen:
            continue
        seen.add(tuple(sorted(items)))
        heldout = len(made) < HELDOUT_PER_SKILL
        key = f"{len(made)}"
        unseen = heldout and len(made) % 2 == 1
        phrasing = seeded_choice(select(options, language, unseen), f"{group} {key}")
        joined = (" " if answer is None else ", ").join(items)
        target = joined if answer is None else answer(items)
        made.append(Example(group, language, fill(phrasing.template, key, items=joined), target, heldout))
    return made
