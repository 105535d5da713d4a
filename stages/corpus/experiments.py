"""The rows of the experiments: new identity rows mixed with rehearsal of what the base model already says."""

from __future__ import annotations

from dataclasses import dataclass

from stages.corpus import chance, corpus
from stages.corpus.generators.identity import renamed
from stages.corpus.samples import Lang, Sample


@dataclass(frozen=True)
class Mix:
    """What one training file holds, in rows."""

    path: str
    header: bool
    """Whether the file begins with a header row; readers accept both."""
    identity: int
    whoami: int = 0
    """Rows of 我是誰, beside those among `contrast`."""
    contrast: int = 0
    """Rows spread evenly over the contrast intents."""
    per_skill: int = 0
    """Rows of each skill."""
    ufo: int = 0
    topics: int = 0
    smalltalk: int = 0
    always: tuple[str, ...] = ()
    """Prompts that must be among the rows; they count toward their groups."""


CORE = ("你是誰", "我是誰", "談談UFO", "解釋過擬合", "Who are you?", "Who am I?", "你是谁", "我是谁")

MIXES = (
    Mix(
        "stageA/mixed.tsv",
        True,
        identity=100,
        contrast=182,
        per_skill=36,
        ufo=90,
        topics=118,
        smalltalk=42,
        always=CORE,
    ),
    Mix(
        "stageB/identity-push.tsv",
        False,
        identity=90,
        contrast=60,
        per_skill=8,
        ufo=20,
        topics=20,
        smalltalk=6,
        always=CORE,
    ),
    Mix(
        "stageC/disambiguate.tsv",
        False,
        14,
        whoami=10,
        contrast=7,
        per_skill=1,
        ufo=6,
        topics=5,
        smalltalk=3,
        always=CORE,
    ),
    Mix(
        "stageD/disambiguate.tsv",
        True,
        8,
        whoami=20,
        contrast=7,
        per_skill=1,
        ufo=3,
        topics=3,
        smalltalk=2,
        always=CORE,
    ),
    Mix(
        "stageG/balanced.tsv",
        True,
        100,
        whoami=20,
        contrast=42,
        per_skill=1,
        ufo=10,
        topics=11,
        smalltalk=4,
        always=CORE,
    ),
    Mix("whoami/identity-only.tsv", False, identity=240, always=("你是誰", "Who are you?", "你是谁")),
)


def rows(mix: Mix) -> list[Sample]:
    """The rows of one file, in an order decided by its path. Every prompt is a training prompt of the base
    model.
    """
    wanted = {
        "identity": mix.identity,
        "whoami": mix.whoami,
        "ufo": mix.ufo,
        "topics": mix.topics,
        "smalltalk": mix.smalltalk,
    }
    for group in corpus.SKILLS:
        wanted[group] = mix.per_skill
    for i, group in enumerate(corpus.CONTRAST):
        share = mix.contrast // len(corpus.CONTRAST) + (i < mix.contrast % len(corpus.CONTRAST))
        wanted[group] = wanted.get(group, 0) + share
    chosen = [s for group, count in wanted.items() for s in _choose(mix, group, count)]
    return chance.shuffled([renamed(s) if s.group == "identity" else s for s in chosen], mix.path)


def _choose(mix: Mix, group: str, count: int) -> list[Sample]:
    """`count` training samples of a group: the demanded prompts first, then the languages in turn."""
    pool = [s for s in corpus.training() if s.group == group]
    first = [s for s in pool if s.prompt in mix.always]
    key = f"{mix.path} {group}"
    queues = [
        chance.shuffled([s for s in pool if s.lang is lang and s not in first], f"{key} {lang}")
        for lang in Lang
    ]
    turn = chance.number(key, len(queues))
    chosen = first[:count]
    while len(chosen) < count and any(queues):
        queue = queues[turn % len(queues)]
        if queue:
            chosen.append(queue.pop())
        turn += 1
    return chosen
