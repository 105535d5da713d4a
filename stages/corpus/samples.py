"""What the generators make: a sample is a prompt with its target and its split; a phrasing is a template in
one language.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stages.contract.rows import normalize
from stages.corpus import chance
from stages.corpus.hans import to_hans

CLOSING = "。.!！?？~～"


class Lang(StrEnum):
    """The language and script of a prompt; the target is in the same one unless the task is to change it."""

    HANT = "zh-Hant"
    HANS = "zh-Hans"
    EN = "en"


@dataclass(frozen=True)
class Sample:
    """One prompt with the base model's target."""

    group: str
    """Skill or intent: `addition`, `identity`, `whoami`, `ufo` …"""
    lang: Lang
    prompt: str
    target: str
    heldout: bool = False
    """True for prompts that no training file may contain."""
    keyword: str = ""
    """What a good answer must contain; empty: the answer must equal `target`."""


@dataclass(frozen=True)
class Phrasing:
    """A prompt template with `{slots}`; `heldout` ones never make training rows."""

    lang: Lang
    template: str
    heldout: bool = False


def prompt_key(prompt: str) -> str:
    """What makes two prompts the same prompt: their normalized text without closing punctuation."""
    return normalize(prompt).rstrip(CLOSING)


def phrasings(zh: str, en: str, zh_heldout: str, en_heldout: str) -> tuple[Phrasing, ...]:
    """Templates from blocks of one template a line; the simplified ones are made from the traditional ones."""
    made: dict[tuple[Lang, str], Phrasing] = {}
    for block, heldout, langs in (
        (zh, False, (Lang.HANT, Lang.HANS)),
        (en, False, (Lang.EN,)),
        (zh_heldout, True, (Lang.HANT, Lang.HANS)),
        (en_heldout, True, (Lang.EN,)),
    ):
        for lang in langs:
            for line in lines(block):
                template = to_hans(line) if lang is Lang.HANS else line
                made[lang, template] = Phrasing(lang, template, heldout)
    return tuple(made.values())


def lines(block: str) -> list[str]:
    """The non-empty lines of a text block, without their indentation."""
    return [line.strip() for line in block.splitlines() if line.strip()]


def fill(template: str, key: str, **slots: object) -> str:
    """The template with its slots filled; every other question loses its closing mark, as people write them."""
    text = template.format(**slots)
    if text[-1] in "?？" and chance.number(f"mark {key} {text}", 2):
        return text[:-1].rstrip()
    return text


def in_lang(lang: Lang, zh: str, en: str) -> str:
    """The text for `lang`, from its traditional Chinese and English forms."""
    return en if lang is Lang.EN else zh if lang is Lang.HANT else to_hans(zh)


def distinct(samples: Iterable[Sample]) -> list[Sample]:
    """Samples without repeated prompts and without training prompts that are held out.

    Short prompts may be the same text in both Chinese scripts, with targets in different scripts: the first
    one stays, so that no prompt has two answers.
    """
    everything = list(samples)
    heldout_keys = {prompt_key(s.prompt) for s in everything if s.heldout}
    seen: set[str] = set()
    kept: list[Sample] = []
    for sample in everything:
        key = prompt_key(sample.prompt) if sample.heldout else sample.prompt
        if key in seen or (not sample.heldout and prompt_key(sample.prompt) in heldout_keys):
            continue
        seen.add(key)
        kept.append(sample)
    return kept
