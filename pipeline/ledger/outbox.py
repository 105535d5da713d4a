"""Brings DevLog.md and 檔案說明清單.md up to date with the journal: each entry once and in order."""

from __future__ import annotations

import logging
from pathlib import Path

from pipeline.ledger import devlog, weight_list
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Destination, Notice, NoticeKind

LOG = logging.getLogger("pipeline.ledger.ledger")


class Outbox:
    """What cannot be written now costs one line of warning, and is written later."""

    def __init__(self, journal: Journal, root: Path, artifacts: Path, mlflow: bool) -> None:
        """Nothing is written yet.

        Args:
            journal: with the notices.
            root: holds DevLog.md; where the paths in the journal start.
            artifacts: holds 檔案說明清單.md.
            mlflow: whether MLflow is switched on; if not, it never gets the notices of this run.
        """
        self._journal = journal
        self._root = root
        self._artifacts = artifacts
        self._destination = Destination.DEVLOG if mlflow else Destination.DEVLOG | Destination.MLFLOW
        self._warned: set[str] = set()

    def deliver(self) -> None:
        """Writes the entries that DevLog.md does not have yet. What fails stays for the next time."""
        for notice in self._journal.pending(Destination.DEVLOG):
            text = self._entry(notice)
            try:
                if text:
                    devlog.append_once(self._root / devlog.DEVLOG_NAME, notice.id, text)
            except devlog.DevLogError as error:
                self._warn("DevLog", error)
                return
            self._journal.deliver(notice, self._destination)

    def update_weight_list(self) -> None:
        """Rewrites the table of weights if it changed."""
        try:
            weight_list.update(self._artifacts, self._root, self._journal.weights.all())
        except weight_list.WeightListError as error:
            self._warn("weight list", error)

    def _entry(self, notice: Notice) -> str:
        """The entry of a notice; empty if there is nothing to say yet."""
        match notice.kind:
            case NoticeKind.RUN_OPENED:
                return devlog.run_opened(self._journal.run(notice.subject))
            case NoticeKind.RUN_CLOSED | NoticeKind.RUN_INTERRUPTED:
                return devlog.run_ended(self._journal.run(notice.subject))
            case NoticeKind.ATTEMPT_OPENED:
                return ""
            case NoticeKind.ATTEMPT_REUSED:
                return devlog.attempt_reused(self._journal.attempt(notice.subject), notice.run_id)
            case NoticeKind.ATTEMPT_CLOSED | NoticeKind.ATTEMPT_INTERRUPTED:
                return devlog.attempt_ended(self._journal.attempt(notice.subject))

    def _warn(self, what: str, error: Exception) -> None:
        if what not in self._warned:
            LOG.warning("%s. The journal has it; it will be written as soon as that works again", error)
        self._warned.add(what)
