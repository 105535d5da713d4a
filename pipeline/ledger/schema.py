"""The tables of the journal, and the rows read from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum

from pipeline.core.types import Attempt, AttemptEnd, RunEnd

VERSION = 2
"""Of the tables, noted in the file (`PRAGMA user_version`). A file of version 1 is brought up to date when it
is opened; its tables `marks` and `answers` stay, unread. A program of version 1 refuses a file of version 2.
"""
TABLES = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, experiment TEXT NOT NULL, command TEXT NOT NULL, settings_yaml TEXT NOT NULL,
    state TEXT NOT NULL, opened_utc TEXT NOT NULL, closed_utc TEXT NOT NULL DEFAULT '',
    owner_pid INTEGER NOT NULL, owner_identity TEXT NOT NULL,
    end_json TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
CREATE TABLE attempts (
    id TEXT PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs, content_key TEXT NOT NULL,
    attempt_json TEXT NOT NULL, state TEXT NOT NULL, opened_utc TEXT NOT NULL,
    closed_utc TEXT NOT NULL DEFAULT '', owner_pid INTEGER NOT NULL, owner_identity TEXT NOT NULL,
    end_json TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
CREATE INDEX attempts_by_key ON attempts (content_key, state);
CREATE TABLE processes (
    attempt_id TEXT NOT NULL REFERENCES attempts, role TEXT NOT NULL, pid INTEGER NOT NULL,
    identity TEXT NOT NULL, started_utc TEXT NOT NULL);
CREATE TABLE weights (
    path TEXT PRIMARY KEY, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, input_sha256 TEXT NOT NULL,
    content_key TEXT NOT NULL, attempt_id TEXT NOT NULL, outcome TEXT NOT NULL, note TEXT NOT NULL,
    utc TEXT NOT NULL, moved_to TEXT NOT NULL DEFAULT '');
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    subject TEXT NOT NULL, utc TEXT NOT NULL, text TEXT NOT NULL DEFAULT '',
    delivered INTEGER NOT NULL DEFAULT 0, refused TEXT NOT NULL DEFAULT '');
"""
FROM_VERSION_1 = """
ALTER TABLE notices RENAME COLUMN told TO delivered;
ALTER TABLE notices ADD COLUMN refused TEXT NOT NULL DEFAULT '';
"""
INDEXES = """
CREATE INDEX runs_by_state ON runs (state);
CREATE INDEX attempts_by_state ON attempts (state);
CREATE INDEX notices_for_devlog ON notices (number) WHERE delivered & 1 = 0;
CREATE INDEX notices_for_mlflow ON notices (number) WHERE delivered & 2 = 0;
"""
"""The tables' own primary keys and these keep every question of an attempt free of a scan over all rows."""


class State(StrEnum):
    """Of a run or an attempt."""

    OPEN = "open"
    CLOSED = "closed"
    INTERRUPTED = "interrupted"


class NoticeKind(StrEnum):
    """What happened, and is to reach DevLog and MLflow after the journal has it."""

    RUN_OPENED = "run_opened"
    RUN_CLOSED = "run_closed"
    RUN_INTERRUPTED = "run_interrupted"
    ATTEMPT_OPENED = "attempt_opened"
    ATTEMPT_CLOSED = "attempt_closed"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    ATTEMPT_REUSED = "attempt_reused"


class Destination(IntFlag):
    """Where notices are delivered to. The values are stored."""

    NOWHERE = 0
    DEVLOG = 1
    MLFLOW = 2


@dataclass(frozen=True)
class RunRow:
    """A run of an experiment as the journal has it."""

    run_id: str
    experiment: str
    command: str
    settings_yaml: str
    state: State
    opened_utc: str
    closed_utc: str
    """Empty while open."""
    owner_pid: int
    owner_identity: str
    end: RunEnd | None
    reason: str
    """Why it was interrupted; empty otherwise."""

    @property
    def id(self) -> str:
        """As attempts have it."""
        return self.run_id


@dataclass(frozen=True)
class AttemptRow:
    """An attempt as the journal has it."""

    id: str
    attempt: Attempt
    state: State
    opened_utc: str
    closed_utc: str
    owner_pid: int
    owner_identity: str
    end: AttemptEnd | None
    reason: str


@dataclass(frozen=True)
class ProcessRow:
    """A process that was started for an attempt."""

    attempt_id: str
    role: str
    pid: int
    identity: str
    """See `process_identity`: a later process may get the same number."""
    started_utc: str


@dataclass(frozen=True)
class WeightRow:
    """A weight file, by its path from the project root."""

    path: str
    sha256: str
    bytes: int
    input_sha256: str
    """Of the weight that it was made from; empty for a base weight."""
    content_key: str
    attempt_id: str
    outcome: str
    """An `Outcome`; empty for a base weight."""
    note: str
    utc: str
    moved_to: str = ""
    """Where it was about to be moved; empty if it stays."""


@dataclass(frozen=True)
class Notice:
    """Something that the journal has, and DevLog and MLflow may not have yet."""

    number: int
    id: str
    kind: NoticeKind
    subject: str
    """Id of the run or attempt."""
    utc: str
    text: str
    """Id of the run that reuses the attempt; empty for other kinds."""
    delivered: Destination
    refused: str
    """Why MLflow does not take a part of it; empty if it has all of it, or not been asked yet."""

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""
        of_run = self.kind in (NoticeKind.RUN_OPENED, NoticeKind.RUN_CLOSED, NoticeKind.RUN_INTERRUPTED)
        return self.text or (self.subject if of_run else self.subject.rsplit("/", 2)[0])
