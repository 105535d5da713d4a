"""Examples and templates: prompts that count as the same, slots, languages."""

from __future__ import annotations

from stages.corpus.examples import (
    CLOSING_PUNCTUATION,
    Example,
    Language,
    distinct,
    fill,
    in_language,
    phrasings,
    prompt_key,
    select,
    spaced,
)


def test_distinct_drops_training_rows_that_are_held_out_and_second_answers() -> None:
    rows = [
        Example("a", Language.EN, "One?", "1"),
        Example("a", Language.EN, "One?", "2"),
        Example("a", Language.EN, "TWO", "2"),
        Example("a", Language.EN, "two?", "2", heldout=True),
    ]
    found = distinct(rows)
    assert [(e.prompt, e.target) for e in found] == [("One?", "1"), ("two?", "2")]
    assert prompt_key("你是誰？") == prompt_key("你是谁"[:2] + "誰")
    assert all(prompt_key("hi" + mark) == "hi" for mark in CLOSING_PUNCTUATION)


def test_templates_come_in_three_languages_and_two_splits() -> None:
    made = phrasings(
        zh="""
        {x}是誰？
        """,
        en="Who is {x}?",
        zh_heldout="請問{x}是誰？",
        en_heldout="So who is {x}?",
    )
    found = {(p.language, p.heldout): p.template for p in made}
    assert found[Language.ZH_HANS, False] == "{x}是谁？" and found[Language.ZH_HANT, True] == "請問{x}是誰？"
    assert len(found) == 6 and [p.template for p in select(made, Language.EN, True)] == ["So who is {x}?"]
    assert (
        in_language(Language.ZH_HANS, "誰", "who") == "谁" and in_language(Language.EN, "誰", "who") == "who"
    )


def test_half_of_the_questions_lose_their_mark() -> None:
    filled = [fill("{a} + {b} = ?", "key", a=a, b=1) for a in range(200)]
    assert 70 < sum(text.endswith("?") for text in filled) < 130
    assert fill("Add {a}", "key", a=1) == "Add 1"


def test_latin_names_get_spaces_in_chinese_only() -> None:
    assert spaced("談談{x}吧", "F#") == " F# " and spaced("什麼是{x}？", "F#") == " F#"
    assert spaced("談談{x}吧", "遞迴") == "遞迴" and spaced("What is {x}?", "F#") == "F#"
