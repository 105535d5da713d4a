"""The tables of the journal, and the rows read from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum

from pipeline.core.types import Attempt, AttemptEnd, RunEnd

VERSION = 1
SCHEMA = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, experiment TEXT NOT NULL, command TEXT NOT NULL, settings_yaml TEXT NOT NULL,
    state TEXT NOT NULL, opened_utc TEXT NOT NULL, closed_utc TEXT NOT NULL DEFAULT '',
    owner_pid INTEGER NOT NULL, owner_identity TEXT NOT NULL,
    end_json TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
CREATE TABLE attempts (
    id TEXT PRIMARY KEY, run_id TEXT NOT NULL REFERENCES runs, content_key TEXT NOT NULL, attempt_json TEXT NOT NULL,
    state TEXT NOT NULL, opened_utc TEXT NOT NULL, closed_utc TEXT NOT NULL DEFAULT '',
    owner_pid INTEGER NOT NULL, owner_identity TEXT NOT NULL,
    end_json TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');
CREATE INDEX attempts_by_key ON attempts (content_key, state);
CREATE TABLE processes (
    attempt_id TEXT NOT NULL REFERENCES attempts, role TEXT NOT NULL, pid INTEGER NOT NULL, identity TEXT NOT NULL,
    started_utc TEXT NOT NULL);
CREATE TABLE marks (
    attempt_id TEXT NOT NULL REFERENCES attempts, name TEXT NOT NULL, payload_json TEXT NOT NULL, utc TEXT NOT NULL,
    PRIMARY KEY (attempt_id, name));
CREATE TABLE weights (
    path TEXT PRIMARY KEY, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, input_sha256 TEXT NOT NULL,
    content_key TEXT NOT NULL, attempt_id TEXT NOT NULL, outcome TEXT NOT NULL, note TEXT NOT NULL, utc TEXT NOT NULL,
    moved_to TEXT NOT NULL DEFAULT '');
CREATE INDEX weights_by_sha ON weights (sha256);
CREATE TABLE answers (key TEXT PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, utc TEXT NOT NULL);
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, subject TEXT NOT NULL,
    utc TEXT NOT NULL, text TEXT NOT NULL DEFAULT '', told INTEGER NOT NULL DEFAULT 0);
"""


class State(StrEnum):
    """Of a run or an attempt."""

    OPEN = "open"
    CLOSED = "closed"
    INTERRUPTED = "interrupted"


class NoticeKind(StrEnum):
    """What is to be told to people and to MLflow after the journal has it."""

    RUN_OPENED = "run_opened"
    RUN_CLOSED = "run_closed"
    RUN_INTERRUPTED = "run_interrupted"
    ATTEMPT_OPENED = "attempt_opened"
    ATTEMPT_CLOSED = "attempt_closed"
    ATTEMPT_INTERRUPTED = "attempt_interrupted"
    ATTEMPT_REUSED = "attempt_reused"


class Delivered(IntFlag):
    """Who has been told a notice."""

    NOBODY = 0
    PEOPLE = 1
    """It stands in DevLog.md."""
    MLFLOW = 2
    """It stands in the spool, or MLflow is switched off."""
    ALL = 3


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
    """Something the journal has and that DevLog and MLflow may not have yet."""

    number: int
    id: str
    kind: NoticeKind
    subject: str
    """Id of the run or attempt."""
    utc: str
    text: str = ""
    """The run that took an attempt over."""
    told: Delivered = Delivered.NOBODY
