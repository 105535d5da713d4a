"""The record of everything, as the runner sees it: the journal, then DevLog and weight list, then MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.process_identity import process_identity
from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Attempt, AttemptEnd, Outcome, RunEnd
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import JOURNAL_NAME, Journal
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.sync import BackgroundSync
from pipeline.ledger.mlflow.target import resolve, save_settings
from pipeline.ledger.outbox import Outbox
from pipeline.ledger.schema import ProcessRow, RunRow, State
from stages.contract.clock import utc_now
from stages.contract.events import StageResult


class Ledger:
    """The ledger of an artifacts folder; `with` opens it, under the folder's lock (`FolderLock`).

    Only the journal can stop a run (`JournalError`). What DevLog, weight list or MLflow do not take costs one
    line of warning, and reaches them later from the journal.
    """

    def __init__(self, root: Path, settings: TrackingSettings, artifacts: Path | None = None) -> None:
        """Does nothing yet; `with` opens the ledger.

        Args:
            root: of the project, where relative paths start; holds DevLog.md.
            settings: of MLflow.
            artifacts: `root/artifacts` if left out.
        """
        self.root = root
        self.artifacts = artifacts or root / "artifacts"
        self._settings = settings
        self._sync: BackgroundSync | None = None

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
            remedy = "make it a folder that can be written to"
            raise JournalError(f"{self.artifacts}: {error.strerror}: {remedy}") from error
        self._outbox = Outbox(self.journal, self.root, self.artifacts, self._settings.enabled)
        self._recovered = self._recover()
        self._start_sync()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Closes as interrupted whatever is still open, and sends the rest as far as time allows."""
        try:
            reason = f"{type(error).__name__}: {error}" if error else "the run ended without closing it"
            self.interrupt_run("", reason)
            if self._sync:
                self._sync.stop(self.journal)
        finally:
            self.journal.close()

    # --- runs ---

    def open_run(self, run_id: str, experiment: str, command: str, settings_yaml: str) -> None:
        """A run of an experiment begins. Call it before anything is done."""
        self.journal.open_run(run_id, experiment, command, settings_yaml)
        self._outbox.deliver()

    def close_run(self, run_id: str, end: RunEnd) -> None:
        """The run came to its end."""
        self.journal.close_run(run_id, end)
        self._write()

    def interrupt_run(self, run_id: str, reason: str) -> None:
        """Ends a stopped run and its open attempts; all runs of this process if `run_id` is empty."""
        me = (os.getpid(), process_identity(os.getpid()))
        for row in self.journal.open_attempts():
            if (row.owner_pid, row.owner_identity) == me and run_id in ("", row.attempt.run_id):
                self.journal.interrupt_attempt(row.attempt, reason)
        for run in self.journal.runs(State.OPEN):
            if (run.owner_pid, run.owner_identity) == me and run_id in ("", run.run_id):
                self.journal.interrupt_run(run.run_id, reason)
        self._write()

    # --- attempts ---

    def open_attempt(self, attempt: Attempt) -> None:
        """An attempt begins. Call it before its folder is made."""
        self.journal.open_attempt(attempt)
        self._outbox.deliver()

    def process_started(self, attempt: Attempt, pid: int, role: str = "train") -> None:
        """A process of the attempt has just been started."""
        self.journal.process_started(attempt, pid, role)

    def stage_finished(self, attempt: Attempt, result: StageResult) -> None:
        """The stage's process ended, well or badly. The weight that it wrote is known from now on."""
        if result.output and result.sha256:
            self.journal.weights.record(result.output, result.sha256, attempt=attempt)

    def moving_weight(self, source: str, target: str, reason: str) -> None:
        """A weight that is known is about to be renamed. Call it before."""
        self.journal.weights.will_move(source, target, reason)

    def base_weight(self, path: str, sha256: str, note: str = "base") -> None:
        """A weight that no attempt made is used."""
        self.journal.weights.record(path, sha256, note)

    def close_attempt(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The attempt has its verdict, and its weight lies where `end` says."""
        self.journal.close_attempt(attempt, end)
        self._write()

    def interrupt_attempt(self, attempt: Attempt, reason: str) -> None:
        """The attempt was stopped before a verdict: the next run repeats it."""
        self.journal.interrupt_attempt(attempt, reason)
        self._write()

    def reuse_attempt(self, run_id: str, attempt: Attempt) -> None:
        """A finished attempt of an earlier run takes the place of a new one in this run."""
        self.journal.reuse_attempt(run_id, attempt)
        self._outbox.deliver()

    # --- questions ---

    def find_finished(self, content_key: str) -> tuple[Attempt, AttemptEnd] | None:
        """The latest finished attempt of that key, whatever its verdict; a passed one only with its weight.

        The machine is not in the key: the caller decides whether an `over_limit` or `broken` one counts.
        """
        found = self.journal.find_finished(content_key)
        if found and found[1].outcome is Outcome.PASSED:
            weight = self.root / found[1].output_weight
            if not weight.is_file() or sha256_file(weight) != found[1].output_sha256:
                return None
        return found

    def find_other_code(self, attempt: Attempt) -> Attempt | None:
        """The latest judged attempt that equals this one but for the code that ran; None if there is none."""
        return self.journal.find_other_code(attempt)

    def find_interrupted(self, content_key: str) -> list[Attempt]:
        """The interrupted attempts of that key, latest first."""
        return self.journal.find_interrupted(content_key)

    def interrupted(self) -> list[Attempt]:
        """The attempts of dead processes that were open when this ledger opened, and are interrupted now."""
        return self._recovered

    def leftover_processes(self) -> list[ProcessRow]:
        """Processes of dead runs that live on and may hold memory. They are ours by number and start time."""
        return self.journal.leftover_processes()

    def has_ended(self, run_id: str) -> bool:
        """Whether that is a run of this ledger which is over, however it ended."""
        row = self.journal.find(run_id)
        return isinstance(row, RunRow) and row.state is not State.OPEN

    # --- inside ---

    def _recover(self) -> list[Attempt]:
        found = self.journal.abandoned_attempts()
        for row in found:
            reason = f"控制程序 process {row.owner_pid} 在 {utc_now()} 之前結束,attempt 未完成"
            self.journal.interrupt_attempt(row.attempt, reason)
        for run in self.journal.abandoned_runs():
            self.journal.interrupt_run(run.run_id, f"控制程序 process {run.owner_pid} 已結束,run 未完成")
        self._write()
        return [row.attempt for row in found]

    def _write(self) -> None:
        self._outbox.deliver()
        self._outbox.update_weight_list()

    def _start_sync(self) -> None:
        if self._settings.enabled:
            client = Client(resolve(self._settings, self.root, self.artifacts))
            self._sync = BackgroundSync(self.root, self.artifacts, client, self._settings)
            self._sync.start()
