"""Sends the spools to MLflow in order, in a thread of its own; what cannot be sent waits, with one line of
warning.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.lock import FolderLock, LockHeldError
from pipeline.ledger.mlflow.client import (
    MAX_METRICS,
    MAX_PARAMS_TAGS,
    Backend,
    Batch,
    RejectedError,
    UnreachableError,
)
from pipeline.ledger.mlflow.spool import (
    Progress,
    Record,
    load_progress,
    read_from,
    save_progress,
    set_aside,
    waiting,
)

LOG = logging.getLogger("pipeline.tracking")
INTERVAL_SECS = 2.0
RETRY_SECS = 30.0
DRAIN_LOCK = ".drain.lock"


@dataclass(frozen=True)
class SyncResult:
    """What one pass over the spools did."""

    sent: int = 0
    rejected: int = 0
    left: int = 0
    """Spools that still hold something."""


def drain(
    spools: Path,
    root: Path,
    backend: Backend,
    uri: str,
    wait_secs: float = 0.0,
    stop: threading.Event | None = None,
) -> SyncResult:
    """Sends all that waits. One process at a time does this; progress is kept after every call to MLflow.

    Args:
        spools: their folder.
        root: that paths of files are meant from.
        backend: MLflow.
        uri: of `backend`; a spool that was half sent elsewhere is sent whole here.
        wait_secs: how long to wait for another process that sends.
        stop: ends the pass after the call under way.

    Raises:
        UnreachableError: at the first thing that MLflow did not take; the rest stays.
        LockHeldError: if another process is still sending.
        OSError: if progress cannot be kept.
    """
    sent = rejected = 0
    paths = waiting(spools) if spools.is_dir() else []
    if not paths:
        return SyncResult()
    with FolderLock(spools, "sending to MLflow", wait_secs, name=DRAIN_LOCK):
        for path in waiting(spools):
            progress = load_progress(path)
            if progress.uri != uri:
                progress = Progress(uri=uri)
            before = progress.rejected
            sent += _drain_one(path, root, backend, progress, stop)
            rejected += progress.rejected - before
    return SyncResult(sent, rejected, len(waiting(spools)))


def _drain_one(
    path: Path, root: Path, backend: Backend, progress: Progress, stop: threading.Event | None
) -> int:
    sent = 0
    for record, end, count in _grouped(read_from(path, progress.offset)):
        if stop is not None and stop.is_set():
            break
        try:
            if isinstance(record, str):
                raise RejectedError("the line is no record: it was cut short")
            _send(record, root, backend, progress)
            sent += count
        except RejectedError as error:
            set_aside(path, record, str(error))
            if not progress.rejected:
                LOG.warning(
                    "MLflow refused records of %s, kept in %s.rejected.jsonl: %s", path.stem, path.stem, error
                )
            progress.rejected += 1
        progress.offset = end
        save_progress(path, progress)
    return sent


def _send(record: Record, root: Path, backend: Backend, progress: Progress) -> None:
    kind, key = record["op"], record["run"]
    if kind == "run":
        parent = progress.runs.get(record["parent"], "")
        run_id = backend.create_run(key, record["experiment"], record["name"], parent, record["start_ms"])
        progress.runs[key] = run_id
        return
    if key not in progress.runs:
        raise RejectedError(f"run {key} was never made in MLflow")
    run_id = progress.runs[key]
    if kind == "batch":
        for batch in _batches(record):
            backend.log(run_id, batch)
    elif kind == "text":
        backend.text(run_id, record["path"], record["text"])
    elif kind == "file":
        backend.file(run_id, root / record["source"], record["folder"])
    elif kind == "end":
        backend.end(run_id, record["status"], record["end_ms"])
    else:
        raise RejectedError(f"unknown kind of record {kind!r}")


def _grouped(records: Iterable[tuple[Record | str, int]]) -> Iterator[tuple[Record | str, int, int]]:
    """Joins neighbouring batches of one run up to what one call takes: the record, the offset behind it, how
    many it joins.
    """
    held: Record | None = None
    held_end = held_count = 0
    for record, end in records:
        batch = isinstance(record, dict) and record["op"] == "batch"
        if held is not None and batch and isinstance(record, dict) and _fits(held, record):
            held = _joined(held, record)
            held_end, held_count = end, held_count + 1
            continue
        if held is not None:
            yield held, held_end, held_count
            held = None
        if batch and isinstance(record, dict):
            held, held_end, held_count = record, end, 1
        else:
            yield record, end, 1
    if held is not None:
        yield held, held_end, held_count


def _fits(first: Record, second: Record) -> bool:
    return (
        first["run"] == second["run"]
        and len(first.get("metrics", ())) + len(second.get("metrics", ())) <= MAX_METRICS
    )


def _joined(first: Record, second: Record) -> Record:
    return {
        "op": "batch",
        "run": first["run"],
        "metrics": [*first.get("metrics", ()), *second.get("metrics", ())],
        "params": first.get("params", {}) | second.get("params", {}),
        "tags": first.get("tags", {}) | second.get("tags", {}),
    }


def _batches(record: Record) -> Iterator[Batch]:
    """The record in pieces that MLflow takes in one call. Figures that are infinite go as the largest finite
    ones.
    """
    metrics = [(name, _finite(value), when, step) for name, value, when, step in record.get("metrics", ())]
    words = [("params", item) for item in record.get("params", {}).items()]
    words += [("tags", item) for item in record.get("tags", {}).items()]
    while metrics or words:
        # With at most 100 words, 900 metrics keep the whole call at MLflow's 1000 entities.
        room = MAX_METRICS - min(len(words), MAX_PARAMS_TAGS)
        now, words = words[:MAX_PARAMS_TAGS], words[MAX_PARAMS_TAGS:]
        params = tuple(item for kind, item in now if kind == "params")
        yield Batch(tuple(metrics[:room]), params, tuple(item for kind, item in now if kind == "tags"))
        metrics = metrics[room:]


def _finite(value: Any) -> float:
    number = float(value)
    return math.copysign(1.7976931348623157e308, number) if math.isinf(number) else number


class Sender:
    """A thread that drains the spools while a run goes on. Nothing that MLflow does can stop or delay the
    run.
    """

    def __init__(
        self, spools: Path, root: Path, backend: Backend, uri: str, after: Callable[[], None] | None = None
    ) -> None:
        """Prepares the thread.

        Args:
            spools: folder of the spools.
            root: that paths of files are meant from.
            backend: MLflow.
            uri: of `backend`.
            after: called once when everything has been sent at the end, in the thread.
        """
        self._work = (spools, root, backend, uri)
        self._after = after
        self._finish = threading.Event()
        self._abort = threading.Event()
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)

    def start(self) -> None:
        """Begins to import MLflow and to send."""
        self._thread.start()

    def stop(self, wait_secs: float) -> bool:
        """Sends the rest for at most that long; False if something is left for `python -m pipeline.tracking
        sync`.
        """
        self._finish.set()
        self._thread.join(wait_secs)
        self._abort.set()
        left = len(waiting(self._work[0])) if self._work[0].is_dir() else 0
        if left and not self._warned:
            LOG.warning(
                "MLflow has not got everything yet: `python -m pipeline.tracking sync` sends the rest"
            )
        return left == 0 and not self._thread.is_alive()

    def _run(self) -> None:
        next_try = 0.0
        while True:
            last = self._finish.is_set()
            if (last or time.monotonic() >= next_try) and not self._pass():
                next_try = time.monotonic() + RETRY_SECS
            if last:
                return
            self._finish.wait(INTERVAL_SECS)

    def _pass(self) -> bool:
        try:
            self._work[2].connect()
            spools, root, backend, uri = self._work
            drain(spools, root, backend, uri, wait_secs=INTERVAL_SECS, stop=self._abort)
            if self._finish.is_set() and self._after:
                self._after()
            self._warned = False
            return True
        except LockHeldError:
            return True  # another process sends at this moment, ours included
        except (UnreachableError, OSError) as error:
            if not self._warned:
                LOG.warning(
                    "MLflow: %s. Training goes on; `python -m pipeline.tracking sync` sends what waits", error
                )
            self._warned = True
            return False
