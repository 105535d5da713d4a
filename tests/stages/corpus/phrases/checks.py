"""What every table of phrases must hold, whatever it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stages.corpus.examples import Language, Phrasing, select
from stages.corpus.generators.intents import parse


def has_chinese(text: str) -> bool:
    """True if a CJK character is in it."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def check_intents(text: str, groups: set[str]) -> None:
    """Every line parses; each intent is asked in both languages in both splits; no phrasing stands twice."""
    intents = parse(text)
    assert {intent.group for intent in intents} == groups
    asked = [phrasing for intent in intents for phrasing in (*intent.train, *intent.heldout)]
    heads = len(intents) + len(intents) - 1  # with the empty lines between blocks
    assert len(asked) + heads == len(text.strip().splitlines()), "a line is neither a phrasing nor a head"
    assert len(set(asked)) == len(asked)
    for intent in intents:
        for split in (intent.train, intent.heldout):
            assert any(map(has_chinese, split)) and any(phrasing.isascii() for phrasing in split), intent
        assert has_chinese(intent.answer[0]) and intent.answer[1].isascii()
        assert [answer.count("*") for answer in intent.answer] == [2, 2], "one keyword is marked"


def check_topics(text: str) -> None:
    """Every topic has a name and two sentences, in Chinese and English, each with one keyword."""
    names = set()
    for block in text.strip().split("\n\n"):
        name, *sentences = (tuple(line.split(" | ")) for line in block.splitlines())
        assert len(name) == 2 and name not in names
        names.add(name)
        assert len(sentences) == 2, name
        for zh, en in sentences:
            assert has_chinese(zh) and zh.endswith("。") and en.isascii() and en.endswith("."), name
            assert zh.count("*") == en.count("*") == 2, name
    assert len(names) >= 20


def check_phrasings(phrasings: Sequence[Phrasing], slots: set[str]) -> None:
    """Every language has both splits, every template the same slots, and no template stands twice."""
    templates = [(p.language, p.template) for p in phrasings]
    assert len(set(templates)) == len(templates)
    for language in Language:
        assert len(select(phrasings, language, False)) >= 4 and len(select(phrasings, language, True)) >= 1
    for phrasing in phrasings:
        assert set(re.findall(r"\{(\w+)\}", phrasing.template)) == slots, phrasing
        assert has_chinese(phrasing.template) or phrasing.template.isascii()
