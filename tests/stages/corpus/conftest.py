"""Examples of the corpus by group."""

from __future__ import annotations

from stages.corpus import corpus
from stages.corpus.examples import Example


def of(group: str, heldout: bool | None = None) -> list[Example]:
    """The examples of a skill or intent: training, held out, or both (None)."""
    return [s for s in corpus.all_examples() if s.group == group and heldout in (None, s.heldout)]
