from collections import Counter

import pytest

from stages.corpus.phrases import lexicon
from tests.stages.corpus.phrases.checks import has_chinese


def test_tables_are_large_and_unambiguous() -> None:
    nouns = lexicon.nouns()
    assert len(nouns) >= 120 and len({en for en, _, _ in nouns}) == len({zh for _, zh, _ in nouns}) == len(
        nouns
    )
    for pairs in (lexicon.antonyms_zh(), lexicon.antonyms_en()):
        words = [word for pair in pairs for word in pair]
        assert len(pairs) >= 55 and [w for w, n in Counter(words).items() if n > 1] == []
    assert len(lexicon.antonyms_zh()) + len(lexicon.antonyms_en()) >= 110
    countries = lexicon.capitals()
    assert len(countries) >= 60 and len({c[0] for c in countries}) == len({c[2] for c in countries}) == len(
        countries
    )
    things = lexicon.colors()
    assert len({t[0] for t in things}) == len({t[1] for t in things}) == len(things)


@pytest.mark.parametrize("rows", [lexicon.capitals(), lexicon.colors()], ids=["capitals", "colors"])
def test_rows_have_both_languages(rows: list[tuple[str, str, str, str]]) -> None:
    for en, zh, answer_en, answer_zh in rows:
        assert (en + answer_en).isascii() and has_chinese(zh) and has_chinese(answer_zh)


def test_kinds_are_those_of_the_nouns_and_circles_are_whole() -> None:
    assert {kind for _, _, kind in lexicon.nouns()} - {""} == set(lexicon.KINDS)
    assert len(set(lexicon.WEEKDAYS_ZH)) == len(set(lexicon.WEEKDAYS_EN)) == 7
    assert len(set(lexicon.MONTHS_ZH)) == len(set(lexicon.MONTHS_EN)) == 12
