"""The crash-safe record of runs, attempts, processes and weights: written before what it describes takes
effect.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

from pipeline.core.process_identity import is_alive, process_identity
from pipeline.core.types import Attempt, AttemptEnd, RunEnd
from pipeline.ledger.database import BUSY_SECS, Database, JournalError
from pipeline.ledger.schema import AttemptRow, Delivered, Notice, NoticeKind, ProcessRow, RunRow, State
from pipeline.ledger.weight_register import WeightRegister
from stages.contract.clock import utc_now
from stages.contract.serial import dump_line, load_text

JOURNAL_NAME = "journal.db"


class Journal:
    """One SQLite file. Every method is one transaction: it has happened whole when the method returns, or not
    at all.

    Paths in it are as the caller wrote them; relative ones are meant from `root`.
    """

    def __init__(self, path: Path, root: Path | None = None, busy_secs: float = BUSY_SECS) -> None:
        """Opens the file, and makes it on first use.

        Args:
            path: of the database.
            root: that relative paths are meant from; the working directory if left out.
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
        """Before anything of the run is done. Raises JournalError if it is known already."""
        with self._database.change():
            self._database.insert(
                "runs",
                run_id=run_id,
                experiment=experiment,
                command=command,
                settings_yaml=settings_yaml,
                state=State.OPEN,
                opened_utc=utc_now(),
                owner_pid=os.getpid(),
                owner_identity=process_identity(os.getpid()),
            )
            self._notice(NoticeKind.RUN_OPENED, run_id)

    def close_run(self, run_id: str, end: RunEnd) -> None:
        """Before the end is told. Raises JournalError if the run is not open."""
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
        return [
            self._run_row(r)
            for r in self._database.all("SELECT * FROM runs ORDER BY opened_utc")
            if state in (None, r["state"])
        ]

    # --- attempts ---

    def open_attempt(self, attempt: Attempt) -> None:
        """Before the attempt's folder is made. Raises JournalError if it is known already or its run is not."""
        with self._database.change():
            self._database.insert(
                "attempts",
                id=attempt.id,
                run_id=attempt.run_id,
                content_key=attempt.content_key,
                attempt_json=dump_line(attempt),
                state=State.OPEN,
                opened_utc=utc_now(),
                owner_pid=os.getpid(),
                owner_identity=process_identity(os.getpid()),
            )
            self._notice(NoticeKind.ATTEMPT_OPENED, attempt.id)

    def process_started(self, attempt: Attempt, pid: int, role: str = "train") -> None:
        """A process of this attempt, with what tells it from a later one of the same number."""
        with self._database.change():
            self._database.insert(
                "processes",
                attempt_id=attempt.id,
                role=role,
                pid=pid,
                identity=process_identity(pid),
                started_utc=utc_now(),
            )

    def mark(self, attempt: Attempt, name: str, payload: Any) -> None:
        """A point that the attempt has reached (`stage_finished`, `judged` …) and what it brought. The last
        word counts.
        """
        with self._database.change():
            values = (attempt.id, name, dump_line(payload), utc_now())
            self._database.run("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?)", *values)

    def find_mark(self, attempt: Attempt, name: str) -> str | None:
        """The payload of a mark as JSON text; None if the attempt did not get there."""
        rows = self._database.all(
            "SELECT payload_json FROM marks WHERE attempt_id = ? AND name = ?", attempt.id, name
        )
        return rows[0]["payload_json"] if rows else None

    def close_attempt(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The verdict, and where the weight lies. Raises JournalError if the attempt is not open."""
        identity = attempt.id
        with self._database.change():
            self._finish("attempts", "id", identity, State.CLOSED, end_json=dump_line(end))
            self.weights.put_judged(attempt, identity, end)
            self._notice(NoticeKind.ATTEMPT_CLOSED, identity)

    def interrupt_attempt(self, attempt: Attempt, reason: str) -> None:
        """Ends an attempt that did not come to a verdict: it will be run again."""
        with self._database.change():
            self._finish("attempts", "id", attempt.id, State.INTERRUPTED, reason=reason)
            self._notice(NoticeKind.ATTEMPT_INTERRUPTED, attempt.id)

    def reuse_attempt(self, run_id: str, attempt: Attempt) -> None:
        """Notes that a run took over a finished attempt of an earlier one instead of repeating it."""
        with self._database.change():
            self._notice(NoticeKind.ATTEMPT_REUSED, attempt.id, run_id)

    def attempt(self, identity: str) -> AttemptRow:
        """The attempt. Raises JournalError if there is none."""
        return self._attempt_row(self._database.one("SELECT * FROM attempts WHERE id = ?", identity))

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """All attempts of a run, oldest first."""
        return [
            self._attempt_row(r)
            for r in self._database.all("SELECT * FROM attempts WHERE run_id = ? ORDER BY opened_utc", run_id)
        ]

    def find_finished(self, content_key: str) -> tuple[Attempt, AttemptEnd] | None:
        """The latest attempt with this key that was judged and closed, whatever its verdict; None if there is
        none.
        """
        query = "SELECT * FROM attempts WHERE content_key = ? AND state = ? ORDER BY closed_utc DESC LIMIT 1"
        rows = [self._attempt_row(row) for row in self._database.all(query, content_key, State.CLOSED)]
        return (rows[0].attempt, rows[0].end) if rows and rows[0].end else None

    def find_interrupted(self, content_key: str) -> list[Attempt]:
        """The attempts with this key that were interrupted, latest first: their folders may hold a state to
        go on from.
        """
        query = "SELECT * FROM attempts WHERE content_key = ? AND state = ? ORDER BY closed_utc DESC"
        return [
            self._attempt_row(row).attempt
            for row in self._database.all(query, content_key, State.INTERRUPTED)
        ]

    # --- what dead owners left ---

    def abandoned_runs(self) -> list[RunRow]:
        """Open runs whose control process is dead."""
        return [row for row in self.runs(State.OPEN) if not is_alive(row.owner_pid, row.owner_identity)]

    def abandoned_attempts(self) -> list[AttemptRow]:
        """Attempts that were opened and never closed, and whose control process is dead."""
        rows = [
            self._attempt_row(r)
            for r in self._database.all(
                "SELECT * FROM attempts WHERE state = ? ORDER BY opened_utc", State.OPEN
            )
        ]
        return [row for row in rows if not is_alive(row.owner_pid, row.owner_identity)]

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

    def pending(self) -> list[Notice]:
        """What has not been told to everyone, in order."""
        query = "SELECT * FROM notices WHERE told != ? ORDER BY number"
        rows = [dict(row) for row in self._database.all(query, int(Delivered.ALL))]
        return [
            Notice(**(row | {"kind": NoticeKind(row["kind"]), "told": Delivered(row["told"])}))
            for row in rows
        ]

    def tell(self, notice: Notice, told: Delivered) -> None:
        """Marks a notice as told to someone, after it was."""
        with self._database.change():
            self._database.run(
                "UPDATE notices SET told = told | ? WHERE number = ?", int(told), notice.number
            )

    # --- inside ---

    def _finish(
        self, table: str, key: str, name: str, state: State, end_json: str = "", reason: str = ""
    ) -> None:
        statement = f"UPDATE {table} SET state = ?, closed_utc = ?, end_json = ?, reason = ? WHERE {key} = ? AND state = ?"
        if self._database.run(statement, state, utc_now(), end_json, reason, name, State.OPEN).rowcount != 1:
            raise JournalError(f"{self.path}: {name}: not open, so it cannot be {state}")

    def _notice(self, kind: NoticeKind, subject: str, text: str = "") -> None:
        identity = f"{subject}:{kind}" + (f":{text}" if text else "")
        # One attempt may be taken over twice by one run that was itself interrupted and resumed: that is one
        # notice.
        statement = "INSERT OR IGNORE INTO notices (id, kind, subject, utc, text) VALUES (?, ?, ?, ?, ?)"
        self._database.run(statement, identity, kind, subject, utc_now(), text)

    def _run_row(self, row: sqlite3.Row) -> RunRow:
        values = dict(row)
        text = values.pop("end_json")
        end = load_text(RunEnd, text, f"{self.path}: {row['run_id']}") if text else None
        return RunRow(**(values | {"state": State(row["state"])}), end=end)

    def _attempt_row(self, row: sqlite3.Row) -> AttemptRow:
        where = f"{self.path}: {row['id']}"
        return AttemptRow(
            id=row["id"],
            attempt=load_text(Attempt, row["attempt_json"], where),
            state=State(row["state"]),
            opened_utc=row["opened_utc"],
            closed_utc=row["closed_utc"],
            owner_pid=row["owner_pid"],
            owner_identity=row["owner_identity"],
            end=load_text(AttemptEnd, row["end_json"], where) if row["end_json"] else None,
            reason=row["reason"],
        )
