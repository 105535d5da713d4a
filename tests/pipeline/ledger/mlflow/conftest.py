"""Fixtures of the tests of MLflow's side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.ledger.mlflow.context import SyncContext


@pytest.fixture
def context(tmp_path: Path) -> Iterator[SyncContext]:
    """In a folder whose name has a space and characters beyond ASCII."""
    (tmp_path / "有 空").mkdir()
    made = SyncContext(tmp_path / "有 空")
    yield made
    made.journal.close()
