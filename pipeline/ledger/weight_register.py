"""The journal's table of weight files: every weight with its lineage, wherever it was put."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.types import Attempt, AttemptEnd, Outcome
from pipeline.ledger.database import Database
from pipeline.ledger.schema import WeightRow
from stages.contract.clock import utc_now


class WeightRegister:
    """Table `weights` of a journal."""

    def __init__(self, database: Database, root: Path) -> None:
        """Of that database; relative paths start at `root`."""
        self._database = database
        self._root = root

    def record(self, path: str, sha256: str, note: str = "", attempt: Attempt | None = None) -> None:
        """A weight that an attempt wrote and nobody judged yet, or a base weight, which no attempt made.

        Without effect if the path is known with that hash.
        """
        if self._database.all("SELECT 1 FROM weights WHERE path = ? AND sha256 = ?", path, sha256):
            return
        with self._database.change():
            self._put(path, sha256, note, attempt)

    def will_move(self, source: str, target: str, reason: str) -> None:
        """A known weight is about to be renamed: both places are known, wherever a crash leaves it."""
        with self._database.change():
            row = self._database.one("SELECT * FROM weights WHERE path = ?", source)
            self._database.run("UPDATE weights SET moved_to = ? WHERE path = ?", target, source)
            columns = dict(row) | {"path": target, "note": reason or row["note"], "moved_to": ""}
            self._database.run("DELETE FROM weights WHERE path = ?", target)
            self._database.insert("weights", **columns)

    def all(self) -> list[WeightRow]:
        """Every place where a weight was ever put, oldest first."""
        return [
            WeightRow(**dict(row)) for row in self._database.all("SELECT * FROM weights ORDER BY utc, rowid")
        ]

    def put_judged(self, attempt: Attempt, end: AttemptEnd) -> None:
        """The weight of a judged attempt, within the transaction that closes the attempt."""
        if end.output_weight:
            self._put(end.output_weight, end.output_sha256, _note(end), attempt, end.outcome)

    def _put(self, path: str, sha256: str, note: str, attempt: Attempt | None, outcome: str = "") -> None:
        file = self._root / path
        # Paths are never used twice, but a user may have moved a file away and put another in its place.
        self._database.run("DELETE FROM weights WHERE path = ?", path)
        self._database.insert(
            "weights",
            path=path,
            sha256=sha256,
            bytes=file.stat().st_size if file.is_file() else 0,
            input_sha256=attempt.input_sha256 if attempt else "",
            content_key=attempt.content_key if attempt else "",
            attempt_id=attempt.id if attempt else "",
            outcome=outcome,
            note=note,
            utc=utc_now(),
        )


def _note(end: AttemptEnd) -> str:
    """Why a weight is not the one to use, in a line; empty if it is."""
    evidence = end.verdict.evidence if end.verdict else ()
    return end.error or ("" if end.outcome is Outcome.PASSED or not evidence else evidence[0])
