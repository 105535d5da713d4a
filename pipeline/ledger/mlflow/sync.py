"""Brings MLflow up to date with the journal: its notices in order, and the events of attempts that are open.

The journal and the attempts' folders are the queue: what MLflow did not take is sent again from there, and
sending twice changes nothing in MLflow.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.core.lock import FolderLock, LockHeldError
from pipeline.core.settings import TrackingSettings
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import JOURNAL_NAME, Journal
from pipeline.ledger.mlflow import content
from pipeline.ledger.mlflow.client import Client, RejectedError, UnreachableError
from pipeline.ledger.mlflow.target import mlflow_folder
from pipeline.ledger.schema import AttemptRow, Destination, Notice, NoticeKind, RunRow, State
from stages.contract.event_reader import EventReader
from stages.contract.serial import RequestError

LOG = logging.getLogger("pipeline.tracking")
INTERVAL_SECS = 2.0
RETRY_SECS = 30.0
SYNC_WAIT_SECS = 60.0
NOTICES_AT_ONCE = 100
OLD_SPOOL = "spool"
REMEDY = "`python -m pipeline.tracking sync` sends what waits"


@dataclass(frozen=True)
class SyncResult:
    """What a pass did."""

    sent: int = 0
    """Notices that MLflow has whole now."""
    refused: tuple[str, ...] = ()
    """A line for each notice of which MLflow does not take a part, with the reason. The journal notes it."""


@dataclass(frozen=True)
class Sync:
    """Sends what a journal has and MLflow has not."""

    journal: Journal
    """Opened by the thread that uses this."""
    root: Path
    """Where the paths of attempts' folders start."""
    artifacts: Path
    client: Client
    settings: TrackingSettings
    _ids: dict[str, str] = field(default_factory=dict)
    """Run or attempt → MLflow's id: this and the next only save work."""
    _open: dict[str, tuple[EventReader, list[content.Metric]]] = field(default_factory=dict)
    """Open attempt → its events, and the figures of those that MLflow does not have yet."""

    def catch_up(self, wait_secs: float = 0.0) -> SyncResult:
        """Sends everything that waits. One process at a time does this.

        Args:
            wait_secs: how long to wait for another process that sends.

        Raises:
            UnreachableError: at the first call that MLflow did not take; the rest waits.
            LockHeldError: if another process is still sending.
            JournalError: if the journal cannot be read or written.
            OSError: if a file cannot.
        """
        sent, refused = 0, []
        folder = mlflow_folder(self.artifacts)
        if (folder / OLD_SPOOL).is_dir() or self.journal.pending(Destination.MLFLOW, 1):
            folder.mkdir(parents=True, exist_ok=True)
            with FolderLock(folder, "sending to MLflow", wait_secs, name=".sync.lock"):
                take_over_spool(self.journal, folder / OLD_SPOOL)
                while notices := self.journal.pending(Destination.MLFLOW, NOTICES_AT_ONCE):
                    for notice in notices:
                        reasons = "; ".join(dict.fromkeys(self._deliver(notice)))
                        self.journal.deliver(notice, Destination.MLFLOW, reasons)
                        sent += not reasons
                        refused += [f"{notice.id}: {reasons}"] if reasons else []
        for key in list(self._open):
            metrics = self._new_metrics(key)
            if self.client.send(self._ids[key], content.Content(metrics=metrics)):
                del self._open[key]  # refused: the notice of its end will say so
            metrics.clear()
        return SyncResult(sent, tuple(refused))

    def end_stale(self) -> int:
        """Ends runs that MLflow shows as running and the journal has as ended; returns how many.

        Runs of other journals stay as they are. Raises as `catch_up`.
        """
        found = [(run_id, self.journal.find(key)) for key, run_id in self.client.running()]
        stale = [(run_id, row) for run_id, row in found if row and row.state is not State.OPEN]
        for run_id, row in stale:
            self.client.send(run_id, content.Content(**content.end(row)))
        return len(stale)

    def _deliver(self, notice: Notice) -> list[str]:
        """Sends what a notice is about; returns why MLflow does not take parts of it."""
        try:
            if notice.subject == notice.run_id:
                return self._deliver_run(notice, self.journal.run(notice.subject))
            return self._deliver_attempt(notice, self.journal.attempt(notice.subject))
        except (RejectedError, RequestError) as error:
            return [str(error)]

    def _deliver_run(self, notice: Notice, row: RunRow) -> list[str]:
        if notice.kind is NoticeKind.RUN_OPENED:
            return self._create(row)
        return self.client.send(self._id(row), content.run_ended(row))

    def _deliver_attempt(self, notice: Notice, row: AttemptRow) -> list[str]:
        if notice.kind is NoticeKind.ATTEMPT_REUSED:
            return self.client.send(self._id(self.journal.run(notice.run_id)), content.attempt_reused(row))
        reasons = self._create(row) if notice.kind is NoticeKind.ATTEMPT_OPENED else []
        run_id = self._id(row)
        self._open.setdefault(row.id, (EventReader(self.root / row.attempt.folder / "events.jsonl"), []))
        if notice.kind is not NoticeKind.ATTEMPT_OPENED:
            metrics, points = self._new_metrics(row.id), self.settings.trace_points
            reasons = self.client.send(run_id, content.attempt_ended(row, self.root, points, metrics))
            del self._open[row.id], self._ids[row.id]
        return reasons

    def _new_metrics(self, key: str) -> list[content.Metric]:
        reader, metrics = self._open[key]
        metrics += content.event_metrics(reader.read())
        return metrics

    def _id(self, row: RunRow | AttemptRow) -> str:
        """MLflow's id of a run or attempt, which is made first where MLflow does not know it."""
        if row.id not in self._ids:
            found = self.client.find_run(row.id)
            if found:
                self._ids[row.id] = found
            else:
                self._create(row)
        return self._ids[row.id]

    def _create(self, row: RunRow | AttemptRow) -> list[str]:
        """Makes a run, if MLflow has none, and sends what it opened with; returns why parts are refused."""
        start, prefix = content.milliseconds(row.opened_utc), self.settings.experiment_prefix
        if isinstance(row, RunRow):
            parent, opened = "", content.run_opened(row)
            experiment, name = row.experiment, row.id
        else:
            parent, opened = self._id(self.journal.run(row.attempt.run_id)), content.attempt_opened(row)
            experiment, name = row.attempt.experiment, f"{row.attempt.stage} #{row.attempt.number}"
        self._ids[row.id] = self.client.create_run(row.id, prefix + experiment, name, parent, start)
        return self.client.send(self._ids[row.id], opened)


