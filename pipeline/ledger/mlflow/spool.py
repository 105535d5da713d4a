"""What is to be sent to MLflow, kept on disk first: JSON lines for each run, and how far they have been sent."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.files import replace_text

Record = dict[str, Any]
"""One thing to send; `pipeline.tracking` says which there are."""

_READ_BYTES = 1 << 22


class Spool:
    """Appends records of one run. Each call is one write, so a killed process leaves whole lines behind."""

    def __init__(self, folder: Path, run_id: str) -> None:
        """Opens the file after what it holds. Raises OSError if it cannot be written."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{run_id.replace('/', '_')}.jsonl"
        self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._handle).st_size
        if size and os.pread(self._handle, 1, size - 1) != b"\n":
            os.write(
                self._handle, b"\n"
            )  # a full disk cut the last line: it ends here, and the reader sets it aside

    def append(self, records: Sequence[Record]) -> None:
        """Writes records in order. Raises OSError if the disk does not take them all."""
        data = "".join(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records
        ).encode()
        if data and os.write(self._handle, data) < len(data):
            raise OSError(f"{self.path}: the disk is full: free some space")

    def close(self) -> None:
        """Syncs and closes the file."""
        os.fsync(self._handle)
        os.close(self._handle)


@dataclass
class Progress:
    """How much of a spool has been sent, and where to."""

    uri: str = ""
    offset: int = 0
    """Bytes of the spool that need not be sent again."""
    runs: dict[str, str] = field(default_factory=dict)
    """The ledger's name of a run → MLflow's."""
    rejected: int = 0
    """Records that MLflow refused for good; they lie in `<run>.rejected.jsonl`."""


def waiting(folder: Path) -> list[Path]:
    """The spools that hold something unsent, oldest run first."""
    paths = sorted(path for path in folder.glob("*.jsonl") if not path.name.endswith(".rejected.jsonl"))
    return [path for path in paths if path.stat().st_size > load_progress(path).offset]


def load_progress(spool: Path) -> Progress:
    """The progress of a spool; none yet if its file is missing or damaged, since sending again does no harm."""
    try:
        return Progress(**json.loads(_beside(spool, "sent.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return Progress()


def save_progress(spool: Path, progress: Progress) -> None:
    """Replaces the progress atomically. Raises OSError."""
    path = _beside(spool, "sent.json")
    replace_text(path, json.dumps(asdict(progress)))


def set_aside(spool: Path, record: Record | str, reason: str) -> None:
    """Keeps a record that cannot be sent, with the reason. Raises OSError."""
    with _beside(spool, "rejected.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"reason": reason, "record": record}, ensure_ascii=False) + "\n")


def read_from(spool: Path, offset: int) -> Iterator[tuple[Record | str, int]]:
    """Whole lines from `offset` on: the record, or the line itself if it is none, and the offset behind it."""
    with spool.open("rb") as stream:
        stream.seek(offset)
        while lines := stream.readlines(_READ_BYTES):
            for line in lines:
                if not line.endswith(b"\n"):
                    return  # still being written
                offset += len(line)
                yield _parse(line), offset


def _parse(line: bytes) -> Record | str:
    try:
        record = json.loads(line)
    except ValueError:
        return line.decode(errors="replace").rstrip("\n")
    return (
        record
        if isinstance(record, dict) and "op" in record and "run" in record
        else line.decode().rstrip("\n")
    )


def _beside(spool: Path, ending: str) -> Path:
    return spool.with_name(f"{spool.name.removesuffix('.jsonl')}.{ending}")
