"""Shows a verdict in the terminal: figures with their limits, then the probes, failing ones first."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.core.types import Check, Outcome, ProbeRow, Verdict

PLAIN_WIDTH = 120
"""Columns of the plain text: a pipe or a log file has no width of its own."""

_OUTCOMES = {
    Outcome.PASSED: ("通過", "bold green"),
    Outcome.UNDERFIT: ("還沒學到", "bold yellow"),
    Outcome.COLLAPSED: ("崩潰", "bold red"),
    Outcome.OVER_LIMIT: ("超過限制", "bold red"),
    Outcome.BROKEN: ("損壞", "bold red"),
    Outcome.MEASURED: ("只量測", "bold green"),
}
_UFO = "ufo"
_SECTIONS = {
    "identity": "身份 identity",
    "contrast": "對照 contrast",
    "ability": "能力 ability",
    _UFO: "UFO",
    "health": "健康 health",
}


def render(verdict: Verdict, *, limit: int) -> Group:
    """The verdict as rich renderables.

    Args:
        verdict: the judgement of a weight.
        limit: most probes of each section; a line says how many are left out. 0 shows all.

    Returns:
        The outcome, the evidence, the summary table, and a section for each of identity, contrast, ability,
        UFO and health that has probes. Answers are not read as markup, and control characters are visible.
    """
    name, style = _OUTCOMES[verdict.outcome]
    parts: list[RenderableType] = [Text(f"判定 verdict: {verdict.outcome.value} {name}", style)]
    parts += [Text(f"  - {_clean(line)}") for line in verdict.evidence]
    if verdict.checks or verdict.figures:
        parts += [Text(), _summary(verdict)]
    for key, title in _SECTIONS.items():
        if rows := [row for row in verdict.rows if _section(row) == key]:
            parts += [Text(), *_probes(title, rows, limit)]
    return Group(*parts)


def to_text(verdict: Verdict, *, limit: int, width: int = PLAIN_WIDTH) -> str:
    """The same as plain text without colour, `width` columns wide."""
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(
        render(verdict, limit=limit)
    )
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def write(verdict: Verdict, stream: TextIO, *, limit: int) -> None:
    """Writes the verdict to a stream: in its width and in colour if it is a terminal, else as `to_text`."""
    if stream.isatty():
        Console(file=stream).print(render(verdict, limit=limit))
    else:
        stream.write(to_text(verdict, limit=limit))


def _summary(verdict: Verdict) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("指標 figure")
    table.add_column("值 value", justify="right")
    table.add_column("門檻 limit", justify="right")
    table.add_column("ok")
    table.add_column("否則 else")
    checks: dict[str, list[Check]] = {}
    for check in verdict.checks:
        checks.setdefault(check.figure, []).append(check)
    for figure, value in verdict.figures.items():
        for check in checks.get(figure, []):
            bound = f"{'≥' if check.at_least else '≤'} {check.limit:.3f}"
            table.add_row(Text(_clean(figure)), f"{value:.3f}", bound, _mark(check.ok), check.outcome.value)
        if figure not in checks:
            table.add_row(Text(_clean(figure)), f"{value:.3f}", "", "", "")
    return table


def _section(row: ProbeRow) -> str:
    return _UFO if row.kind == "ability" and row.group.casefold() == _UFO else row.kind


def _probes(title: str, rows: Sequence[ProbeRow], limit: int) -> list[RenderableType]:
    good = sum(row.ok for row in rows)
    with_base = any(row.base_ok is not None for row in rows)
    head = f"{title}: {good}/{len(rows)}"
    if with_base:
        head += f" (base {sum(row.base_ok is True for row in rows)}/{len(rows)})"
    # Failing probes first, and of those first what the base weight answered well.
    ordered = sorted(rows, key=lambda row: (row.ok, not row.base_ok))
    shown = ordered[:limit] if limit > 0 else ordered
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("ok")
    table.add_column("組 group", overflow="fold")
    table.add_column("題目 prompt", overflow="fold", ratio=2)
    table.add_column("回答 answer", overflow="fold", ratio=3)
    if with_base:
        table.add_column("base")
        table.add_column("原本 base answer", overflow="fold", ratio=3)
    table.add_column("狀況 flags", overflow="fold")
    for row in shown:
        cells = [
            _mark(row.ok),
            Text(_clean(f"{row.group} {row.split}")),
            Text(_clean(row.prompt)),
            Text(_clean(row.answer)),
        ]
        if with_base:
            cells += [_mark(bool(row.base_ok)), Text(_clean(row.base_answer))]
        table.add_row(*cells, Text(" ".join(row.flags)))
    parts: list[RenderableType] = [Text(head, "bold"), table]
    if left_out := ordered[len(shown) :]:
        failing = sum(not row.ok for row in left_out)
        chinese = f"另有 {len(left_out)} 題,其中 {failing} 題不合格"
        parts.append(Text(f"… {chinese} / {len(left_out)} more, {failing} of them failing"))
    return parts


def _mark(ok: bool) -> Text:
    return Text("✓", "green") if ok else Text("✗", "red")


def _clean(text: str) -> str:
    """One line with visible control and format characters: an answer must not control the terminal."""
    line = " ".join(text.split())
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in line)