def take_over_spool(journal: Journal, spool: Path) -> None:
    """Marks the runs that the version before left half sent as not sent, and renames its folder, once.

    That version wrote what MLflow was to get into `<run>.jsonl`, and how many bytes of it were sent into
    `<run>.sent.json`. The journal and the attempts' folders hold all of it too.
    """
    if not spool.is_dir():
        return
    for path in spool.glob("*.jsonl"):
        try:
            sent = json.loads(path.with_suffix(".sent.json").read_text(encoding="utf-8"))["offset"]
        except (OSError, ValueError, KeyError, TypeError):
            sent = 0
        if not path.name.endswith(".rejected.jsonl") and path.stat().st_size > sent:
            journal.deliver_again(Destination.MLFLOW, path.stem)
    spool.rename(spool.with_name(f"{spool.name}-before"))


def sync(
    artifacts: Path, root: Path, client: Client, settings: TrackingSettings, again: bool = False
) -> SyncResult:
    """Sends everything that waits, and ends runs that are stale. Raises as `Sync.catch_up`.

    Args:
        artifacts: the folder of the journal; without a journal nothing happens.
        root: where the paths of attempts' folders start.
        client: MLflow.
        settings: what MLflow gets.
        again: send everything, also what was recorded while MLflow was switched off.
    """
    if not (artifacts / JOURNAL_NAME).is_file():
        return SyncResult()
    with Journal(artifacts / JOURNAL_NAME, root) as journal:
        if again:
            journal.deliver_again(Destination.MLFLOW)
        worker = Sync(journal, root, artifacts, client, settings)
        result = worker.catch_up(SYNC_WAIT_SECS)
        worker.end_stale()
    return result


class BackgroundSync:
    """A thread that keeps MLflow up to date while a run goes on; it can neither stop nor delay the run."""

    def __init__(self, root: Path, artifacts: Path, client: Client, settings: TrackingSettings) -> None:
        """Prepares the thread; arguments as for `sync`."""
        self._arguments = (root, artifacts, client, settings)
        self._finish = threading.Event()
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="mlflow-sync", daemon=True)

    def start(self) -> None:
        """Begins to send."""
        self._thread.start()

    def stop(self, journal: Journal) -> bool:
        """Sends the rest for at most `close_wait_secs`.

        Args:
            journal: opened by the calling thread.

        Returns:
            Whether MLflow has everything; if not, `python -m pipeline.tracking sync` sends it.
        """
        _, _, client, settings = self._arguments
        self._finish.set()
        self._thread.join(settings.close_wait_secs)
        left = bool(journal.pending(Destination.MLFLOW, 1))
        if left:
            self._warn("has not got everything yet")
        client.stop.set()
        return not left and not self._thread.is_alive()

    def _run(self) -> None:
        root, artifacts, client, settings = self._arguments
        worker: Sync | None = None
        next_try, last = 0.0, False
        while not last:
            last = self._finish.is_set()
            if last or time.monotonic() >= next_try:
                try:
                    client.connect()  # the import takes longer than the first thing to send does to come
                    if worker is None:
                        journal = Journal(artifacts / JOURNAL_NAME, root)
                        worker = Sync(journal, root, artifacts, client, settings)
                    for line in worker.catch_up(INTERVAL_SECS).refused:
                        self._warn(f"does not take a part of {line}", kind="refused")
                    if last:
                        worker.end_stale()
                    self._warned.discard("unreachable")
                except LockHeldError:
                    pass  # another process sends at this moment, ours included
                except (UnreachableError, RejectedError, JournalError, OSError) as error:
                    self._warn(str(error))
                    next_try = time.monotonic() + RETRY_SECS
            self._finish.wait(INTERVAL_SECS)
        if worker:
            worker.journal.close()

    def _warn(self, text: str, kind: str = "unreachable") -> None:
        """One line for each kind of trouble."""
        if kind not in self._warned and not self._arguments[2].stop.is_set():
            LOG.warning(f"MLflow: {text}. Training goes on; {REMEDY}")
        self._warned.add(kind)


def waiting_runs(artifacts: Path) -> int:
    """How many runs MLflow has not got all of. Raises JournalError."""
    if not (artifacts / JOURNAL_NAME).is_file():
        return 0
    with Journal(artifacts / JOURNAL_NAME) as journal:
        return len({notice.run_id for notice in journal.pending(Destination.MLFLOW)})
