"""The row files: training rows `prompt<TAB>target`, and probes with what a good answer must show.

A probe file is a TSV with this header, in this order:

    kind  group  split  prompt  expect  forbid

- `kind`: identity, contrast, ability or health.
- `group`: what is averaged together: the name of a skill, `ufo`, `whoami` …
- `split`: `train` for phrasings that are in training files, `heldout` for those that never are.
- `expect`: alternatives separated by ` || `; each is parts joined by ` && `, all of which the answer must
  contain. A part that begins with `=` must equal the whole answer. Text is compared after NFKC and case
  folding, without white space; `=` parts also without closing punctuation.
- `forbid`: parts, separated by ` || `, that the answer must not contain.

A probe needs `expect` or `forbid`; without either it could not fail.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

ROW_HEADERS = {
    ("prompt", "target"),
    ("prompt", "answer"),
    ("prompt", "response"),
    ("question", "answer"),
    ("input", "output"),
}
PROBE_HEADER = ("kind", "group", "split", "prompt", "expect", "forbid")
_CLOSING = "。.!！?？~～ "


class RowFileError(ValueError):
    """A row file that cannot be used. `problems` lists every bad line as `file:line: what: remedy`."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True)
class Row:
    """One training row."""

    prompt: str
    target: str
    line: int
    """1-based line in its file."""


class ProbeKind(StrEnum):
    """What a probe is about."""

    IDENTITY = "identity"
    CONTRAST = "contrast"
    ABILITY = "ability"
    HEALTH = "health"


@dataclass(frozen=True)
class Expectation:
    """What an answer must and must not show, as the columns `expect` and `forbid` say it."""

    alternatives: tuple[tuple[str, ...], ...]
    forbidden: tuple[str, ...]

    def met_by(self, answer: str) -> bool:
        """Whether all parts of one alternative are there (if any is asked for), and nothing forbidden is."""
        return not self.leaks(answer) and (
            not self.alternatives or any(_all_met(a, answer) for a in self.alternatives)
        )

    def leaks(self, answer: str) -> list[str]:
        """The forbidden parts that the answer contains."""
        folded = normalize(answer)
        return [part for part in self.forbidden if normalize(part) in folded]


@dataclass(frozen=True)
class Probe:
    """One prompt with its expectation."""

    kind: ProbeKind
    group: str
    split: str
    prompt: str
    expectation: Expectation
    file: str
    line: int


def normalize(text: str) -> str:
    """NFKC, case folded, without white space: character width and spacing must not decide a verdict."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _all_met(parts: tuple[str, ...], answer: str) -> bool:
    folded = normalize(answer)
    closed = folded.rstrip(_CLOSING)
    return all(
        closed == normalize(part[1:]).rstrip(_CLOSING) if part.startswith("=") else normalize(part) in folded
        for part in parts
    )


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        problem = f"{path}: no such file: name an existing TSV; nothing is put in its place"
        raise RowFileError(path, [problem]) from None
    except OSError as error:
        raise RowFileError(path, [f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{path}:{line}: not UTF-8 at byte {error.start}: save the file as UTF-8"
        raise RowFileError(path, [problem]) from None
    return [line.removesuffix("\r") for line in text.split("\n")]


def read_rows(path: Path) -> list[Row]:
    """Reads a training TSV. Empty lines are skipped; a header row is recognized and not returned.

    Raises:
        RowFileError: naming every line without exactly one tab or with an empty side, or if there are no
            rows.
    """
    rows: list[Row] = []
    problems: list[str] = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != 2:
            what = "no tab" if len(cells) == 1 else f"{len(cells) - 1} tabs"
            problems.append(f"{path}:{number}: {what} in {line[:60]!r}: write prompt<TAB>target")
        elif not rows and not problems and tuple(cell.casefold() for cell in cells) in ROW_HEADERS:
            continue
        elif not all(cells):
            side = "prompt" if not cells[0] else "target"
            problems.append(f"{path}:{number}: empty {side} in {line[:60]!r}: fill it in or delete the line")
        else:
            rows.append(Row(cells[0], cells[1], number))
    if not rows and not problems:
        problems.append(f"{path}: no rows: write at least one prompt<TAB>target")
    if problems:
        raise RowFileError(path, problems)
    return rows


def read_probes(path: Path) -> list[Probe]:
    """Reads a probe TSV. Empty lines are skipped.

    Raises:
        RowFileError: naming every line of a wrong shape, with an unknown kind or split, or without an
            expectation; or if there are no probes.
    """
    probes: list[Probe] = []
    problems: list[str] = []
    lines = _lines(path)
    header = tuple(cell.strip() for cell in lines[0].split("\t"))
    if header != PROBE_HEADER:
        tabs = "<TAB>".join(PROBE_HEADER)
        raise RowFileError(path, [f"{path}:1: header is {lines[0][:80]!r}: a probe file begins with {tabs}"])
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split("\t")]
        found = _probe_line_problems(cells, line)
        problems += [f"{path}:{number}: {problem}" for problem in found]
        if not found:
            kind, group, split, prompt, expect, forbid = cells
            alternatives = tuple(tuple(_parts(a, "&&")) for a in expect.split("||") if a.strip())
            forbidden = tuple(part for part in _parts(forbid, "||") if part)
            expectation = Expectation(alternatives, forbidden)
            probes.append(Probe(ProbeKind(kind), group, split, prompt, expectation, path.name, number))
    if not probes and not problems:
        problems.append(f"{path}: no probes below the header")
    if problems:
        raise RowFileError(path, problems)
    return probes


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator)]


def _probe_line_problems(cells: list[str], line: str) -> list[str]:
    if len(cells) != len(PROBE_HEADER):
        return [f"{len(cells)} cells, not {len(PROBE_HEADER)}, in {line[:60]!r}"]
    kind, _, split, prompt, expect, forbid = cells
    problems = []
    if kind not in {k.value for k in ProbeKind}:
        problems.append(f"kind {kind!r} is none of {', '.join(ProbeKind)}")
    if split not in ("train", "heldout"):
        problems.append(f"split {split!r} is neither 'train' nor 'heldout'")
    if not prompt:
        problems.append("empty prompt")
    if not expect and not forbid:
        problems.append("neither expect nor forbid: a probe without an expectation cannot fail")
    return problems
