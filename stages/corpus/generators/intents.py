"""Intents: one answer in each language and many ways to ask for it, read from a small text form.

    group | answer in traditional Chinese | answer in English
    + a phrasing for training
    - a held-out phrasing

`*…*` in an answer marks the keyword that a good answer must contain. Empty lines separate the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.corpus.examples import Example, Language, in_language
from stages.corpus.seeded import seeded_sample

OPENERS = {
    Language.ZH_HANT: ("", "你好，", "嗨，", "哈囉，", "那麼，"),
    Language.EN: ("", "Hello, ", "Hi, ", "Hey, ", "Well, "),
}
QUESTION_OPENERS = {
    Language.ZH_HANT: (*OPENERS[Language.ZH_HANT], "請問", "我想問，", "想請教一下，"),
    Language.EN: (*OPENERS[Language.EN], "Please tell me: ", "I want to ask: ", "Excuse me, "),
}
"""What may stand before any phrasing, and before questions."""


@dataclass(frozen=True)
class Intent:
    """One answer and the ways to ask for it, in traditional Chinese and English."""

    group: str
    answer: tuple[str, str]
    train: tuple[str, ...]
    heldout: tuple[str, ...]


def parse(text: str) -> list[Intent]:
    """The intents of a text in the form above."""
    found = []
    for block in text.strip().split("\n\n"):
        head, *phrasings = block.splitlines()
        group, zh, en = head.split(" | ")
        train = tuple(line[2:] for line in phrasings if line.startswith("+ "))
        heldout = tuple(line[2:] for line in phrasings if line.startswith("- "))
        found.append(Intent(group.strip(), (zh.strip(), en.strip()), train, heldout))
    return found


def examples(text: str, openers: int) -> list[Example]:
    """Training and held-out examples of the intents of a text.

    Args:
        text: In the form above.
        openers: How many openers each training phrasing gets, the empty one included. Held-out ones get none.
    """
    made: list[Example] = []
    for intent in parse(text):
        for phrasing in intent.train:
            for language in _languages(phrasing):
                known = QUESTION_OPENERS if phrasing[-1] in "?？" else OPENERS
                first, *others = known[Language.EN if language is Language.EN else Language.ZH_HANT]
                for opener in (first, *seeded_sample(others, openers - 1, f"opener {phrasing}")):
                    made += _with_and_without_mark(_example(intent, language, open_with(opener, phrasing)))
        for phrasing in intent.heldout:
            made += [_example(intent, language, phrasing, True) for language in _languages(phrasing)]
    return made


def open_with(opener: str, phrasing: str) -> str:
    """The phrasing behind the opener; an English one continues in lower case, except for `I`."""
    lower = opener.isascii() and opener and phrasing[:2] != "I " and not phrasing[1:2].isupper()
    return opener + (phrasing[0].lower() + phrasing[1:] if lower else phrasing)


def _languages(text: str) -> tuple[Language, ...]:
    return (Language.EN,) if text.isascii() else (Language.ZH_HANT, Language.ZH_HANS)


def _example(intent: Intent, language: Language, prompt: str, heldout: bool = False) -> Example:
    answer = in_language(language, *intent.answer)
    keyword = answer.split("*")[1] if "*" in answer else ""
    prompt = in_language(language, prompt, prompt)
    return Example(intent.group, language, prompt, answer.replace("*", ""), heldout, keyword)


def _with_and_without_mark(example: Example) -> list[Example]:
    """A question also without its question mark, as people write it."""
    if example.prompt[-1] not in "?？":
        return [example]
    return [example, replace(example, prompt=example.prompt[:-1])]
