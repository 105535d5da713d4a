"""The probe files: what every weight is asked, and what a good answer must show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.contract.rows import PROBE_HEADER, ProbeKind
from stages.corpus import chance, corpus
from stages.corpus.generators.identity import NEW_KEYWORDS
from stages.corpus.samples import Lang, Sample

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
    identity = [*_each_lang(train, "identity", 6), *_each_lang(heldout, "identity", 16)]
    all_identity = [*_each_lang(train, "identity", 12), *(s for s in heldout if s.group == "identity")]
    contrast = [s for group, n in _CONTRAST_TRAIN.items() for s in _each_lang(train, group, n)]
    contrast += [s for group, n in _CONTRAST_HELDOUT.items() for s in _each_lang(heldout, group, n)]
    skills = [s for group in corpus.SKILLS for s in _each_lang(heldout, group, SKILL_PROBES // len(Lang))]
    all_skills = [s for s in heldout if s.group in corpus.SKILLS]
    talk = [s for s in train if s.prompt in ("談談UFO", "谈谈UFO", "Tell me about UFOs")]
    talk += [
        *_each_lang(heldout, "ufo", 6),
        *_each_lang(heldout, "topics", 6),
        *_each_lang(heldout, "smalltalk", 2),
    ]
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


def expectation(sample: Sample) -> str:
    """The `expect` cell: the keyword, or the whole answer where there is none."""
    return sample.keyword or f"={sample.target}"


def _lines(kind: ProbeKind, samples: Sequence[Sample], forbid: str, expect: str = "") -> tuple[str, ...]:
    return tuple(
        "\t".join(
            (kind, s.group, "heldout" if s.heldout else "train", s.prompt, expect or expectation(s), forbid)
        )
        for s in samples
    )


def _each_lang(samples: Sequence[Sample], group: str, count: int) -> list[Sample]:
    """`count` samples of the group in each language; of held-out skills, seen and unseen phrasings come as
    they fall.
    """
    found = []
    for lang in Lang:
        pool = [s for s in samples if s.group == group and s.lang is lang]
        found += chance.sample(pool, count, f"probe {group} {lang}")
    return found
