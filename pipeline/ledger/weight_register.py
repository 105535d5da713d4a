"""The part of the journal that knows files: every weight with its lineage, wherever it was put."""

from __future__ import annotations

from pathlib import Path

from pipeline.core.types import Attempt, AttemptEnd, Outcome
from pipeline.ledger.database import Database
from pipeline.ledger.schema import WeightRow
from stages.contract.clock import utc_now


class WeightRegister:
    """Table `weights` of a journal."""

    def __init__(self, database: Database, root: Path) -> None:
        """Of that database; relative paths are meant from `root`."""
        self._database = database
        self._root = root

    def record(self, path: str, sha256: str, note: str = "", attempt: Attempt | None = None) -> None:
        """A weight as its attempt wrote it, before the verdict; or one that no attempt made: a base weight.

        Without effect if that path is known with that hash.
        """
        if self._database.all("SELECT 1 FROM weights WHERE path = ? AND sha256 = ?", path, sha256):
            return
        made = {}
        if attempt:
            made = {
                "input_sha256": attempt.input_sha256,
                "content_key": attempt.content_key,
                "attempt_id": attempt.id,
            }
        with self._database.change():
            self._put(path=path, sha256=sha256, note=note, **made)

    def will_move(self, source: str, target: str, reason: str) -> None:
        """Before a known weight is renamed. Wherever a crash leaves it, both places are known."""
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

    def put_judged(self, attempt: Attempt, identity: str, end: AttemptEnd) -> None:
        """Where the weight of a judged attempt lies, within the transaction that closes the attempt."""
        if end.output_weight:
            self._put(
                path=end.output_weight,
                sha256=end.output_sha256,
                input_sha256=attempt.input_sha256,
                content_key=attempt.content_key,
                attempt_id=identity,
                outcome=end.outcome,
                note=_note(end),
            )

    def _put(self, path: str, sha256: str, note: str = "", **columns: str) -> None:
        file = self._root / path
        size = file.stat().st_size if file.is_file() else 0
        # Paths are never given out twice, but a user may have moved a file away and put another in its place.
        self._database.run("DELETE FROM weights WHERE path = ?", path)
        filled = {"input_sha256": "", "content_key": "", "attempt_id": "", "outcome": ""} | columns
        self._database.insert(
            "weights", path=path, sha256=sha256, bytes=size, note=note, utc=utc_now(), **filled
        )


def _note(end: AttemptEnd) -> str:
    """Why a weight is not the one to use, in a line; empty if it is."""
    evidence = end.verdict.evidence if end.verdict else ()
    return end.error or ("" if end.outcome is Outcome.PASSED or not evidence else evidence[0])
