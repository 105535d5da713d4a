"""The SQLite file: made once, brought up to date, refused with a remedy."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pipeline.ledger import database
from pipeline.ledger.database import Database, JournalError
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Destination
from tests.pipeline.ledger.samples import attempt, end, script, write_old_journal


@pytest.mark.fault("the journal is locked", how="BEGIN IMMEDIATE by another connection")
def test_locked_database_names_the_file_and_the_remedy(journal: Journal) -> None:
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with (
        Journal(journal.path, busy_secs=0.05) as late,
        pytest.raises(JournalError, match=r"journal\.db: .*locked: .*close it"),
    ):
        late.open_attempt(attempt())
    other.execute("ROLLBACK")
    other.close()
    journal.open_attempt(attempt())


@pytest.mark.fault(
    "the journal is damaged, from a newer version, or cannot be",
    how="other bytes, a folder that is a file, version 99",
    trials=3,
)
def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="move it aside"):
        Journal(tmp_path / "journal.db")
    assert (tmp_path / "journal.db").read_bytes() == b"not a database" * 100
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="permissions"):
        Journal(tmp_path / "file" / "journal.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(JournalError, match="version 99"):
        Journal(tmp_path / "newer.db")


@pytest.mark.fault("several processes make the journal at once", how="four released in the same moment")
def test_two_processes_make_the_tables_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from pipeline.ledger.journal import Journal\n"
    code += "print('ready', flush=True); sys.stdin.readline(); Journal(Path(sys.argv[1])).runs(); print('ok')"
    both = [script(code, str(tmp_path / "journal.db")) for _ in range(4)]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    outs = [one.communicate("go\n")[0] for one in both]
    assert outs == ["ok\n"] * 4


def test_file_of_version_1_is_brought_up_to_date_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    write_old_journal(path)
    with Journal(path) as book:
        assert book.find_finished("k1") == (attempt(), end())
        assert book.pending(Destination.DEVLOG) == book.pending(Destination.MLFLOW) == []
        book.open_run("new", "stageG", "make run", "")
        assert [notice.subject for notice in book.pending(Destination.MLFLOW)] == ["new"]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM marks").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        upgraded = columns(connection)
    with Journal(tmp_path / "new.db"):
        pass
    with sqlite3.connect(tmp_path / "new.db") as connection:
        new = columns(connection)
    assert {table: upgraded[table] for table in new} == new


def columns(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    """Table → its columns with their types and defaults."""
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for (name,) in tables}


@pytest.mark.fault("the program dies while it brings a journal up to date", how="a statement that fails")
def test_half_an_update_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.db"
    write_old_journal(path)
    monkeypatch.setattr(database, "INDEXES", database.INDEXES + "CREATE INDEX x ON nowhere (y);\n")
    with pytest.raises(JournalError, match="nowhere"):
        Journal(path)
    monkeypatch.undo()
    with Journal(path) as book:
        assert book.find_finished("k1") is not None


def test_change_that_fails_is_undone(tmp_path: Path) -> None:
    book = Database(tmp_path / "journal.db", busy_secs=1)
    row = {"path": "a.dat", "sha256": "f", "bytes": 1, "utc": ""}
    row |= dict.fromkeys(("input_sha256", "content_key", "attempt_id", "outcome", "note"), "")
    with pytest.raises(JournalError, match="already"), book.change():
        book.insert("weights", **row)
        book.insert("weights", **row)
    assert book.all("SELECT * FROM weights") == []
    book.close()
