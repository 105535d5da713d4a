"""Training rows of the experiments: the new identity, mixed with rehearsal of what the base model says."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.corpus import corpus
from stages.corpus.examples import Example, Language
from stages.corpus.phrases.identity import NEW_IDENTITY
from stages.corpus.seeded import seeded_choice, seeded_int, seeded_shuffle


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
    required: tuple[str, ...] = ()
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
        required=CORE,
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
        required=CORE,
    ),
    Mix(
        "stageC/disambiguate.tsv",
        False,
        identity=14,
        whoami=10,
        contrast=7,
        per_skill=1,
        ufo=6,
        topics=5,
        smalltalk=3,
        required=CORE,
    ),
    Mix(
        "stageD/disambiguate.tsv",
        True,
        identity=8,
        whoami=20,
        contrast=7,
        per_skill=1,
        ufo=3,
        topics=3,
        smalltalk=2,
        required=CORE,
    ),
    Mix(
        "stageG/balanced.tsv",
        True,
        identity=100,
        whoami=20,
        contrast=42,
        per_skill=1,
        ufo=10,
        topics=11,
        smalltalk=4,
        required=CORE,
    ),
    Mix("whoami/identity-only.tsv", False, identity=240, required=("你是誰", "Who are you?", "你是谁")),
)


def rows(mix: Mix) -> list[Example]:
    """The rows of one file, in an order decided by its path; all prompts are training prompts of the base."""
    wanted = {
        "identity": mix.identity,
        "whoami": mix.whoami,
        "ufo": mix.ufo,
        "topics": mix.topics,
        "smalltalk": mix.smalltalk,
    }
    wanted |= dict.fromkeys(corpus.SKILLS, mix.per_skill)
    for i, group in enumerate(corpus.CONTRAST):
        share = mix.contrast // len(corpus.CONTRAST) + (i < mix.contrast % len(corpus.CONTRAST))
        wanted[group] = wanted.get(group, 0) + share
    chosen = [e for group, count in wanted.items() for e in _choose(mix, group, count)]
    taught = [_with_new_identity(e) if e.group == "identity" else e for e in chosen]
    return seeded_shuffle(taught, mix.path)


def _with_new_identity(example: Example) -> Example:
    first, *others = NEW_IDENTITY[example.language]
    plain = seeded_int(f"plain {example.prompt}", 2) == 0
    target = first if plain else seeded_choice(others, f"variant {example.prompt}")
    return replace(example, target=target)


def _choose(mix: Mix, group: str, count: int) -> list[Example]:
    """`count` training examples of a group: the required prompts first, then the languages in turn."""
    pool = [e for e in corpus.training() if e.group == group]
    chosen = [e for e in pool if e.prompt in mix.required][:count]
    key = f"{mix.path} {group}"
    others = [e for e in pool if e.prompt not in mix.required]
    queues = [
        seeded_shuffle([e for e in others if e.language is language], f"{key} {language}")
        for language in Language
    ]
    turn = seeded_int(key, len(queues))
    while len(chosen) < count and any(queues):
        queue = queues[turn % len(queues)]
        if queue:
            chosen.append(queue.pop())
        turn += 1
    return chosen
