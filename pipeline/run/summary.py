"""The end of a run in the user's eyes: a line for each attempt, where the weight lies, and the command that
goes on.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TextIO

from pipeline.core.types import Outcome, RunEnd
from pipeline.run.attempt import AttemptResult
from pipeline.run.attempt_files import REPORT_NAME

KEY_FIGURES = ("identity_train", "identity_heldout", "leak", "ability_ratio", "ability", "repetition")
_CARRIED = re.compile(r"(model\.|guard[.=]|probes[.=]|artifacts=|train\.(device|compute_dtype|threads)=)")
HEAD = ("stage", "attempt", "changed 改變", "outcome 判定", "figures 指標", "s", "weight 權重")


def rows(done: Sequence[AttemptResult]) -> list[tuple[str, ...]]:
    """A row of `HEAD` for each attempt, in order."""
    return [
        (
            each.attempt.stage,
            str(each.attempt.number),
            _changed(each),
            each.end.outcome.value + (" (found in the ledger 沿用)" if each.reused else ""),
            _figures(each),
            f"{each.end.seconds:.0f}",
            each.end.output_weight or "none",
        )
        for each in done
    ]


def lines(done: Sequence[AttemptResult]) -> tuple[str, ...]:
    """The same as plain text, a line for each attempt, for the ledger and for pipes."""
    text = []
    for stage, number, changed, outcome, figures, seconds, weight in rows(done):
        parts = [f"{stage} attempt {number}: {outcome}", changed, figures, f"{seconds} s", f"weight {weight}"]
        text.append(" · ".join(part for part in parts if part))
    return tuple(text)


def validate_command(weight: str, arguments: Sequence[str]) -> str:
    """The command that judges the weight again, with what the run's own arguments say about model, guard and
    probes.
    """
    words = [f"make validate WEIGHT={shlex.quote(weight)}"]
    words += [f"MODEL={each.removeprefix('model=')}" for each in arguments if each.startswith("model=")]
    if more := [each for each in arguments if _CARRIED.match(each)]:
        words.append(f"ARGS={shlex.quote(' '.join(more))}")
    return " ".join(words)


def write(end: RunEnd, done: Sequence[AttemptResult], stream: TextIO, arguments: Sequence[str] = ()) -> None:
    """Writes the summary: a table on a terminal, lines elsewhere; then what to do next.

    Args:
        end: of the run.
        done: its attempts.
        stream: the terminal, a pipe, a file.
        arguments: of the command line that started the run.
    """
    if stream.isatty():
        _write_table(done, stream)
    else:
        stream.write("".join(f"{line}\n" for line in end.summary))
    for each in done[-1:]:
        if end.outcome is not Outcome.PASSED and each.end.verdict:
            stream.write("".join(f"  - {line}\n" for line in each.end.verdict.evidence))
        elif end.outcome is not Outcome.PASSED:
            stream.write(f"  - {each.end.error.strip()}\n")
    stream.write(f"result 結果: {end.outcome.value}\n")
    if end.final_weight:
        stream.write(f"weight 權重: {end.final_weight}\n  SHA-256 {end.final_sha256}\n")
        stream.write(f"check it 驗證: {validate_command(end.final_weight, arguments)}\n")
    for each in done[-1:]:
        stream.write(f"phases, memory, figures 各階段記憶體與數字: {each.attempt.folder}/{REPORT_NAME}\n")
    if end.resume_command:
        stream.write(f"go on 接續: {end.resume_command}\n")


def _write_table(done: Sequence[AttemptResult], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*HEAD, box=None, pad_edge=False)
    for row in rows(done):
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    Console(file=stream).print(table)


def _changed(each: AttemptResult) -> str:
    changed = [f"{c.key} {_short(c.old)} → {_short(c.new)}" for c in each.attempt.changes]
    return ", ".join([*changed, f"from {each.attempt.start_from.value}"] if changed else [])


def _short(value: object) -> str:
    if isinstance(value, list):
        return " + ".join(
            str(v["path"]).rpartition("/")[2] if isinstance(v, dict) and "path" in v else str(v)
            for v in value
        )
    return str(value)


def _figures(each: AttemptResult) -> str:
    if each.end.verdict is None:
        return each.end.error.strip().splitlines()[-1] if each.end.error.strip() else ""
    found = each.end.verdict.figures
    return ", ".join(f"{key} {found[key]:.3g}" for key in KEY_FIGURES if key in found)
