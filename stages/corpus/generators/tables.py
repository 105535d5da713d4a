"""Skills learned as tables: translation both ways, antonyms, capitals, what comes next, colours, kinds.

Every value stands in training under several phrasings; held out are pairs of value and phrasing, and whole
phrasings.
"""

from __future__ import annotations

from itertools import pairwise

from stages.corpus import chance
from stages.corpus.phrases import lexicon
from stages.corpus.phrases.table_phrasings import ANTONYM, CAPITAL, COLOR, EN_TO_ZH, KIND, NEXT, ZH_TO_EN
from stages.corpus.samples import Lang, Phrasing, Sample, fill, in_lang

HELDOUT_PER_LANG = 20
"""Held-out samples of each table skill in each language, half of them with unseen phrasings."""

Values = dict[Lang, list[tuple[str, str]]]
"""What stands in the slot → the answer, for each language of the prompt."""


def samples() -> list[Sample]:
    """Training and held-out samples of all table skills."""
    nouns = lexicon.nouns()
    kinds = [(en, zh, kind, lexicon.KINDS[kind]) for en, zh, kind in nouns if kind]
    made = _table(
        "en_to_zh", EN_TO_ZH, 4, {lang: [(en, _script(lang, zh)) for en, zh, _ in nouns] for lang in Lang}
    )
    made += _table(
        "zh_to_en", ZH_TO_EN, 4, {lang: [(_script(lang, zh), en) for en, zh, _ in nouns] for lang in Lang}
    )
    made += _table("antonym", ANTONYM, 8, _antonyms())
    made += _table("capital", CAPITAL, 5, _columns(lexicon.capitals()))
    made += _table("sequence", NEXT, 3, _sequences())
    made += _table("color", COLOR, 6, _columns(lexicon.colors()))
    made += _table("category", KIND, 4, _columns(kinds))
    return made


def _script(lang: Lang, zh: str) -> str:
    """Chinese in the script of the prompt; English prompts get the traditional one."""
    return in_lang(lang, zh, zh)


def _columns(rows: list[tuple[str, str, str, str]]) -> Values:
    """From rows of (slot in English, in Chinese, answer in English, in Chinese)."""
    return {
        lang: [(in_lang(lang, x_zh, x_en), in_lang(lang, y_zh, y_en)) for x_en, x_zh, y_en, y_zh in rows]
        for lang in Lang
    }


def _antonyms() -> Values:
    values: Values = {}
    for lang in Lang:
        pairs = lexicon.antonyms_en() if lang is Lang.EN else lexicon.antonyms_zh()
        both = [*pairs, *((second, first) for first, second in pairs)]
        values[lang] = [
            (in_lang(lang, first, first), in_lang(lang, second, second)) for first, second in both
        ]
    return values


def _sequences() -> Values:
    values: Values = {}
    letters = [chr(ord("A") + i) for i in range(26)]
    for lang in Lang:
        weekdays = lexicon.WEEKDAYS_EN if lang is Lang.EN else lexicon.WEEKDAYS_ZH
        months = lexicon.MONTHS_EN if lang is Lang.EN else lexicon.MONTHS_ZH
        circles = [
            pair for names in (weekdays, months) for pair in zip(names, (*names[1:], names[0]), strict=True)
        ]
        line = list(pairwise(letters)) + [(str(i), str(i + 1)) for i in range(100)]
        values[lang] = circles + line
    return values


def _table(group: str, options: tuple[Phrasing, ...], per_value: int, values: Values) -> list[Sample]:
    """Each value under `per_value` phrasings of each language, and held-out samples of that language."""
    made: list[Sample] = []
    for lang in Lang:
        known = [p for p in options if p.lang is lang and not p.heldout]
        unseen = [p for p in options if p.lang is lang and p.heldout]
        tested = chance.sample(values[lang], HELDOUT_PER_LANG, f"{group} {lang} tested")
        for position, (x, y) in enumerate(tested):
            new = position % 2 == 1
            phrasing = (
                chance.pick(unseen, f"{group} {x}")
                if new
                else chance.shuffled(known, f"{group} {lang} {x}")[-1]
            )
            made.append(Sample(group, lang, fill(phrasing.template, f"{group} {x}", x=x), y, heldout=True))
        for x, y in values[lang]:
            for phrasing in chance.shuffled(known, f"{group} {lang} {x}")[:per_value]:
                made.append(Sample(group, lang, fill(phrasing.template, f"{group} {x}", x=x), y))
    return made
