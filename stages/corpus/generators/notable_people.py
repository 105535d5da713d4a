"""Questions about makers and famous people: a name in the answer that is not the model's."""

from __future__ import annotations

from stages.corpus.examples import Example, Language, Phrasing, fill, in_language, select, spaced
from stages.corpus.phrases.notable_people import MAKER_QUESTIONS, MAKERS, PEOPLE, PERSON_QUESTIONS
from stages.corpus.seeded import seeded_choice, seeded_sample

HELDOUT_EACH = 12
"""Held-out prompts about makers, and about people, in each language."""


def examples() -> list[Example]:
    """Training and held-out examples about makers and people."""
    return [*_makers(), *_people()]


def _rows(text: str) -> list[list[str]]:
    return [line.split(" | ") for line in text.strip().splitlines()]


def _makers() -> list[Example]:
    made = []
    for verb_zh, verb_en, rest in _rows(MAKERS):
        zh, en, by_zh, by_en = rest.split(" / ")
        for language in Language:
            name, verb = in_language(language, zh, en), in_language(language, verb_zh, verb_en)
            by = in_language(language, by_zh, by_en)
            gap = " " if by.isascii() else ""
            text = f"It was {by}." if language is Language.EN else f"{verb}者是{gap}{by}。"
            made += _questions("maker", MAKER_QUESTIONS, language, name, text, by, verb)
    return _limited(made)


def _people() -> list[Example]:
    made = []
    for zh, en, about_zh, about_en in _rows(PEOPLE):
        for language in Language:
            name, about = in_language(language, zh, en), in_language(language, about_zh, about_en)
            text = f"{name} was {about}." if language is Language.EN else f"{name}是{about}。"
            keyword = about.split("*")[1]
            made += _questions("person", PERSON_QUESTIONS, language, name, text.replace("*", ""), keyword)
    return _limited(made)


def _questions(
    group: str,
    options: tuple[Phrasing, ...],
    language: Language,
    name: str,
    text: str,
    keyword: str,
    verb: str = "",
) -> list[Example]:
    """All training phrasings and one held-out phrasing about one thing or person."""
    unseen = seeded_choice(select(options, language, True), f"{group} {name}")
    made = []
    for phrasing in (*select(options, language, False), unseen):
        template = phrasing.template.replace("{verb}", verb)
        prompt = fill(template, f"{group} {name}", x=spaced(template, name))
        made.append(Example(group, language, prompt, text, phrasing.heldout, keyword))
    return made


def _limited(made: list[Example]) -> list[Example]:
    """All training examples and `HELDOUT_EACH` held-out ones in each language."""
    chosen = [e for e in made if not e.heldout]
    for language in Language:
        heldout = [e for e in made if e.heldout and e.language is language]
        chosen += seeded_sample(heldout, HELDOUT_EACH, f"heldout {language}")
    return chosen
