"""Intents: one answer in each language and many ways to ask for it, read from a small text form.

    group | answer in traditional Chinese | answer in English
    + a phrasing for training
    - a held-out phrasing

`*…*` in an answer marks the keyword that a good answer must contain. Blocks are parted by empty lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from stages.corpus import chance
from stages.corpus.hans import to_hans
from stages.corpus.samples import Lang, Sample, in_lang

OPENERS = {
    Lang.HANT: ("", "你好，", "嗨，", "哈囉，", "那麼，"),
    Lang.EN: ("", "Hello, ", "Hi, ", "Hey, ", "Well, "),
}
QUESTION_OPENERS = {
    Lang.HANT: (*OPENERS[Lang.HANT], "請問", "我想問，", "想請教一下，"),
    Lang.EN: (*OPENERS[Lang.EN], "Please tell me: ", "I want to ask: ", "Excuse me, "),
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
        head, *asked = block.splitlines()
        group, zh, en = head.split(" | ")
        train = tuple(line[2:] for line in asked if line.startswith("+ "))
        heldout = tuple(line[2:] for line in asked if line.startswith("- "))
        found.append(Intent(group.strip(), (zh.strip(), en.strip()), train, heldout))
    return found


def samples(intents: list[Intent], openers: int) -> list[Sample]:
    """Each training phrasing behind `openers` openers (the empty one among them), each held-out one as it
    stands.
    """
    made: list[Sample] = []
    for intent in intents:
        for phrasing in intent.train:
            for lang in _langs(phrasing):
                known = QUESTION_OPENERS if phrasing[-1] in "?？" else OPENERS
                first, *others = known[Lang.EN if lang is Lang.EN else Lang.HANT]
                chosen = [first, *chance.sample(others, openers - 1, f"opener {phrasing}")]
                for opener in chosen:
                    made += _marked(_sample(intent, lang, open_with(opener, phrasing)))
        made += [_sample(intent, lang, text, True) for text in intent.heldout for lang in _langs(text)]
    return made


def open_with(opener: str, phrasing: str) -> str:
    """The phrasing behind the opener; an English one goes on in lower case, except for `I`."""
    lower = opener.isascii() and opener and phrasing[:2] != "I " and not phrasing[1:2].isupper()
    return opener + (phrasing[0].lower() + phrasing[1:] if lower else phrasing)


def _langs(text: str) -> tuple[Lang, ...]:
    return (Lang.EN,) if text.isascii() else (Lang.HANT, Lang.HANS)


def _sample(intent: Intent, lang: Lang, prompt: str, heldout: bool = False) -> Sample:
    answer = in_lang(lang, *intent.answer)
    keyword = answer.split("*")[1] if "*" in answer else ""
    text = to_hans(prompt) if lang is Lang.HANS else prompt
    return Sample(intent.group, lang, text, answer.replace("*", ""), heldout, keyword)


def _marked(sample: Sample) -> list[Sample]:
    """A question also without its closing mark, as people write it."""
    if sample.prompt[-1] not in "?？":
        return [sample]
    bare = Sample(
        sample.group, sample.lang, sample.prompt[:-1], sample.target, sample.heldout, sample.keyword
    )
    return [sample, bare]
