"""A parity report as text for the terminal and as JSON for the record."""

from __future__ import annotations

import json
import math
import unicodedata
from itertools import zip_longest
from pathlib import Path
from typing import Any

from stages.contract.serial import to_jsonable
from stages.parity.check import ActivationStats, Parity, Token
from stages.process.files import write_new_text
from stages.qwen3.template import ChatTokenizer

_CELL = 30


def text(parity: Parity, prompt: str, tokenizer: ChatTokenizer) -> str:
    """The whole report: candidates side by side, every point's statistics and difference, the summary."""
    lines = [
        f"first token after {prompt!r}",
        f"{'':3} {'bridge: id, logit, text':{_CELL}} fp2: id, logit, text",
    ]
    for rank, (bridge, fp2) in enumerate(zip_longest(parity.bridge_top, parity.fp2_top), start=1):
        lines.append(f"{rank:>3} {_padded(_candidate(bridge, tokenizer))} {_candidate(fp2, tokenizer)}")
    counts = f"{'nan':>7} {'inf':>7}"
    lines += ["", f"{'place':22} {'bridge rms':>11} {counts} {'fp2 rms':>11} {counts} {'difference':>11}"]
    for point in parity.comparisons:
        mark = "  ← they part here" if point is parity.first_mismatch else ""
        lines.append(
            f"{point.name:22} {_stats(point.bridge)} {_stats(point.fp2)} {point.difference:11.2e}{mark}"
        )
    return "\n".join([*lines, "", summary(parity), ""])


def summary(parity: Parity) -> str:
    """One line: the difference, the tolerance, agree or disagree, and the first mismatch."""
    line = f"logits differ by {parity.difference:.2e} of the largest (tolerance {parity.tolerance:.0e}): "
    line += "agree 一致" if parity.agrees else "DISAGREE 不一致"
    return f"{line}; {parity.reason}" if parity.first_mismatch else line


def as_json(parity: Parity, prompt: str, tokenizer: ChatTokenizer) -> str:
    """The report as strict JSON; numbers that are not finite become null."""
    tops = {"bridge": parity.bridge_top, "fp2": parity.fp2_top}
    report: dict[str, Any] = {
        "agrees": parity.agrees,
        "difference": parity.difference,
        "tolerance": parity.tolerance,
        "parted": parity.first_mismatch.name if parity.first_mismatch else "",
        "reason": parity.reason,
        "prompt": prompt,
        "prompt_ids": tokenizer.prompt_ids(prompt),
        "top": {
            path: [{"id": t.id, "text": _token_text(t, tokenizer), "logit": t.logit} for t in top]
            for path, top in tops.items()
        },
        "places": to_jsonable(parity.comparisons),
    }
    return json.dumps(_finite(report), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def write_beside(result: Path, parity: Parity, prompt: str, tokenizer: ChatTokenizer) -> None:
    """Writes the report beside the result of a process: `…parity.json` next to `…result.json`.

    An existing report is from an earlier start of the same request, and stays.
    """
    path = result.with_name(result.name.removesuffix("result.json") + "parity.json")
    if not path.exists():
        write_new_text(path, as_json(parity, prompt, tokenizer))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stats(stats: ActivationStats) -> str:
    return f"{stats.rms:11.4g} {stats.nan:7} {stats.inf:7}"


def _token_text(token: Token, tokenizer: ChatTokenizer) -> str:
    return tokenizer.tokenizer.decode([token.id], skip_special_tokens=False)


def _candidate(token: Token | None, tokenizer: ChatTokenizer) -> str:
    return "" if token is None else f"{token.id:>6} {token.logit:10.4f} {_token_text(token, tokenizer)!r}"


def _padded(cell: str) -> str:
    """The cell, padded to the column's width; a full-width character is two columns wide."""
    width = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell)
    return cell + " " * max(0, _CELL - width)
