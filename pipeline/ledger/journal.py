"""The crash-safe record of runs, attempts, processes and weights, written before what it describes."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.process_identity import is_alive, process_identity
from pipeline.core.types import Attempt, AttemptEnd, RunEnd
from pipeline.ledger.database import BUSY_SECS, Database, JournalError
from pipeline.ledger.schema import AttemptRow, Destination, Notice, NoticeKind, ProcessRow, RunRow, State
from pipeline.ledger.weight_register import WeightRegister
from stages.contract.clock import utc_now
from stages.contract.serial import dump_line, load_text

JOURNAL_NAME = "journal.db"
OTHER_CODE_ROWS = 100
"""How many attempts of a stage `find_other_code` looks back."""


class Journal:
    """One SQLite file. Every method is one transaction: when it returns, all of its change is on the disk.

    Use a journal in the thread that opened it; another thread opens its own. Paths in it are as the caller
    wrote them; relative ones start at `root`.
    """

    def __init__(self, path: Path, root: Path | None = None, busy_secs: float = BUSY_SECS) -> None:
        """Opens the file, and makes it on first use.

        Args:
            path: of the database.
            root: where relative paths start; the working directory if left out.
            busy_secs: how long to wait for another program that holds the database.

        Raises:
            JournalError: naming the file and the remedy.
        """
        self.path = path
        self._database = Database(path, busy_secs)
        self.weights = WeightRegister(self._database, root or Path())

    def close(self) -> None:
        """Closes the file; with the last connection its side files are folded into it."""
        self._database.close()

    def __enter__(self) -> Journal:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self.close()

    # --- runs ---

    def open_run(self, run_id: str, experiment: str, command: str, settings_yaml: str) -> None:
        """A run begins. Raises JournalError if it is known already."""
        with self._database.change():
            row = {"run_id": run_id, "experiment": experiment, "command": command}
            self._database.insert("runs", **row, settings_yaml=settings_yaml, **_opened())
            self._notice(NoticeKind.RUN_OPENED, run_id)

    def close_run(self, run_id: str, end: RunEnd) -> None:
        """A run came to its end. Raises JournalError if it is not open."""
        with self._database.change():
            self._finish("runs", "run_id", run_id, State.CLOSED, end_json=dump_line(end))
            self._notice(NoticeKind.RUN_CLOSED, run_id)

    def interrupt_run(self, run_id: str, reason: str) -> None:
        """Ends a run that did not come to its end."""
        with self._database.change():
            self._finish("runs", "run_id", run_id, State.INTERRUPTED, reason=reason)
            self._notice(NoticeKind.RUN_INTERRUPTED, run_id)

    def run(self, run_id: str) -> RunRow:
        """The run. Raises JournalError if there is none."""
        return self._run_row(self._database.one("SELECT * FROM runs WHERE run_id = ?", run_id))

    def runs(self, state: State | None = None) -> list[RunRow]:
        """All runs, or those of one state, oldest first."""
        where, values = ("WHERE state = ?", (state,)) if state else ("", ())
        rows = self._database.all(f"SELECT * FROM runs {where} ORDER BY opened_utc", *values)
        return [self._run_row(row) for row in rows]

    # --- attempts ---

    def open_attempt(self, attempt: Attempt) -> None:
        """An attempt begins. Raises JournalError if it is known already, or its run is not."""
        with self._database.change():
            row = {"id": attempt.id, "run_id": attempt.run_id, "content_key": attempt.content_key}
            self._database.insert("attempts", **row, attempt_json=dump_line(attempt), **_opened())
            self._notice(NoticeKind.ATTEMPT_OPENED, attempt.id)

    def process_started(self, attempt: Attempt, pid: int, role: str = "train") -> None:
        """A process of the attempt was started."""
        with self._database.change():
            row = ProcessRow(attempt.id, role, pid, process_identity(pid), utc_now())
            self._database.insert("processes", **asdict(row))

    def close_attempt(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The verdict, and where the weight lies. Raises JournalError if the attempt is not open."""
        with self._database.change():
            self._finish("attempts", "id", attempt.id, State.CLOSED, end_json=dump_line(end))
            self.weights.put_judged(attempt, end)
            self._notice(NoticeKind.ATTEMPT_CLOSED, attempt.id)

    def interrupt_attempt(self, attempt: Attempt, reason: str) -> None:
        """Ends an attempt that came to no verdict: it will be run again."""
        with self._database.change():
            self._finish("attempts", "id", attempt.id, State.INTERRUPTED, reason=reason)
            self._notice(NoticeKind.ATTEMPT_INTERRUPTED, attempt.id)

    def reuse_attempt(self, run_id: str, attempt: Attempt) -> None:
        """A run uses a finished attempt of an earlier run instead of repeating it."""
        with self._database.change():
            self._notice(NoticeKind.ATTEMPT_REUSED, attempt.id, run_id)

    def attempt(self, identity: str) -> AttemptRow:
        """The attempt. Raises JournalError if there is none."""
        return self._attempt_row(self._database.one("SELECT * FROM attempts WHERE id = ?", identity))

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """All attempts of a run, oldest first."""
        return self._attempt_rows("WHERE run_id = ? ORDER BY opened_utc", run_id)

    def open_attempts(self) -> list[AttemptRow]:
        """All attempts that are open, oldest first."""
        return self._attempt_rows("WHERE state = ? ORDER BY opened_utc", State.OPEN)

    def find(self, identity: str) -> RunRow | AttemptRow | None:
        """The run or the attempt of that id; None if there is neither."""
        runs = self._database.all("SELECT * FROM runs WHERE run_id = ?", identity)
        if runs:
            return self._run_row(runs[0])
        attempts = self._attempt_rows("WHERE id = ?", identity)
        return attempts[0] if attempts else None

    def find_finished(self, content_key: str) -> tuple[Attempt, AttemptEnd] | None:
        """The latest closed attempt with this key, whatever its verdict; None if there is none."""
        where = "WHERE content_key = ? AND state = ? ORDER BY closed_utc DESC LIMIT 1"
        rows = self._attempt_rows(where, content_key, State.CLOSED)
        return (rows[0].attempt, rows[0].end) if rows and rows[0].end else None

    def find_interrupted(self, content_key: str) -> list[Attempt]:
        """The interrupted attempts with this key, latest first; their folders may hold a saved state."""
        where = "WHERE content_key = ? AND state = ? ORDER BY closed_utc DESC"
        return [row.attempt for row in self._attempt_rows(where, content_key, State.INTERRUPTED)]

    def find_other_code(self, attempt: Attempt) -> Attempt | None:
        """The latest judged attempt with another content key, but the same stage, recipe, data and input.

        So only the code differed, or what it ran on. The last `OTHER_CODE_ROWS` attempts of the stage are
        looked at, so the cost does not grow with the journal.

        Returns:
            None if there is none.
        """
        # LIKE may take a few names more than the stage's; the comparison decides.
        query = """SELECT id, attempt_json FROM attempts
            WHERE rowid IN (SELECT rowid FROM attempts WHERE id LIKE ? ORDER BY rowid DESC LIMIT ?)
            AND state = ? AND content_key != ? AND instr(attempt_json, ?) ORDER BY rowid DESC"""
        values = (f"%/{attempt.stage}/%", OTHER_CODE_ROWS, State.CLOSED, attempt.content_key)
        for row in self._database.all(query, *values, attempt.input_sha256):
            old = load_text(Attempt, row["attempt_json"], f"{self.path}: {row['id']}")
            if _same_but_code(old, attempt) and (end := self.attempt(old.id).end) and end.verdict:
                return old
        return None

    # --- what dead owners left ---

    def abandoned_runs(self) -> list[RunRow]:
        """Open runs whose control process is dead."""
        return [row for row in self.runs(State.OPEN) if not is_alive(row.owner_pid, row.owner_identity)]

    def abandoned_attempts(self) -> list[AttemptRow]:
        """Open attempts whose control process is dead."""
        return [row for row in self.open_attempts() if not is_alive(row.owner_pid, row.owner_identity)]

    def leftover_processes(self) -> list[ProcessRow]:
        """Processes started for attempts whose control process is dead, and that live on themselves."""
        query = (
            "SELECT p.*, owner_pid, owner_identity FROM processes p JOIN attempts a ON a.id = p.attempt_id"
        )
        return [
            ProcessRow(*(row[key] for key in ("attempt_id", "role", "pid", "identity", "started_utc")))
            for row in self._database.all(query)
            if is_alive(row["pid"], row["identity"]) and not is_alive(row["owner_pid"], row["owner_identity"])
        ]

    # --- notices ---

    def pending(self, destination: Destination, limit: int = -1) -> list[Notice]:
        """The notices that were not delivered there, in order; at most `limit` of them, all if negative."""
        query = f"SELECT * FROM notices WHERE delivered & {int(destination)} = 0 ORDER BY number LIMIT ?"
        rows = [dict(row) for row in self._database.all(query, limit)]
        return [
            Notice(**row | {"kind": NoticeKind(row["kind"]), "delivered": Destination(row["delivered"])})
            for row in rows
        ]

    def deliver(self, notice: Notice, destination: Destination, refused: str = "") -> None:
        """Marks a notice as delivered there; `refused` says why MLflow did not take all of it."""
        statement = "UPDATE notices SET delivered = delivered | ?, refused = refused || ? WHERE number = ?"
        with self._database.change():
            self._database.run(statement, int(destination), refused, notice.number)

    def deliver_again(self, destination: Destination, run_id: str = "") -> None:
        """Marks the notices of a run, or all if it is empty, as not delivered there."""
        statement = """UPDATE notices SET delivered = delivered & ~?1, refused = ''
            WHERE ?2 IN ('', subject, text) OR substr(subject, 1, length(?2) + 1) = ?2 || '/'"""
        with self._database.change():
            self._database.run(statement, int(destination), run_id)

    # --- inside ---

    def _finish(
        self, table: str, key: str, name: str, state: State, end_json: str = "", reason: str = ""
    ) -> None:
        change = f"UPDATE {table} SET state = ?, closed_utc = ?, end_json = ?, reason = ?"
        values = (state, utc_now(), end_json, reason, name, State.OPEN)
        if self._database.run(f"{change} WHERE {key} = ? AND state = ?", *values).rowcount != 1:
            raise JournalError(f"{self.path}: {name}: not open, so it cannot be {state}")

    def _notice(self, kind: NoticeKind, subject: str, text: str = "") -> None:
        identity = f"{subject}:{kind}" + (f":{text}" if text else "")
        # A run that was interrupted and resumed may reuse one attempt twice: that is one notice.
        statement = "INSERT OR IGNORE INTO notices (id, kind, subject, utc, text) VALUES (?, ?, ?, ?, ?)"
        self._database.run(statement, identity, kind, subject, utc_now(), text)

    def _run_row(self, row: sqlite3.Row) -> RunRow:
        values = dict(row)
        text = values.pop("end_json")
        end = load_text(RunEnd, text, f"{self.path}: {row['run_id']}") if text else None
        return RunRow(**(values | {"state": State(row["state"])}), end=end)

    def _attempt_rows(self, where: str, *values: object) -> list[AttemptRow]:
        return [
            self._attempt_row(row) for row in self._database.all(f"SELECT * FROM attempts {where}", *values)
        ]

    def _attempt_row(self, row: sqlite3.Row) -> AttemptRow:
        where = f"{self.path}: {row['id']}"
        names = ("id", "opened_utc", "closed_utc", "owner_pid", "owner_identity", "reason")
        attempt = load_text(Attempt, row["attempt_json"], where)
        end = load_text(AttemptEnd, row["end_json"], where) if row["end_json"] else None
        return AttemptRow(
            attempt=attempt, state=State(row["state"]), end=end, **{name: row[name] for name in names}
        )


def _opened() -> dict[str, Any]:
    """The columns of a run or attempt that this process opens now."""
    owner = {"owner_pid": os.getpid(), "owner_identity": process_identity(os.getpid())}
    return {"state": State.OPEN, "opened_utc": utc_now(), **owner}


def _same_but_code(one: Attempt, other: Attempt) -> bool:
    """Whether stage, input weight, data, and the settings that both recipes have, are the same.

    Another version of this program may have recorded a few settings more or less.
    """
    same = (one.stage, one.input_sha256, one.data) == (other.stage, other.input_sha256, other.data)
    return same and all(
        one.recipe[key] == other.recipe[key] for key in one.recipe.keys() & other.recipe.keys()
    )
