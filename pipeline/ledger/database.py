"""The SQLite file of the journal: durable, changed in whole transactions, with errors that name a remedy."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.ledger.schema import FROM_VERSION_1, INDEXES, TABLES, VERSION

BUSY_SECS = 10.0
"""How long a statement waits for another connection's transaction."""


class JournalError(RuntimeError):
    """The journal cannot be read or written; the message names the file and what to do."""


class Database:
    """One connection, for the thread that made it."""

    def __init__(self, path: Path, busy_secs: float) -> None:
        """Opens the file, and makes it with its tables on first use.

        Raises:
            JournalError: if it cannot be opened or written, is no journal, or comes from a newer version.
        """
        self.path = path
        self._connection = _connect(path, busy_secs)

    def close(self) -> None:
        """Closes the connection; with the last one SQLite folds its side files into the file."""
        self._connection.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """A transaction: committed and on the disk at the end of the block, or undone."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def run(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """One statement. Raises JournalError."""
        try:
            return self._connection.execute(statement, values)
        except sqlite3.IntegrityError as error:
            reason = "it is in the journal already, or what it belongs to is not"
            raise JournalError(f"{self.path}: {error}: {reason}") from error
        except sqlite3.Error as error:
            raise _explain(self.path, error) from error

    def all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """All rows of a query."""
        return self.run(query, *values).fetchall()

    def one(self, query: str, name: str) -> sqlite3.Row:
        """The row of that name. Raises JournalError if there is none."""
        rows = self.all(query, name)
        if not rows:
            raise JournalError(f"{self.path}: {name}: not in the journal")
        return rows[0]

    def insert(self, table: str, **columns: Any) -> None:
        """One row. Raises JournalError if it is there already."""
        marks = ", ".join("?" * len(columns))
        self.run(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", *columns.values())


def _connect(path: Path, busy_secs: float) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=busy_secs, isolation_level=None)
        connection.row_factory = sqlite3.Row
        # WAL with FULL: each commit is durable with one sync (0.3 ms here; 12 to 24 ms for a rollback
        # journal, which needs EXTRA to survive a power cut), and readers never hold the writer up. Where the
        # file system has no shared memory for it, SQLite stays with the rollback journal, made as safe.
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute(f"PRAGMA synchronous = {'FULL' if mode == 'wal' else 'EXTRA'}")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
    except (sqlite3.Error, OSError) as error:
        raise _explain(path, error) from error
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = connection.execute("PRAGMA user_version").fetchone()[0]  # another process may have been first
        if found > VERSION:
            remedy = f"this program knows {VERSION}: use the newer program that wrote it"
            raise JournalError(f"{path}: version {found}, {remedy}")
        if found < VERSION:
            for statement in ((FROM_VERSION_1 if found else TABLES) + INDEXES).split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _explain(path: Path, error: Exception) -> JournalError:
    """The error of SQLite or the system, with the file and the remedy."""
    text = str(error)
    if "locked" in text or "busy" in text:
        remedy = "another program holds the journal: close it (`fuser` on that file names it) and start again"
    elif "not a database" in text or "malformed" in text:
        remedy = (
            "the file is damaged: move it aside (weights, DevLog and MLflow are not affected) and start again"
        )
    elif "full" in text or "No space" in text:
        remedy = "the disk is full: free some space and start the same command again"
    else:
        remedy = "the artifacts folder must exist on a writable disk: check its mount and permissions"
    return JournalError(f"{path}: {text}: {remedy}")
