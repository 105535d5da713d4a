"""Tells people (DevLog, file list) and MLflow's spool what the journal has, each thing once and in order."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.core.settings import TrackingSettings
from pipeline.ledger import devlog
from pipeline.ledger import weight_list as filelist
from pipeline.ledger.journal import Journal
from pipeline.ledger.mlflow import records as tracking_records
from pipeline.ledger.mlflow.spool import Record, Spool
from pipeline.ledger.mlflow.tracking import spool_folder
from pipeline.ledger.schema import Delivered, Notice, NoticeKind

LOG = logging.getLogger("pipeline.ledger.ledger")
OF_RUNS = (NoticeKind.RUN_OPENED, NoticeKind.RUN_CLOSED, NoticeKind.RUN_INTERRUPTED)


class Outbox:
    """What DevLog, file list or spool do not take now is said in one line of warning and told later."""

    def __init__(self, journal: Journal, root: Path, artifacts: Path, settings: TrackingSettings) -> None:
        """Nothing is written yet."""
        self._journal = journal
        self._root = root
        self._artifacts = artifacts
        self._settings = settings
        self._devlog = root / devlog.DEVLOG_NAME
        self._spools: dict[str, Spool] = {}
        self._warned: set[str] = set()

    def close(self) -> None:
        """Syncs and closes the spools."""
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()

    def tell(self) -> None:
        """Tells what is not told yet, in order. What fails stays for the next time."""
        failed = Delivered.NOBODY
        for notice in self._journal.pending():
            text, records = self._words(notice)
            if not (notice.told | failed) & Delivered.PEOPLE:
                if self._tell_people(notice, text):
                    self._journal.tell(notice, Delivered.PEOPLE)
                else:
                    failed |= Delivered.PEOPLE
            if not (notice.told | failed) & Delivered.MLFLOW:
                if not self._settings.enabled or self.keep(_run_of(notice), records):
                    self._journal.tell(notice, Delivered.MLFLOW)
                else:
                    failed |= Delivered.MLFLOW

    def _words(self, notice: Notice) -> tuple[str, list[Record]]:
        """A notice for people (empty: nothing to say yet) and for MLflow."""
        prefix, points = self._settings.experiment_prefix, self._settings.trace_points
        if notice.kind in OF_RUNS:
            run = self._journal.run(notice.subject)
            if notice.kind is NoticeKind.RUN_OPENED:
                return devlog.run_opened(run), tracking_records.run_opened(run, prefix)
            text = devlog.run_ended(run)
            return text, tracking_records.run_ended(run, text)
        row = self._journal.attempt(notice.subject)
        if notice.kind is NoticeKind.ATTEMPT_OPENED:
            return "", tracking_records.attempt_opened(row, prefix)
        if notice.kind is NoticeKind.ATTEMPT_REUSED:
            return devlog.attempt_reused(row, notice.text), tracking_records.attempt_reused(row, notice.text)
        text = devlog.attempt_ended(row)
        return text, tracking_records.attempt_ended(row, self._root, text, points)

    def _tell_people(self, notice: Notice, text: str) -> bool:
        try:
            if text:
                devlog.append_once(self._devlog, notice.id, text)
            return True
        except devlog.DevLogError as error:
            self._warn("DevLog", error)
            return False

    def keep(self, run_id: str, records: list[Record]) -> bool:
        """Puts records into the spool of a run. False if the disk does not take them."""
        try:
            if run_id not in self._spools:
                self._spools[run_id] = Spool(spool_folder(self._artifacts), run_id)
            self._spools[run_id].append(records)
            return True
        except OSError as error:
            self._warn("spool", error)
            return False

    def update_list(self) -> None:
        """Makes the file list true."""
        try:
            filelist.update(self._artifacts, self._root, self._journal.weights.all())
        except filelist.FileListError as error:
            self._warn("file list", error)

    def _warn(self, what: str, error: Exception) -> None:
        """Once for each kind of trouble: training goes on."""
        if what not in self._warned:
            LOG.warning("%s. The journal has it; it will be written as soon as that works again", error)
        self._warned.add(what)


def _run_of(notice: Notice) -> str:
    """The run whose spool takes the notice: of an attempt that was taken over, the one that took it."""
    return notice.text or (notice.subject if notice.kind in OF_RUNS else notice.subject.rsplit("/", 2)[0])
