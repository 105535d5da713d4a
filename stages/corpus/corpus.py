"""The base corpus: the examples of all generators, without contradictions, in a fixed order."""

from __future__ import annotations

from functools import cache

from stages.corpus.examples import Example, distinct
from stages.corpus.generators import intents, notable_people, skills, tables, topics
from stages.corpus.phrases import contrast, identity, smalltalk, ufo
from stages.corpus.seeded import seeded_shuffle

SKILLS = (
    *("addition", "subtraction", "comparison", "ordering", "counting", "copying"),
    *("en_to_zh", "zh_to_en", "antonym", "capital", "sequence", "color", "category"),
)
CONTRAST = ("whoami", "myname", "whois", "capability", "wellbeing", "maker", "person")


@cache
def all_examples() -> tuple[Example, ...]:
    """Every example, training and held out, without repeated prompts; in generator order."""
    made = [
        *intents.examples(identity.TEXT, openers=4),
        *intents.examples(contrast.TEXT, openers=4),
        *notable_people.examples(),
        *skills.examples(),
        *tables.examples(),
        *topics.examples(),
        *intents.examples(ufo.TEXT, openers=5),
        *intents.examples(smalltalk.TEXT, openers=2),
    ]
    return tuple(distinct(made))


def training() -> list[Example]:
    """The training examples in generator order."""
    return [e for e in all_examples() if not e.heldout]


def heldout() -> list[Example]:
    """The held-out examples in generator order."""
    return [e for e in all_examples() if e.heldout]


def base_rows() -> list[Example]:
    """The rows of the base model in file order: mixed, so that a file read in sequence is mixed too."""
    return seeded_shuffle(training(), "base")
