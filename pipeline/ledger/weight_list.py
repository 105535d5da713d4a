"""檔案說明清單.md: the table of weight files between two markers. The rest of the file is the user's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.files import replace_bytes
from pipeline.core.types import Outcome
from pipeline.ledger.devlog import OUTCOME_TEXTS, local_time
from pipeline.ledger.schema import WeightRow

WEIGHT_LIST_NAME = "檔案說明清單.md"
BEGIN = "<!-- ledger:weights:begin 以下表格由 pipeline 維護,請勿手改 -->"
END = "<!-- ledger:weights:end -->"
_BEGIN_KEY = b"<!-- ledger:weights:begin"
_END_KEY = END.encode()
HEADER = "# 檔案說明清單\n\n權重檔(`.dat`)的來歷與判定。表格以外的文字可以自由編寫,不會被更動。\n\n"
_SKIPPED = {"mlflow", "__pycache__", "journal.db"}


class WeightListError(RuntimeError):
    """The list cannot be written; the message names the file and what to do."""


def update(artifacts: Path, root: Path, weights: Sequence[WeightRow]) -> bool:
    """Rewrites the table atomically; text outside the markers stays byte for byte.

    Args:
        artifacts: the folder that is searched for `.dat` files, and that holds the list.
        root: where the paths in the journal start.
        weights: what the journal knows.

    Returns:
        Whether the file changed.

    Raises:
        WeightListError: if one marker is alone, or the file cannot be written.
    """
    path = artifacts / WEIGHT_LIST_NAME
    try:
        held = path.read_bytes() if path.exists() else HEADER.encode()
        before, after = _around(path, held)
        whole = before + table(artifacts, root, weights).encode() + after
        if path.exists() and whole == held:
            return False
        replace_bytes(path, whole)
    except OSError as error:
        raise WeightListError(
            f"{path}: {error.strerror}: free space or check the disk, then start again"
        ) from error
    return True


def table(artifacts: Path, root: Path, weights: Sequence[WeightRow]) -> str:
    """The table with its markers: the weights that the journal knows, and files that only the disk knows."""
    head = "| 檔案 path | 大小 | SHA-256 | 來源 experiment/stage/attempt | 判定 verdict | 日期 | 備註 |"
    lines = [BEGIN, "", head, "|---|---:|---|---|---|---|---|"]
    places = {(root / row.path).resolve() for row in weights}
    lines += [_row(row, root) for row in sorted(_shown(weights, root), key=lambda row: (row.utc, row.path))]
    unknown = [file for file in _dat_files(artifacts) if file.resolve() not in places]
    for file in unknown:
        size = _size(file.stat().st_size)
        lines.append(f"| {_cell(_relative(file, root))} | {size} |  |  |  |  | **未登記** |")
    if not weights and not unknown:
        lines.append("| (尚無權重檔) |  |  |  |  |  |  |")
    return "\n".join([*lines, "", END])


def _shown(weights: Sequence[WeightRow], root: Path) -> list[WeightRow]:
    """Without places that a weight left or has not reached yet: a crash may have come between the two."""
    left = {row.path for row in weights if row.moved_to and not (root / row.path).is_file()}
    ahead = {row.moved_to for row in weights if row.moved_to and row.path not in left}
    rows = [row for row in weights if row.path not in left]
    return [row for row in rows if row.path not in ahead or (root / row.path).is_file()]


def _row(row: WeightRow, root: Path) -> str:
    file = root / row.path
    notes = [row.note] if row.note else []
    if not file.is_file():
        notes.insert(0, "**已不存在**")
    elif row.bytes and file.stat().st_size != row.bytes:
        notes.insert(0, f"**大小已變**(登記 {_size(row.bytes)})")
    outcome = OUTCOME_TEXTS[Outcome(row.outcome)] if row.outcome else "尚未判定" if row.attempt_id else "base"
    size = file.stat().st_size if file.is_file() else row.bytes
    cells = [row.path, _size(size), row.sha256[:12], row.attempt_id, outcome]
    cells += [local_time(row.utc)[:16], ";".join(notes)]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _dat_files(artifacts: Path) -> list[Path]:
    found = []
    for folder, folders, files in os.walk(artifacts):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        # Names that begin with a dot are files still being written.
        found += [Path(folder) / name for name in files if name.endswith(".dat") and not name.startswith(".")]
    return sorted(found)


def _relative(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)


def _around(path: Path, held: bytes) -> tuple[bytes, bytes]:
    """What is before and after the table; a file without markers gets the table at its end."""
    begin, end = held.find(_BEGIN_KEY), held.find(_END_KEY)
    if begin < 0 and end < 0:
        return held + (b"" if held.endswith(b"\n") or not held else b"\n\n"), b"\n"
    if begin < 0 or end < begin:
        remedy = "is missing: put it back, or delete the other too"
        raise WeightListError(f"{path}: one of the lines {BEGIN!r} and {END!r} {remedy}")
    return held[:begin], held[end + len(_END_KEY) :]


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<!--", "&lt;!--")
