"""The outbox: each entry of DevLog once and in order, whatever could not be written before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.core.types import Outcome, RunEnd
from pipeline.ledger.journal import Journal
from pipeline.ledger.outbox import Outbox
from pipeline.ledger.schema import Destination
from tests.pipeline.ledger.samples import RUN, attempt, end


def entries(root: Path) -> list[str]:
    return re.findall(r"<!-- ledger:(\S+) -->", (root / "DevLog.md").read_text("utf-8"))


def test_entries_are_written_in_order_and_once(journal: Journal, tmp_path: Path) -> None:
    outbox = Outbox(journal, tmp_path, tmp_path / "artifacts", mlflow=True)
    journal.open_attempt(attempt())
    journal.close_attempt(attempt(), end())
    outbox.deliver()
    journal.reuse_attempt(RUN, attempt())
    journal.close_run(RUN, RunEnd(Outcome.PASSED))
    outbox.deliver()
    outbox.deliver()
    attempt_id = f"{RUN}/G/1"
    wanted = [f"{RUN}:run_opened", f"{attempt_id}:attempt_closed", f"{attempt_id}:attempt_reused:{RUN}"]
    assert entries(tmp_path) == [*wanted, f"{RUN}:run_closed"]
    assert journal.pending(Destination.DEVLOG) == []
    assert len(journal.pending(Destination.MLFLOW)) == 5


def test_mlflow_that_is_switched_off_never_gets_the_notices(journal: Journal, tmp_path: Path) -> None:
    Outbox(journal, tmp_path, tmp_path / "artifacts", mlflow=False).deliver()
    assert journal.pending(Destination.MLFLOW) == []


@pytest.mark.fault("DevLog and weight list cannot be written (outbox alone)", how="folders in their place")
def test_what_fails_is_said_once_and_written_later(
    journal: Journal, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(journal, tmp_path, tmp_path / "artifacts", mlflow=True)
    (tmp_path / "DevLog.md").mkdir()
    (tmp_path / "artifacts" / "檔案說明清單.md").mkdir()
    for _ in range(3):
        outbox.deliver()
        outbox.update_weight_list()
    assert len(caplog.records) == 2
    (tmp_path / "DevLog.md").rmdir()
    outbox.deliver()
    assert entries(tmp_path) == [f"{RUN}:run_opened"]
