"""Topics: both questions about every topic in every language, keywords in the answers, few held out."""

from __future__ import annotations

from collections import Counter

from stages.corpus.examples import Language
from stages.corpus.generators.topics import HELDOUT_EACH, examples, topics


def test_topics_are_many_and_stand_once() -> None:
    assert len({t.name for t in topics()}) == len(topics()) >= 80


def test_held_out_prompts_and_keywords() -> None:
    made = examples()
    assert Counter(e.language for e in made if e.heldout) == dict.fromkeys(Language, 2 * HELDOUT_EACH)
    assert all(e.keyword and e.keyword in e.target and "*" not in e.target for e in made)
    known = {e.prompt.rstrip("?？") for e in made}
    assert {"什麼是 F#", "什么是递归", "What is recursion", "Why does gravity matter"} <= known
