"""The rows of the journal."""

from __future__ import annotations

import pytest

from pipeline.ledger.schema import Destination, Notice, NoticeKind


@pytest.mark.parametrize(
    ("kind", "subject", "text"),
    [
        (NoticeKind.RUN_INTERRUPTED, "run", ""),
        (NoticeKind.ATTEMPT_CLOSED, "run/G/1", ""),
        (NoticeKind.ATTEMPT_REUSED, "older/G/1", "run"),
    ],
)
def test_notice_belongs_to_a_run(kind: NoticeKind, subject: str, text: str) -> None:
    assert Notice(1, "id", kind, subject, "", text, Destination.NOWHERE, "").run_id == "run"
