"""Table skills: held-out phrasings are unseen, held-out values are trained, no prompt has two answers."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from stages.corpus import corpus
from stages.corpus.examples import Language, prompt_key
from stages.corpus.phrases import table_phrasings
from tests.stages.corpus.conftest import of


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
    answers = Counter((s.language is Language.EN, s.target) for s in of(group, False))
    for sample in of(group, True):
        assert answers[sample.language is Language.EN, sample.target] >= 2, sample


def test_simplified_values_stay_unambiguous() -> None:
    asked: dict[str, str] = {}
    for sample in corpus.all_examples():
        if sample.group in corpus.SKILLS and sample.language is Language.ZH_HANS:
            assert asked.setdefault(prompt_key(sample.prompt), sample.target) == sample.target
