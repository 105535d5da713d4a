"""The base corpus: all samples of all generators, checked against each other and in a fixed order."""

from __future__ import annotations

from functools import cache

from stages.corpus import chance
from stages.corpus.generators import contrast, identity, skills, smalltalk, tables, topics, ufo
from stages.corpus.samples import Sample, distinct

SKILLS = (
    *("addition", "subtraction", "comparison", "ordering", "counting", "copying"),
    *("en_to_zh", "zh_to_en", "antonym", "capital", "sequence", "color", "category"),
)
CONTRAST = ("whoami", "myname", "whois", "capability", "wellbeing", "maker", "person")
GENERATORS = (identity, contrast, skills, tables, topics, ufo, smalltalk)


@cache
def everything() -> tuple[Sample, ...]:
    """Every sample, training and held out, without repeated prompts; in the order of the generators."""
    return tuple(distinct(sample for module in GENERATORS for sample in module.samples()))


def training() -> list[Sample]:
    """The training samples in generator order."""
    return [s for s in everything() if not s.heldout]


def heldout() -> list[Sample]:
    """The held-out samples in generator order."""
    return [s for s in everything() if s.heldout]


def base_rows() -> list[Sample]:
    """The rows of the base model in file order: mixed, so that a file read in sequence is mixed too."""
    return chance.shuffled(training(), "base")
