"""The record of everything, as the runner sees it: first the journal, then DevLog and file list, then MLflow."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.process_identity import process_identity
from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Attempt, AttemptEnd, Outcome, RunEnd, Verdict
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import JOURNAL_NAME, Journal
from pipeline.ledger.mlflow import records as tracking_records
from pipeline.ledger.mlflow.client import Backend, RejectedError, UnreachableError
from pipeline.ledger.mlflow.sender import Sender
from pipeline.ledger.mlflow.tracking import close_stale, resolve, save_settings, spool_folder
from pipeline.ledger.outbox import Outbox
from pipeline.ledger.schema import AttemptRow, ProcessRow, State
from stages.contract.clock import utc_now
from stages.contract.events import Event, StageResult

__all__ = ["Ledger", "TrackingSettings"]

LOG = logging.getLogger("pipeline.ledger.ledger")


class Ledger:
    """The ledger of an artifacts folder, as a context manager; open it under the folder's lock
    (`pipeline.core.lock.FolderLock`).

    Only the journal can stop a run (`JournalError`). What DevLog, file list or MLflow did not take is kept
    and told later, and said in one line of warning.
    """

    def __init__(self, root: Path, settings: TrackingSettings, artifacts: Path | None = None) -> None:
        """Does nothing yet; `with` opens the ledger.

        Args:
            root: of the project, that relative paths are meant from; holds DevLog.md.
            settings: of MLflow.
            artifacts: `root/artifacts` if left out.
        """
        self.root = root
        self.artifacts = artifacts or root / "artifacts"
        self._settings = settings
        self._sender: Sender | None = None

    def __enter__(self) -> Ledger:
        """Closes what dead runs left open, and begins to send to MLflow.

        Raises:
            JournalError: if the folder or the journal cannot be read and written.
        """
        try:
            self.journal = Journal(self.artifacts / JOURNAL_NAME, self.root)
            if self._settings.enabled:
                save_settings(self._settings, self.root, self.artifacts)
        except OSError as error:
            raise JournalError(
                f"{self.artifacts}: {error.strerror}: make it a folder that can be written to"
            ) from error
        self._outbox = Outbox(self.journal, self.root, self.artifacts, self._settings)
        self.recovered = self._recover()
        self._start_sender()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Closes as interrupted whatever is still open, and sends the rest as far as time allows."""
        try:
            self._interrupt_own(
                "", f"{type(error).__name__}: {error}" if error else "the run ended without closing it"
            )
            self._tell_all()
            self._outbox.close()
            if self._sender:
                self._sender.stop(self._settings.close_wait_secs)
        finally:
            self.journal.close()

    # --- runs ---

    def open_run(self, run_id: str, experiment: str, command: str, settings_yaml: str) -> None:
        """A run of an experiment begins. Call it before anything is done."""
        self.journal.open_run(run_id, experiment, command, settings_yaml)
        self._outbox.tell()

    def close_run(self, run_id: str, end: RunEnd) -> None:
        """The run came to its end."""
        self.journal.close_run(run_id, end)
        self._tell_all()

    def interrupt_run(self, run_id: str, reason: str) -> None:
        """The run was stopped from outside; its open attempts with it."""
        self._interrupt_own(run_id, reason)
        self._tell_all()

    # --- attempts ---

    def open_attempt(self, attempt: Attempt) -> None:
        """An attempt begins. Call it before its folder is made."""
        self.journal.open_attempt(attempt)
        self._outbox.tell()

    def process_started(self, attempt: Attempt, pid: int, role: str = "train") -> None:
        """A process of the attempt has just been started."""
        self.journal.process_started(attempt, pid, role)

    def event(self, attempt: Attempt, event: Event) -> None:
        """One event of the stage, as it streams. It goes to MLflow; the stage's own file is the record."""
        if self._settings.enabled:
            records = tracking_records.event(attempt, event)
            if records:
                self._outbox.keep(attempt.run_id, records)

    def stage_finished(self, attempt: Attempt, result: StageResult) -> None:
        """The stage's process ended well or badly. The weight it wrote is known from now on."""
        self.journal.mark(attempt, "stage_finished", result)
        if result.output and result.sha256:
            self.journal.weights.record(result.output, result.sha256, attempt=attempt)

    def judged(self, attempt: Attempt, verdict: Verdict) -> None:
        """The judge has spoken. Call it before the weight is moved."""
        self.journal.mark(attempt, "judged", verdict)

    def moving_weight(self, source: str, target: str, reason: str) -> None:
        """A weight that is known is about to be renamed. Call it before."""
        self.journal.weights.will_move(source, target, reason)

    def base_weight(self, path: str, sha256: str, note: str = "base") -> None:
        """A weight that no attempt made is used."""
        self.journal.weights.record(path, sha256, note)

    def close_attempt(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The attempt has its verdict, and its weight lies where `end` says."""
        self.journal.close_attempt(attempt, end)
        self._tell_all()

    def interrupt_attempt(self, attempt: Attempt, reason: str) -> None:
        """The attempt was stopped before a verdict: the next run repeats it."""
        self.journal.interrupt_attempt(attempt, reason)
        self._tell_all()

    def reuse_attempt(self, run_id: str, attempt: Attempt) -> None:
        """A finished attempt of an earlier run takes the place of a new one in this run."""
        self.journal.reuse_attempt(run_id, attempt)
        self._outbox.tell()

    # --- questions ---

    def find_finished(self, content_key: str) -> tuple[Attempt, AttemptEnd] | None:
        """The latest finished attempt of that key, whatever its verdict; one that passed only if its weight
        is still the same.

        Whether an `over_limit` or `broken` one still stands is for the caller to say: the machine is no part
            of the key.
        """
        found = self.journal.find_finished(content_key)
        if found and found[1].outcome is Outcome.PASSED:
            weight = self.root / found[1].output_weight
            if not weight.is_file() or sha256_file(weight) != found[1].output_sha256:
                return None
        return found

    def find_interrupted(self, content_key: str) -> list[Attempt]:
        """The interrupted attempts of that key, latest first."""
        return self.journal.find_interrupted(content_key)

    def interrupted(self) -> list[Attempt]:
        """The attempts that this ledger found open at its start, of dead processes, and closed as
        interrupted.
        """
        return [row.attempt for row in self.recovered]

    def leftover_processes(self) -> list[ProcessRow]:
        """Processes of dead runs that live on and may hold memory. They are ours by number and start time."""
        return self.journal.leftover_processes()

    def has_ended(self, run_id: str) -> bool:
        """Whether that is a run of this ledger which is over, however it ended."""
        return any(run.run_id == run_id and run.state is not State.OPEN for run in self.journal.runs())

    # --- inside ---

    def _recover(self) -> list[AttemptRow]:
        found = self.journal.abandoned_attempts()
        for row in found:
            self.journal.interrupt_attempt(
                row.attempt, f"控制程序 process {row.owner_pid} 在 {utc_now()} 之前結束,attempt 未完成"
            )
        for run in self.journal.abandoned_runs():
            self.journal.interrupt_run(run.run_id, f"控制程序 process {run.owner_pid} 已結束,run 未完成")
        self._tell_all()
        return found

    def _interrupt_own(self, run_id: str, reason: str) -> None:
        """Ends this process's open attempts and runs: of one run, or of all if `run_id` is empty."""
        me = (os.getpid(), process_identity(os.getpid()))
        for run in self.journal.runs(State.OPEN):
            if (run.owner_pid, run.owner_identity) != me or run_id not in ("", run.run_id):
                continue
            for row in self.journal.attempts(run.run_id):
                if row.state is State.OPEN:
                    self.journal.interrupt_attempt(row.attempt, reason)
            self.journal.interrupt_run(run.run_id, reason)

    def _tell_all(self) -> None:
        self._outbox.tell()
        self._outbox.update_list()

    def _start_sender(self) -> None:
        if not self._settings.enabled:
            return
        target = resolve(self._settings, self.root, self.artifacts)
        backend = Backend(target)
        journal = self.artifacts / JOURNAL_NAME

        def after() -> None:
            try:
                close_stale(journal, backend)
            except (UnreachableError, RejectedError, JournalError) as error:
                LOG.warning("MLflow may still show a run as running: %s", error)

        self._sender = Sender(spool_folder(self.artifacts), self.root, backend, target.uri, after)
        self._sender.start()
