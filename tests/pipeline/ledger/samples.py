"""Attempts, verdicts and events for the tests of the ledger, and an MLflow database made once and copied."""

from __future__ import annotations

import functools
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.types import (
    Attempt,
    AttemptEnd,
    Change,
    Check,
    Outcome,
    ProbeRow,
    RunEnd,
    StartFrom,
    Verdict,
)
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.target import Target
from stages.contract.events import Event, EventKind
from stages.contract.serial import dump_line

PROJECT = Path(__file__).parents[3]
RUN = "20260301-101500-stageG-ab12"


def attempt(
    number: int = 1, run_id: str = RUN, key: str = "k1", stage: str = "G", **recipe: object
) -> Attempt:
    """An attempt; from the second on with a reason and a change."""
    return Attempt(
        run_id=run_id,
        experiment="stageG",
        stage=stage,
        number=number,
        content_key=key,
        folder=f"artifacts/runs/{run_id}/{stage}-{number}",
        command="python -m pipeline.guard --gpu-limit-gb 4 -- python -m stages.train 'a b.json'",
        recipe={
            "lr": 2e-4,
            "steps": 60,
            "seq_len": 96,
            "lr_groups": {"lm_head": 10.0},
            "data": [{"path": "d.tsv"}],
        }
        | recipe,
        start_from=StartFrom.BASE,
        input_weight="artifacts/base/qwen3-nano/qwen3-nano-nvfp4.dat",
        input_sha256="a" * 64,
        data={"datasets/身份.tsv": "b" * 64, "datasets/../x y.tsv": "c" * 64},
        changes=(Change("lr", 2e-4, 1e-4),) if number > 1 else (),
        why="崩壞之後降低 lr" if number > 1 else "",
    )


def verdict(outcome: Outcome = Outcome.PASSED) -> Verdict:
    """A verdict with a probe table and every kind of field."""
    return Verdict(
        outcome,
        {"identity_heldout": 0.97, "leak": 0.0},
        () if outcome is Outcome.PASSED else ("repetition 0.8 > 0.1: 我是F#之神之神之神",),
        (
            ProbeRow(
                "identity",
                "whoami",
                "heldout",
                "你是誰",
                "我是 F# 之神",
                True,
                "我是通義千問",
                False,
                ("repetition", "leak"),
            ),
        ),
        (Check("leak", 0.0, 0.02, False, Outcome.COLLAPSED, True),),
    )


def end(outcome: Outcome = Outcome.PASSED, weight: str = "", sha256: str = "") -> AttemptEnd:
    """An end with a verdict."""
    return AttemptEnd(
        outcome,
        0,
        verdict(outcome),
        "",
        weight,
        sha256,
        1234.5,
        12.25,
        {"last_loss": 0.25, "update_ratio": 0.99},
    )


def step(number: int, loss: float = 1.0) -> Event:
    """A step event; each has a time of its own."""
    time_utc = f"2026-03-01T10:{number // 60 % 60:02d}:{number % 60:02d}.000000Z"
    values = {"loss": loss, "lr": 1e-4, "grad_norm": 0.5, "update_ratio": 0.98}
    return Event(time_utc, EventKind.STEP, step=number, total=100, values=values)


def write_weight(root: Path, path: str, content: bytes = b"weight") -> str:
    """A small file in place of a weight; returns its SHA-256."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return sha256_file(root / path)


def write_folder(root: Path, item: Attempt) -> None:
    """What the runner leaves in an attempt's folder."""
    folder = root / item.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "request.json").write_text("{}\n")
    (folder / "command.txt").write_text(item.command)
    (folder / "trace.png").write_bytes(b"\x89PNG")
    rows = [f"2026-03-01T10:{i // 60:02d}:{i % 60:02d}.000000Z,{i}.0,{i + 1}.0,99.0" for i in range(1000)]
    (folder / "trace.csv").write_text("time_utc,pid_mib,total_mib,available_mib\n" + "\n".join(rows) + "\n")


def write_events(root: Path, item: Attempt, events: Iterable[Event]) -> None:
    """Appends to the attempt's event file, as its stage does."""
    path = root / item.folder / "events.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(event.line() for event in events)


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Python code in a process of its own."""
    pipe, words = subprocess.PIPE, [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(words, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


OLD_TABLES = """
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
CREATE TABLE marks (
    attempt_id TEXT NOT NULL REFERENCES attempts, name TEXT NOT NULL, payload_json TEXT NOT NULL,
    utc TEXT NOT NULL, PRIMARY KEY (attempt_id, name));
CREATE TABLE weights (
    path TEXT PRIMARY KEY, sha256 TEXT NOT NULL, bytes INTEGER NOT NULL, input_sha256 TEXT NOT NULL,
    content_key TEXT NOT NULL, attempt_id TEXT NOT NULL, outcome TEXT NOT NULL, note TEXT NOT NULL,
    utc TEXT NOT NULL, moved_to TEXT NOT NULL DEFAULT '');
CREATE INDEX weights_by_sha ON weights (sha256);
CREATE TABLE answers (key TEXT PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, utc TEXT NOT NULL);
CREATE TABLE notices (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    subject TEXT NOT NULL, utc TEXT NOT NULL, text TEXT NOT NULL DEFAULT '',
    told INTEGER NOT NULL DEFAULT 0);
PRAGMA user_version = 1;
"""
"""A journal of version 1. `told` had bit 1 for DevLog, and bit 2 for MLflow or its spool."""


def write_old_journal(path: Path) -> None:
    """A journal of version 1: a run and an attempt that passed, in DevLog and in the spool for MLflow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    item, last = attempt(), end()
    opened, closed = "2026-03-01T02:00:00.000000Z", "2026-03-01T02:01:00.000000Z"
    whole = dump_line(RunEnd(Outcome.PASSED, summary=("G attempt 1: passed",)))
    with sqlite3.connect(path) as book:
        book.executescript(OLD_TABLES)
        values = (RUN, "stageG", "make run", "seed: 0\n", "closed", opened, closed, 1, "gone", whole, "")
        book.execute(f"INSERT INTO runs VALUES ({', '.join('?' * 11)})", values)
        rest = ("closed", opened, closed, 1, "gone", dump_line(last), "")
        values = (item.id, RUN, item.content_key, dump_line(item), *rest)
        book.execute(f"INSERT INTO attempts VALUES ({', '.join('?' * 11)})", values)
        book.execute("INSERT INTO marks VALUES (?, 'judged', '{}', ?)", (item.id, closed))
        of_attempt = [(item.id, "attempt_opened"), (item.id, "attempt_closed")]
        for subject, kind in [(RUN, "run_opened"), *of_attempt, (RUN, "run_closed")]:
            insert = "INSERT INTO notices (id, kind, subject, utc, told) VALUES (?, ?, ?, ?, 3)"
            book.execute(insert, (f"{subject}:{kind}", kind, subject, closed))
    book.close()


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mlflow-template-"))
    Client(Target(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri(), folder)).connect()
    return folder / "mlflow.db"


def with_database(root: Path) -> Path:
    """Puts a migrated, empty MLflow database where a ledger of `root` looks for it: the first migration takes
    seconds.
    """
    folder = root / "artifacts" / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), folder / "mlflow.db")
    return folder / "mlflow.db"
