"""Skills learned as tables: translation both ways, antonyms, capitals, what comes next, colours, kinds.

Every value is trained under several phrasings. Held out are pairs of value and phrasing, and whole phrasings.
"""

from __future__ import annotations

from itertools import pairwise

from stages.corpus.examples import Example, Language, Phrasing, fill, in_language, select
from stages.corpus.phrases import lexicon
from stages.corpus.phrases.table_phrasings import ANTONYM, CAPITAL, COLOR, EN_TO_ZH, KIND, NEXT, ZH_TO_EN
from stages.corpus.seeded import seeded_choice, seeded_sample, seeded_shuffle

HELDOUT_PER_LANGUAGE = 20
"""Held-out examples of each table skill in each language, half of them with unseen phrasings."""

Values = dict[Language, list[tuple[str, str]]]
"""Pairs of slot value and answer, by the language of the prompt."""


def examples() -> list[Example]:
    """Training and held-out examples of all table skills."""
    nouns = lexicon.nouns()
    kinds = [(en, zh, kind, lexicon.KINDS[kind]) for en, zh, kind in nouns if kind]
    to_zh, to_en = {}, {}
    for language in Language:
        # English prompts get traditional Chinese.
        pairs = [(en, in_language(language, zh, zh)) for en, zh, _ in nouns]
        to_zh[language], to_en[language] = pairs, [(zh, en) for en, zh in pairs]
    return [
        *_table("en_to_zh", EN_TO_ZH, 4, to_zh),
        *_table("zh_to_en", ZH_TO_EN, 4, to_en),
        *_table("antonym", ANTONYM, 8, _antonyms()),
        *_table("capital", CAPITAL, 5, _columns(lexicon.capitals())),
        *_table("sequence", NEXT, 3, _sequences()),
        *_table("color", COLOR, 6, _columns(lexicon.colors())),
        *_table("category", KIND, 4, _columns(kinds)),
    ]


def _columns(rows: list[tuple[str, str, str, str]]) -> Values:
    """From rows of (slot in English, in Chinese, answer in English, in Chinese)."""
    values: Values = {}
    for language in Language:
        values[language] = [
            (in_language(language, slot_zh, slot_en), in_language(language, answer_zh, answer_en))
            for slot_en, slot_zh, answer_en, answer_zh in rows
        ]
    return values


def _antonyms() -> Values:
    values: Values = {}
    for language in Language:
        pairs = lexicon.antonyms_en() if language is Language.EN else lexicon.antonyms_zh()
        words = [(in_language(language, a, a), in_language(language, b, b)) for a, b in pairs]
        values[language] = words + [(b, a) for a, b in words]
    return values


def _sequences() -> Values:
    values: Values = {}
    letters = [chr(ord("A") + i) for i in range(26)]
    for language in Language:
        weekdays = lexicon.WEEKDAYS_EN if language is Language.EN else lexicon.WEEKDAYS_ZH
        months = lexicon.MONTHS_EN if language is Language.EN else lexicon.MONTHS_ZH
        circles = [
            pair for names in (weekdays, months) for pair in zip(names, (*names[1:], names[0]), strict=True)
        ]
        line = list(pairwise(letters)) + [(str(i), str(i + 1)) for i in range(100)]
        values[language] = circles + line
    return values


def _table(group: str, options: tuple[Phrasing, ...], per_value: int, values: Values) -> list[Example]:
    """Each value under `per_value` phrasings of each language, and held-out examples of that language."""
    made: list[Example] = []
    for language in Language:
        known, unseen = select(options, language, False), select(options, language, True)
        tested = seeded_sample(values[language], HELDOUT_PER_LANGUAGE, f"{group} {language} tested")
        for position, (slot, answer) in enumerate(tested):
            if position % 2 == 1:
                phrasing = seeded_choice(unseen, f"{group} {slot}")
            else:
                phrasing = seeded_shuffle(known, f"{group} {language} {slot}")[-1]
            prompt = fill(phrasing.template, f"{group} {slot}", x=slot)
            made.append(Example(group, language, prompt, answer, heldout=True))
        for slot, answer in values[language]:
            for phrasing in seeded_shuffle(known, f"{group} {language} {slot}")[:per_value]:
                prompt = fill(phrasing.template, f"{group} {slot}", x=slot)
                made.append(Example(group, language, prompt, answer))
    return made
