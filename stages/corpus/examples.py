"""What the generators make: examples (a prompt, its target, its split), from templates in three languages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from stages.contract.rows import normalize
from stages.corpus.seeded import seeded_int
from stages.corpus.simplified_chinese import to_simplified

CLOSING_PUNCTUATION = "。.!！?？~～"


class Language(StrEnum):
    """Language and script of a prompt, and of its target unless the task is to translate; BCP 47 tags."""

    ZH_HANT = "zh-Hant"
    ZH_HANS = "zh-Hans"
    EN = "en"


@dataclass(frozen=True)
class Example:
    """One prompt with the base model's target."""

    group: str
    """Skill or intent: `addition`, `identity`, `whoami`, `ufo` …"""
    language: Language
    prompt: str
    target: str
    heldout: bool = False
    """True for prompts that no training file may contain."""
    keyword: str = ""
    """What a good answer must contain; empty: the answer must equal `target`."""


@dataclass(frozen=True)
class Phrasing:
    """A prompt template with `{slots}`; `heldout` ones never make training rows."""

    language: Language
    template: str
    heldout: bool = False


def prompt_key(prompt: str) -> str:
    """Normalized text without closing punctuation: equal for prompts that count as the same."""
    return normalize(prompt).rstrip(CLOSING_PUNCTUATION)


def phrasings(zh: str, en: str, zh_heldout: str, en_heldout: str) -> tuple[Phrasing, ...]:
    """Templates from blocks with one template a line; simplified Chinese is made from traditional."""
    made: dict[tuple[Language, str], Phrasing] = {}
    for block, heldout, languages in (
        (zh, False, (Language.ZH_HANT, Language.ZH_HANS)),
        (en, False, (Language.EN,)),
        (zh_heldout, True, (Language.ZH_HANT, Language.ZH_HANS)),
        (en_heldout, True, (Language.EN,)),
    ):
        for language in languages:
            for line in lines(block):
                template = to_simplified(line) if language is Language.ZH_HANS else line
                made[language, template] = Phrasing(language, template, heldout)
    return tuple(made.values())


def select(options: Iterable[Phrasing], language: Language, heldout: bool) -> list[Phrasing]:
    """The phrasings of one language and split."""
    return [p for p in options if p.language is language and p.heldout == heldout]


def lines(block: str) -> list[str]:
    """The non-empty lines of a text block, without their indentation."""
    return [line.strip() for line in block.splitlines() if line.strip()]


def fill(template: str, key: str, **slots: object) -> str:
    """The template with its slots filled; half of the questions lose their question mark."""
    text = template.format(**slots)
    if text[-1] in "?？" and seeded_int(f"mark {key} {text}", 2):
        return text[:-1].rstrip()
    return text


def spaced(template: str, name: str) -> str:
    """A Latin name gets spaces where it touches Chinese, as in 談談 F# 吧."""
    if not name.isascii() or template.isascii():
        return name
    before, _, after = template.partition("{x}")
    left = " " if before and not before[-1].isascii() else ""
    right = " " if after and after[0] != "？" else ""
    return left + name + right


def in_language(language: Language, zh: str, en: str) -> str:
    """The text for `language`, from its traditional Chinese and English forms."""
    return en if language is Language.EN else zh if language is Language.ZH_HANT else to_simplified(zh)


def distinct(examples: Iterable[Example]) -> list[Example]:
    """Drops repeated prompts, and training prompts that are held out.

    A short prompt may be the same text in both Chinese scripts, with targets in different scripts: the first
    one stays, so that no prompt has two answers.
    """
    examples = list(examples)
    heldout_keys = {prompt_key(e.prompt) for e in examples if e.heldout}
    seen: set[str] = set()
    found: list[Example] = []
    for example in examples:
        key = prompt_key(example.prompt) if example.heldout else example.prompt
        if key in seen or (not example.heldout and prompt_key(example.prompt) in heldout_keys):
            continue
        seen.add(key)
        found.append(example)
    return found
