"""Skills: answers recomputed by other code than the generator's, held-out slot values never trained, tables
unambiguous.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from stages.corpus import corpus
from stages.corpus.phrases import lexicon, table_phrasings
from stages.corpus.samples import Lang, Sample, prompt_key


def of(group: str, heldout: bool | None = None) -> list[Sample]:
    return [s for s in corpus.everything() if s.group == group and heldout in (None, s.heldout)]


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


@pytest.mark.parametrize("group", ["addition", "subtraction"])
def test_arithmetic_is_right(group: str) -> None:
    for sample in of(group):
        a, b = numbers(sample.prompt)
        if group == "addition":
            assert int(sample.target) == a + b
        else:
            assert int(sample.target) == max(a, b) - min(a, b)
            from_second = sample.prompt.startswith(("Subtract", "Please subtract"))
            assert (b >= a) if from_second else (a >= b), sample.prompt


def test_comparison_is_right() -> None:
    for sample in of("comparison"):
        a, b = numbers(sample.prompt)
        larger = any(word in sample.prompt for word in ("大", "larger", "bigger"))
        assert a != b and int(sample.target) == (max(a, b) if larger else min(a, b)), sample


def test_ordering_is_right() -> None:
    descending = ("由大", "從大", "从大", "descending", "large to small", "largest to smallest")
    for sample in of("ordering"):
        expected = sorted(numbers(sample.prompt), reverse=any(word in sample.prompt for word in descending))
        assert numbers(sample.target) == expected, sample


def test_counting_is_right() -> None:
    for sample in of("counting"):
        assert int(sample.target) == sample.prompt.count(",") + 1, sample


def test_copying_is_right() -> None:
    for sample in of("copying"):
        assert sample.prompt.endswith(sample.target)
        assert sample.prompt[: -len(sample.target)].strip()[-1] in "：:"


@pytest.mark.parametrize("group", ["addition", "subtraction", "comparison", "ordering"])
def test_heldout_numbers_are_in_no_training_prompt_in_any_order(group: str) -> None:
    trained = {tuple(sorted(numbers(s.prompt))) for s in of(group, False)}
    heldout = {tuple(sorted(numbers(s.prompt))) for s in of(group, True)}
    assert len(heldout) >= 50
    assert not trained & heldout


def test_heldout_lists_are_in_no_training_prompt() -> None:
    trained = {tuple(sorted(s.target.split())) for s in of("copying", False)}
    assert not trained & {tuple(sorted(s.target.split())) for s in of("copying", True)}
    lists = {s.prompt.split("：")[-1] for s in of("counting", False)}
    assert not lists & {s.prompt.split("：")[-1] for s in of("counting", True)}


@pytest.mark.parametrize("group", corpus.SKILLS)
def test_heldout_has_40_prompts_in_all_languages_and_splits_phrasings(group: str) -> None:
    heldout = of(group, True)
    assert len(heldout) >= 40
    assert min(Counter(s.lang for s in heldout).values()) >= 10


@pytest.mark.parametrize(
    ("group", "table"),
    [
        ("en_to_zh", table_phrasings.EN_TO_ZH),
        ("zh_to_en", table_phrasings.ZH_TO_EN),
        ("antonym", table_phrasings.ANTONYM),
        ("capital", table_phrasings.CAPITAL),
        ("sequence", table_phrasings.NEXT),
        ("color", table_phrasings.COLOR),
        ("category", table_phrasings.KIND),
    ],
)
def test_half_of_the_heldout_phrasings_of_tables_are_unseen(group: str, table: tuple) -> None:
    unseen = [
        re.compile(re.escape(p.template.rstrip("？?")).replace(r"\{x\}", ".+") + "[?？]?")
        for p in table
        if p.heldout
    ]
    heldout = of(group, True)
    count = sum(any(p.fullmatch(s.prompt) for p in unseen) for s in heldout)
    assert 0.4 * len(heldout) <= count <= 0.6 * len(heldout)
    assert not any(p.fullmatch(s.prompt) for p in unseen for s in of(group, False))


@pytest.mark.parametrize(
    "group", ["en_to_zh", "zh_to_en", "antonym", "capital", "sequence", "color", "category"]
)
def test_every_heldout_value_of_a_table_is_trained_under_other_phrasings(group: str) -> None:
    answers = Counter((s.lang is Lang.EN, s.target) for s in of(group, False))
    for sample in of(group, True):
        assert answers[sample.lang is Lang.EN, sample.target] >= 2, sample


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


def test_simplified_values_stay_unambiguous() -> None:
    asked: dict[str, str] = {}
    for sample in corpus.everything():
        if sample.group in corpus.SKILLS and sample.lang is Lang.HANS:
            assert asked.setdefault(prompt_key(sample.prompt), sample.target) == sample.target
