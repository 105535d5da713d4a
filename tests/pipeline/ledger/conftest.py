"""Fixtures of the ledger's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.ledger.journal import Journal
from tests.pipeline.ledger.samples import RUN


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An open journal with an open run."""
    with Journal(tmp_path / "artifacts" / "journal.db", tmp_path) as book:
        book.open_run(RUN, "stageG", "python -m pipeline +experiment=stageG", "seed: 0\n")
        yield book
