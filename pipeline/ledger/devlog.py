"""DevLog.md: one entry for each attempt and run, appended once, in the user's language.

What people write there stays untouched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.core.types import Attempt, AttemptEnd, Change, Outcome, StartFrom, Verdict
from pipeline.guard.report import BLIND_FIGURE
from pipeline.ledger.schema import AttemptRow, RunRow

DEVLOG_NAME = "DevLog.md"
TITLE = "# DevLog\n\n每一次 run 與 attempt 的紀錄,由 pipeline 依序附加;手寫的內容不會被更動。\n"
OUTCOME_TEXTS = {
    Outcome.PASSED: "passed(通過)",
    Outcome.UNDERFIT: "underfit(學得不夠)",
    Outcome.COLLAPSED: "collapsed(崩壞)",
    Outcome.OVER_LIMIT: "over_limit(超過上限)",
    Outcome.BROKEN: "broken(沒有可用的權重)",
    Outcome.MEASURED: "measured(只量測,不產生權重)",
}
_NEXT = {
    Outcome.PASSED: "採用這個權重,進入下一個 stage(若還有)。",
    Outcome.UNDERFIT: "權重不採用;由 ladder 加強設定後再試。",
    Outcome.COLLAPSED: "權重不採用;由 ladder 調整設定後從 base 權重(或設定的起點)再試。",
    Outcome.OVER_LIMIT: "沒有可用的權重;由 ladder 降低記憶體或時間的需求後再試。",
    Outcome.BROKEN: "沒有可用的權重;原因如上,修正後重跑同一個指令。",
    Outcome.MEASURED: "依 stop_after 停在指定的階段;看 trace.json 的記憶體與秒數。",
}
_START = {StartFrom.BASE: "base 權重", StartFrom.INPUT: "前一個 stage 的權重"}


class DevLogError(RuntimeError):
    """The DevLog cannot be written; the message names the file and what to do."""


def append_once(path: Path, entry_id: str, text: str) -> bool:
    """Appends an entry unless the file holds it already, and syncs it to the disk.

    The entry ends with a comment that carries its id, so an entry that a crash cut short does not count as
    written. One write call in append mode: what others put into the file meanwhile is never overwritten.

    Args:
        path: of the log; made with a title if it is missing.
        entry_id: unique; without white space.
        text: Markdown, without the comment.

    Returns:
        Whether it was written now.

    Raises:
        DevLogError: if the file cannot be read or written. What was written of the entry is taken back.
    """
    mark = f"<!-- ledger:{entry_id} -->"
    try:
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DevLogError(
            f"{path}: {error.strerror}: make it a writable file, then start the same command again"
        ) from error
    try:
        size = os.fstat(handle).st_size
        held = path.read_bytes()
        if mark.encode() in held:
            return False
        lead = TITLE if not held.strip() else "" if held.endswith(b"\n") else "\n"
        data = f"{lead}\n{text.rstrip()}\n\n{mark}\n".encode()
        written = os.write(handle, data)
        if written < len(data):
            # Only our own fragment is cut off, and only if nobody wrote behind it.
            if os.fstat(handle).st_size == size + written:
                os.ftruncate(handle, size)
            raise DevLogError(f"{path}: the disk is full: free some space, then start the same command again")
        os.fsync(handle)
        return True
    except OSError as error:
        raise DevLogError(
            f"{path}: {error.strerror}: free space or check the disk, then start the same command again"
        ) from error
    finally:
        os.close(handle)


def run_opened(row: RunRow) -> str:
    """The entry of a run that begins."""
    title = f"## {local_time(row.opened_utc)} · 開始 experiment `{row.experiment}`"
    return f"{title}\n\n- run:`{row.run_id}`\n- 指令 command:\n\n{_code(row.command)}"


def run_ended(row: RunRow) -> str:
    """The entry of a run that came to its end, or was interrupted."""
    outcome = OUTCOME_TEXTS[row.end.outcome] if row.end else "interrupted(中斷)"
    lines = [
        f"## {local_time(row.closed_utc)} · 結束 experiment `{row.experiment}`:{outcome}",
        "",
        f"- run:`{row.run_id}`",
    ]
    if not row.end:
        lines += [
            f"- 原因:{_line(row.reason)}",
            "- 接續:重跑同一個指令,已完成的 attempt 不會重做。",
            "",
            _code(row.command),
        ]
        return "\n".join(lines)
    if row.end.final_weight:
        lines.append(f"- 最後的權重 weight:`{row.end.final_weight}`(SHA-256 `{row.end.final_sha256}`)")
    lines += [f"- {_line(text)}" for text in row.end.summary]
    if row.end.resume_command:
        lines += ["- 接續的指令:", "", _code(row.end.resume_command)]
    return "\n".join(lines)


def attempt_ended(row: AttemptRow) -> str:
    """The entry of an attempt: why, start, changes, data, recipe, command, outcome, what comes next."""
    attempt, end = row.attempt, row.end
    outcome = OUTCOME_TEXTS[end.outcome] if end else "interrupted(中斷)"
    recipe = ",".join(f"`{key}={_value(value)}`" for key, value in attempt.recipe.items())
    lines = [
        f"### {local_time(row.closed_utc)} · `{attempt.stage}` attempt {attempt.number}:{outcome}",
        "",
        f"- experiment:`{attempt.experiment}`,run:`{attempt.run_id}`,開始 {local_time(row.opened_utc)}",
        f"- 動機 why:{_line(attempt.why) or f'stage `{attempt.stage}` 的第一次嘗試'}",
        f"- 起點:{_START[attempt.start_from]} `{attempt.input_weight}`(SHA-256 `{attempt.input_sha256}`)",
        f"- 改變 changes:{changes_text(attempt.changes) or '無(第一次)'}",
        "- 資料 data:" + ("" if attempt.data else "無"),
        *(f"  - `{path}`(SHA-256 `{sha}`)" for path, sha in attempt.data.items()),
        f"- 設定 recipe:{recipe}",
        *("- 指令 command:", "", _code(attempt.command), ""),
    ]
    lines += (
        _outcome_lines(attempt, end)
        if end
        else [f"- 結果:中斷;{_line(row.reason)}", "- 接著 next:重跑同一個指令時會重做。"]
    )
    lines += [f"- 資料夾:`{attempt.folder}`"]
    return "\n".join(lines)


def attempt_reused(row: AttemptRow, run_id: str) -> str:
    """The entry of a finished attempt that a later run reuses."""
    outcome = OUTCOME_TEXTS[row.end.outcome] if row.end else row.state
    weight = f",權重 `{row.end.output_weight}`" if row.end and row.end.output_weight else ""
    key = row.attempt.content_key[:16]
    return (
        f"- run `{run_id}` 沿用已完成的 attempt `{row.id}`:{outcome}{weight}(content key `{key}` 相同,不重做)"
    )


def changes_text(changes: tuple[Change, ...]) -> str:
    """What the ladder changed, on one line."""
    return ";".join(f"`{change.key}`:{_value(change.old)} → {_value(change.new)}" for change in changes)


def local_time(utc: str) -> str:
    """An ISO 8601 time of the journal as the reader's own, with its offset."""
    return datetime.fromisoformat(utc).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _outcome_lines(attempt: Attempt, end: AttemptEnd) -> list[str]:
    outcome = OUTCOME_TEXTS[end.outcome]
    lines = [f"- 結果 outcome:**{outcome}**,exit code {end.exit_code},{end.seconds:.1f} 秒"]
    if end.verdict:
        lines += _verdict_lines(end.verdict)
    if end.error:
        lines += [f"- 錯誤 error:{_line(end.error)}"]
    if end.figures:
        lines += [f"- 訓練數字:{figures_text(end.figures)}"]
    peak = f"{end.peak_mib:,.0f} MiB" if end.peak_mib else "沒有樣本"
    if end.figures.get(BLIND_FIGURE):
        peak += ";BLIND:部分或全部時間沒有監看(`--allow-blind` 或讀不到)"
    lines += [f"- 記憶體峰值 peak:{peak}"]
    weight = f"`{end.output_weight}`(SHA-256 `{end.output_sha256}`)" if end.output_weight else "沒有寫出"
    return [*lines, f"- 權重 weight:{weight}", f"- 結論與接著 next:{_NEXT[end.outcome]}"]


def _verdict_lines(verdict: Verdict) -> list[str]:
    lines = [f"- 判定數字 figures:{figures_text(verdict.figures)}"] if verdict.figures else []
    if verdict.evidence:
        lines += ["- 證據 evidence:", *(f"  - {_line(text)}" for text in verdict.evidence)]
    return lines


def figures_text(figures: Mapping[str, float]) -> str:
    """Figures on one line, with four significant digits."""
    return ",".join(f"{key} {value:.4g}" for key, value in figures.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return ",".join(f"{key}:{item}" for key, item in value.items()) or "{}"
    return str(value)


def _line(text: str) -> str:
    """Text from outside on one line, which cannot open a comment and so look like the end of an entry."""
    return " ".join(text.split()).replace("<!--", "&lt;!--")


def _code(command: str) -> str:
    fence = "```" if "```" not in command else "`````"
    return f"{fence}bash\n{command}\n{fence}"
