"""The table of weights: every place where a weight may lie is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.types import Outcome
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import Journal
from tests.pipeline.ledger.samples import RUN, attempt, end, write_weight


def test_weight_is_known_wherever_a_crash_leaves_it(journal: Journal, tmp_path: Path) -> None:
    sha = write_weight(tmp_path, "a/out.dat")
    journal.open_attempt(attempt())
    journal.weights.record("a/out.dat", sha, attempt=attempt())
    journal.weights.will_move("a/out.dat", "_trash/out.dat", "collapsed")
    rows = {row.path: row for row in journal.weights.all()}
    assert rows["a/out.dat"].moved_to == "_trash/out.dat"
    assert rows["_trash/out.dat"].sha256 == sha
    assert rows["_trash/out.dat"].content_key == "k1"
    assert rows["_trash/out.dat"].note == "collapsed"
    with pytest.raises(JournalError, match="not in the journal"):
        journal.weights.will_move("b.dat", "c.dat", "")


def test_judged_weight_has_its_lineage_and_the_reason_that_it_is_not_used(
    journal: Journal, tmp_path: Path
) -> None:
    sha = write_weight(tmp_path, "_trash/out.dat")
    journal.open_attempt(attempt())
    journal.close_attempt(attempt(), end(Outcome.COLLAPSED, "_trash/out.dat", sha))
    (row,) = journal.weights.all()
    assert (row.path, row.sha256, row.bytes, row.outcome) == ("_trash/out.dat", sha, 6, "collapsed")
    assert (row.input_sha256, row.content_key, row.attempt_id) == ("a" * 64, "k1", f"{RUN}/G/1")
    assert row.note.startswith("repetition")


def test_weight_that_is_known_stays_as_it_is_and_a_replaced_one_does_not(journal: Journal) -> None:
    journal.weights.record("base.dat", "a" * 64, "base")
    journal.weights.record("base.dat", "a" * 64, "again")
    assert [row.note for row in journal.weights.all()] == ["base"]
    journal.weights.record("base.dat", "b" * 64, "replaced")
    assert [(row.sha256, row.note) for row in journal.weights.all()] == [("b" * 64, "replaced")]
