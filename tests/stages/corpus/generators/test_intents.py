"""Intents: the text form, openers, question marks."""

from __future__ import annotations

from stages.corpus.examples import Language
from stages.corpus.generators.intents import OPENERS, examples, open_with, parse

TEXT = """
a | *是*的。 | *Yes* indeed.
+ 你們好嗎？
+ Are you well?
- I say so

b | 不。 | No.
+ 再見
"""


def test_parse() -> None:
    a, b = parse(TEXT)
    assert (a.group, a.answer) == ("a", ("*是*的。", "*Yes* indeed."))
    assert (a.train, a.heldout) == (("你們好嗎？", "Are you well?"), ("I say so",))
    assert (b.train, b.heldout) == (("再見",), ())


def test_training_phrasings_get_openers_and_lose_question_marks_but_heldout_ones_do_not() -> None:
    made = examples(TEXT, openers=3)
    heldout = [e for e in made if e.heldout]
    assert [(e.prompt, e.target, e.keyword) for e in heldout] == [("I say so", "Yes indeed.", "Yes")]
    questions = [e for e in made if e.group == "a" and not e.heldout]
    assert len(questions) == 3 * 3 * 2 and len({e.prompt for e in questions}) == len(questions)
    assert {e.language for e in questions} == set(Language)
    assert {"Are you well?", "Are you well", "你们好吗？", "你們好嗎"} <= {e.prompt for e in questions}
    greetings = [e.prompt for e in made if e.group == "b" and e.language is Language.ZH_HANT]
    assert greetings[0] == "再見" and len(set(greetings)) == 3
    assert {p.removesuffix("再見") for p in greetings} <= set(OPENERS[Language.ZH_HANT])


def test_an_english_phrasing_continues_in_lower_case() -> None:
    assert open_with("Hi, ", "Who are you?") == "Hi, who are you?"
    assert open_with("Hi, ", "I am sad") == "Hi, I am sad"
    assert open_with("Hi, ", "UFOs?") == "Hi, UFOs?"
    assert open_with("", "Who") == "Who" and open_with("嗨，", "UFO 是什麼？") == "嗨，UFO 是什麼？"
