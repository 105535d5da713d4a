"""Where a weight goes once it is judged: kept under its stage and hash, or into the trash with its reason.
Nothing is overwritten.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.types import Attempt, AttemptEnd

REASON_NAME = "REASON.md"
_HASH_CHARS = (8, 16, 64)


def kept_place(made: Path, folder: Path, stage: str, sha256: str) -> Path:
    """The place of a passed weight: `<stage>-<8 digits of its hash>`, with more digits if that name is
    another weight's.

    Args:
        made: the `.dat` file, or the folder that holds a new model with its weight.
        folder: of the experiment's weights.
        stage: names it.
        sha256: of the weight.

    Raises:
        FileExistsError: if every name is taken by something else.
    """
    for chars in _HASH_CHARS:
        place = folder / f"{stage}-{sha256[:chars]}{made.suffix}"
        if not place.exists() or _same(made, place, sha256):
            return place
    raise FileExistsError(f"{folder}: {stage}-{sha256}: taken by something else: move that away")


def _same(made: Path, place: Path, sha256: str) -> bool:
    return made.is_file() and place.is_file() and sha256_file(place) == sha256


def move(made: Path, place: Path, sha256: str) -> None:
    """Moves a weight by rename. If the same bytes lie there already, they stay and the new copy goes.

    Raises:
        FileExistsError: if something else lies there.
        OSError: if it cannot be moved.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        made.rename(place)
    elif _same(made, place, sha256):
        made.unlink()
    else:
        raise FileExistsError(f"{place}: exists: nothing is overwritten; move it away")


def write_reason(folder: Path, attempt: Attempt, end: AttemptEnd) -> None:
    """Says beside a discarded weight why it lies there."""
    evidence = list(end.verdict.evidence) if end.verdict else [end.error]
    lines = [
        f"# {attempt.stage} attempt {attempt.number}: {end.outcome.value}",
        "",
        "這個權重沒有通過判定,所以移到這裡;沒有刪除任何東西。"
        "This weight did not pass, so it was moved here; nothing was deleted.",
        "",
        "## 原因 Evidence",
        *(f"- {line}" for line in evidence),
        "",
        "## 來歷 Origin",
        f"- run: `{attempt.run_id}`",
        f"- folder 資料夾: `{attempt.folder}`",
        f"- input 輸入: `{attempt.input_weight}` (SHA-256 `{attempt.input_sha256}`)",
        f"- SHA-256: `{end.output_sha256}`",
        "",
        "再跑一次 Run it again:",
        "",
        f"    {attempt.command}",
        "",
    ]
    with (folder / REASON_NAME).open("x", encoding="utf-8") as file:
        file.write("\n".join(lines))
