"""The data types of the control plane: outcome, verdict, weight, attempt, run. They have no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

MODEL_FILES = ("config.json", "tokenizer.json")
"""The files in a model's folder beside its weight."""


class Outcome(StrEnum):
    """The result of an attempt, from the judge or from the guard."""

    PASSED = "passed"
    UNDERFIT = "underfit"
    """The new behaviour, or the old ability, is not there in full; nothing is destroyed."""
    COLLAPSED = "collapsed"
    """The model is destroyed: repetition, one answer to everything, no end of turn, ability gone."""
    OVER_LIMIT = "over_limit"
    """Memory or time exceeded the guard's limit."""
    BROKEN = "broken"
    """No usable weight: bad input, non-finite loss, a crash, unreadable answers."""
    MEASURED = "measured"
    """No weight was wanted: `stop_after` ended the stage early."""


class StartFrom(StrEnum):
    """The weight that an attempt starts from."""

    BASE = "base"
    """The experiment's base weight."""
    INPUT = "input"
    """The input of the stage: the weight that passed the stage before it."""


@dataclass(frozen=True)
class ProbeRow:
    """One probe with both answers: a line of the probe table."""

    kind: str
    group: str
    split: str
    prompt: str
    answer: str
    ok: bool
    base_answer: str = ""
    base_ok: bool | None = None
    flags: tuple[str, ...] = ()
    """Findings of this answer: `repetition`, `no_end_of_turn`, `one_token`, `non_finite`, `leak` …"""


@dataclass(frozen=True)
class Check:
    """One figure compared with one limit."""

    figure: str
    value: float
    limit: float
    at_least: bool
    """True if the value must reach the limit, False if it must not exceed it."""
    outcome: Outcome
    """The verdict if the check fails."""
    ok: bool


@dataclass(frozen=True)
class Verdict:
    """The judgement of one weight, with its evidence."""

    outcome: Outcome
    figures: dict[str, float] = field(default_factory=dict)
    """identity_train, identity_heldout, leak, ability_ratio, repetition …: shares, or ratios to the base."""
    evidence: tuple[str, ...] = ()
    """A line for each failed figure: value, limit, and an example answer if any. Empty only if passed."""
    rows: tuple[ProbeRow, ...] = ()
    checks: tuple[Check, ...] = ()
    """Every limit that was applied, in the order of the summary table."""


@dataclass(frozen=True)
class Change:
    """One setting that the ladder changed for the next attempt."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class WeightRef:
    """A weight file with the folder of its model."""

    model_dir: str
    """Holds `MODEL_FILES`."""
    path: str
    """The `.dat` file; empty if there is none yet."""
    sha256: str


@dataclass(frozen=True)
class Attempt:
    """One run of a stage with concrete settings."""

    run_id: str
    """Of the whole run: `YYYYMMDD-HHMMSS-<experiment>-<4 hex>`."""
    experiment: str
    stage: str
    number: int
    """1-based within its stage."""
    content_key: str
    """SHA-256 over input weight, data, recipe and program: equal keys, equal results."""
    folder: str
    """Holds request.json, command.txt, events.jsonl, stdout/stderr logs, trace.csv, trace.json, trace.png,
    answers.jsonl …
    """
    command: str
    """One shell line that runs the same stage again by hand from the project root."""
    recipe: dict[str, Any]
    """The settings that were used, as plain values: records outlive the fields of a `Recipe`."""
    start_from: StartFrom
    input_weight: str
    input_sha256: str
    data: dict[str, str] = field(default_factory=dict)
    """Data file → SHA-256."""
    changes: tuple[Change, ...] = ()
    """From the attempt before it; empty for the first."""
    why: str = ""
    """The ladder's reason, in a sentence; empty for the first."""

    @property
    def id(self) -> str:
        """The ledger's name of the attempt: `<run id>/<stage>/<number>`."""
        return f"{self.run_id}/{self.stage}/{self.number}"


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended."""

    outcome: Outcome
    exit_code: int
    verdict: Verdict | None
    error: str = ""
    output_weight: str = ""
    """Where the weight is now: with the weights, or in `_trash` with its reason; empty if there is none."""
    output_sha256: str = ""
    peak_mib: float = 0.0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    """Of the stage: last loss, mean update ratio …"""


@dataclass(frozen=True)
class RunEnd:
    """How a run of an experiment ended."""

    outcome: Outcome
    final_weight: str = ""
    final_sha256: str = ""
    summary: tuple[str, ...] = ()
    """A line for each attempt: what was tried, and its result."""
    resume_command: str = ""
