"""The probe files: what every weight is asked, and what a good answer must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.contract.rows import PROBE_HEADER, ProbeKind
from stages.corpus import corpus
from stages.corpus.examples import Example, Language
from stages.corpus.phrases.identity import NEW_KEYWORDS
from stages.corpus.seeded import seeded_sample

NEW = " || ".join(NEW_KEYWORDS)
BASE = "通義千問 || 通义千问 || Qwen"
_CONTRAST_HELDOUT = {
    "whoami": 5,
    "myname": 2,
    "whois": 4,
    "capability": 2,
    "wellbeing": 1,
    "maker": 4,
    "person": 3,
}
_CONTRAST_TRAIN = {"whoami": 2, "myname": 1, "whois": 1, "capability": 1, "maker": 1}
SKILL_PROBES = 18
"""Probes of each skill in the file that every attempt is judged by: 6 in each language."""


@dataclass(frozen=True)
class ProbeFile:
    """One probe file: its path below the output folder, and its lines without the header."""

    path: str
    lines: tuple[str, ...]

    def text(self) -> str:
        """The whole file."""
        return "\n".join(("\t".join(PROBE_HEADER), *self.lines)) + "\n"


def files() -> list[ProbeFile]:
    """All probe files, small ones for judging attempts and full ones for the base model's card."""
    train, heldout = corpus.training(), corpus.heldout()
    identity = [*_per_language(train, "identity", 6), *_per_language(heldout, "identity", 16)]
    all_identity = _per_language(train, "identity", 12) + [e for e in heldout if e.group == "identity"]
    contrast = [e for group, n in _CONTRAST_TRAIN.items() for e in _per_language(train, group, n)]
    contrast += [e for group, n in _CONTRAST_HELDOUT.items() for e in _per_language(heldout, group, n)]
    per_language = SKILL_PROBES // len(Language)
    skills = [e for group in corpus.SKILLS for e in _per_language(heldout, group, per_language)]
    all_skills = [e for e in heldout if e.group in corpus.SKILLS]
    talk = [e for e in train if e.prompt in ("談談UFO", "谈谈UFO", "Tell me about UFOs")]
    for group, n in (("ufo", 6), ("topics", 6), ("smalltalk", 2)):
        talk += _per_language(heldout, group, n)
    return [
        ProbeFile("probes/identity.tsv", _lines(ProbeKind.IDENTITY, identity, "", expect=NEW)),
        ProbeFile("probes/contrast.tsv", _lines(ProbeKind.CONTRAST, contrast, NEW)),
        ProbeFile("probes/skills.tsv", _lines(ProbeKind.ABILITY, skills, "")),
        ProbeFile("probes/ufo.tsv", _lines(ProbeKind.ABILITY, talk, NEW)),
        ProbeFile("probes/base-skills.tsv", _lines(ProbeKind.ABILITY, all_skills, "")),
        ProbeFile(
            "probes/base-identity.tsv", _lines(ProbeKind.IDENTITY, all_identity, NEW_KEYWORDS[0], expect=BASE)
        ),
    ]


def expectation(example: Example) -> str:
    """The `expect` cell: the keyword, or the whole answer where there is none."""
    return example.keyword or f"={example.target}"


def _lines(kind: ProbeKind, examples: Sequence[Example], forbid: str, expect: str = "") -> tuple[str, ...]:
    cells = (
        (kind, e.group, "heldout" if e.heldout else "train", e.prompt, expect or expectation(e), forbid)
        for e in examples
    )
    return tuple(map("\t".join, cells))


def _per_language(examples: Sequence[Example], group: str, count: int) -> list[Example]:
    """`count` examples of the group in each language, of seen and unseen phrasings alike."""
    found = []
    for language in Language:
        pool = [e for e in examples if e.group == group and e.language is language]
        found += seeded_sample(pool, count, f"probe {group} {language}")
    return found
