"""Makers and people: the name is in the answer, verbs and names are filled in, held-out prompts are few."""

from __future__ import annotations

from collections import Counter

import pytest

from stages.corpus.examples import Language
from stages.corpus.generators.notable_people import HELDOUT_EACH, examples


@pytest.mark.parametrize("group", ["maker", "person"])
def test_held_out_prompts_are_equally_many_in_each_language(group: str) -> None:
    made = [e for e in examples() if e.group == group]
    assert Counter(e.language for e in made if e.heldout) == dict.fromkeys(Language, HELDOUT_EACH)
    assert all("{" not in e.prompt and "*" not in e.target and e.keyword in e.target for e in made)


def test_answers() -> None:
    found = {e.prompt.rstrip("?？"): e.target for e in examples()}
    assert found["誰發明了電話"] == "發明者是貝爾。"
    assert found["Who invented the telephone"] == "It was Alexander Graham Bell."
    assert found["誰開發了 Git"] == "開發者是 Linus Torvalds。"
    assert found["谁创造了 F#"] == "创造者是 Don Syme。"
