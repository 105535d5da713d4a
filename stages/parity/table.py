"""A parity report as text for the terminal and as JSON for the record."""

from __future__ import annotations

import json
import math
import unicodedata
from itertools import zip_longest
from pathlib import Path
from typing import Any

from stages.contract.serial import to_jsonable
from stages.parity.check import LogitHealth, Parity, Token
from stages.process.files import write_new_text
from stages.qwen3.template import ChatTokenizer

_CELL = 30


def text(parity: Parity, prompt: str, tokenizer: ChatTokenizer) -> str:
    """The whole report: candidates side by side, health and difference of every place, and the word on it."""
    lines = [
        f"first token after {prompt!r}",
        f"{'':3} {'bridge: id, logit, text':{_CELL}} fp2: id, logit, text",
    ]
    for rank, (bridge, fp2) in enumerate(zip_longest(parity.bridge_top, parity.fp2_top), start=1):
        lines.append(f"{rank:>3} {_padded(_candidate(bridge, tokenizer))} {_candidate(fp2, tokenizer)}")
    lines += [
        "",
        f"{'place':22} {'bridge rms':>11} {'nan':>7} {'inf':>7} {'fp2 rms':>11} {'nan':>7} {'inf':>7} {'difference':>11}",
    ]
    for place in parity.places:
        mark = "  ← they part here" if place is parity.parted else ""
        lines.append(
            f"{place.name:22} {_health(place.bridge)} {_health(place.fp2)} {place.difference:11.2e}{mark}"
        )
    return "\n".join([*lines, "", word(parity), ""])


def word(parity: Parity) -> str:
    """One line: how far apart, what is tolerated, agree or disagree and from where."""
    told = f"logits differ by {parity.difference:.2e} of the largest (tolerance {parity.tolerance:.0e}): "
    told += "agree 一致" if parity.agrees else "DISAGREE 不一致"
    return f"{told}; {parity.reason}" if parity.parted else told


def as_json(parity: Parity, prompt: str, tokenizer: ChatTokenizer) -> str:
    """The report as strict JSON: what is not finite stands as null."""
    tops = {"bridge": parity.bridge_top, "fp2": parity.fp2_top}
    told: dict[str, Any] = {
        "agrees": parity.agrees,
        "difference": parity.difference,
        "tolerance": parity.tolerance,
        "parted": parity.parted.name if parity.parted else "",
        "reason": parity.reason,
        "prompt": prompt,
        "prompt_ids": tokenizer.prompt_ids(prompt),
        "top": {
            path: [{"id": t.id, "text": _piece(t, tokenizer), "logit": t.logit} for t in top]
            for path, top in tops.items()
        },
        "places": to_jsonable(parity.places),
    }
    return json.dumps(_finite(told), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def keep(parity: Parity, prompt: str, tokenizer: ChatTokenizer, result: Path) -> None:
    """Leaves the report beside the result of a process: `…parity.json` next to `…result.json`.

    One that is there is of an earlier start of the same request, and stays.
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


def _health(health: LogitHealth) -> str:
    return f"{health.rms:11.4g} {health.nan:7} {health.inf:7}"


def _piece(token: Token, tokenizer: ChatTokenizer) -> str:
    return tokenizer.tokenizer.decode([token.id], skip_special_tokens=False)


def _candidate(token: Token | None, tokenizer: ChatTokenizer) -> str:
    return "" if token is None else f"{token.id:>6} {token.logit:10.4f} {_piece(token, tokenizer)!r}"


def _padded(cell: str) -> str:
    """Filled up to the column's width; a full-width character takes two places."""
    width = sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in cell)
    return cell + " " * max(0, _CELL - width)
