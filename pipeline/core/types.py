"""The words of the control plane as plain data: outcome, verdict, attempt, run. No behaviour, no
dependencies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What the judge or the guard says of an attempt."""

    PASSED = "passed"
    UNDERFIT = "underfit"
    """The new behaviour is not there yet, or the ability is not; nothing is destroyed."""
    COLLAPSED = "collapsed"
    """The model lost itself: repetition, one answer to everything, no end of turn, ability gone."""
    OVER_LIMIT = "over_limit"
    """Memory or time passed the guard's limit."""
    BROKEN = "broken"
    """No usable weight: bad input, non-finite loss, a crash, unreadable answers."""
    MEASURED = "measured"
    """No weight was wanted: `stop_after` ended the stage at the phase that it names."""


class StartFrom(StrEnum):
    """The weight an attempt starts from."""

    BASE = "base"
    """The experiment's base weight."""
    INPUT = "input"
    """The stage's own input: the weight that the stage before it passed with."""


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
    """Health findings of this answer: `repetition`, `no_end_of_turn`, `one_token`, `non_finite`, `leak` …"""


@dataclass(frozen=True)
class Check:
    """One figure held against one limit."""

    figure: str
    value: float
    limit: float
    at_least: bool
    """True if the value must reach the limit, False if it must not pass it."""
    outcome: Outcome
    """What the verdict becomes when the check fails."""
    ok: bool


@dataclass(frozen=True)
class Verdict:
    """The judge's word on one weight, with its evidence."""

    outcome: Outcome
    figures: dict[str, float] = field(default_factory=dict)
    """identity_train, identity_heldout, leak, ability_ratio, repetition …, each in [0, 1] unless its name
    says otherwise.
    """
    evidence: tuple[str, ...] = ()
    """One line each: the figure, its threshold, and an example answer where there is one. Never empty unless
    passed.
    """
    rows: tuple[ProbeRow, ...] = ()
    checks: tuple[Check, ...] = ()
    """Every limit that was applied, kept or not, in the order of the summary table."""


@dataclass(frozen=True)
class Change:
    """One setting that the ladder changed for the next attempt."""

    key: str
    old: Any
    new: Any


MODEL_FILES = ("config.json", "tokenizer.json")
"""What a model's folder holds beside its weight."""


@dataclass(frozen=True)
class WeightRef:
    """A weight with the folder that explains it."""

    model_dir: str
    """Holds `MODEL_FILES`."""
    path: str
    """The `.dat` file; empty where there is none yet."""
    sha256: str


@dataclass(frozen=True)
class Attempt:
    """One run of a stage with concrete settings."""

    run_id: str
    """Of the whole experiment run: `YYYYMMDD-HHMMSS-<experiment>-<4 hex>`."""
    experiment: str
    stage: str
    number: int
    """1-based within its stage."""
    content_key: str
    """SHA-256 over input weight, data, recipe, and code of `stages`: equal keys, equal results."""
    folder: str
    """Holds request.json, command.txt, events.jsonl, stdout/stderr logs, trace.csv, trace.json, trace.png,
    answers.jsonl …
    """
    command: str
    """One shell line that runs the same stage again by hand from the project root."""
    recipe: dict[str, Any]
    """The recipe's settings that counted, as plain values: a record that is read long after the fields of a
    `Recipe` have changed.
    """
    start_from: StartFrom
    input_weight: str
    input_sha256: str
    data: dict[str, str] = field(default_factory=dict)
    """Data file → SHA-256."""
    changes: tuple[Change, ...] = ()
    """Against the attempt before it; empty for the first."""
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
    """Where the weight lies now: kept, or in `_trash` with its reason; empty if none was written."""
    output_sha256: str = ""
    peak_mib: float = 0.0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    """The stage's own: last loss, mean update ratio …"""


@dataclass(frozen=True)
class RunEnd:
    """How a run of an experiment ended."""

    outcome: Outcome
    final_weight: str = ""
    final_sha256: str = ""
    summary: tuple[str, ...] = ()
    """A line for each attempt: what was tried, what came of it."""
    resume_command: str = ""
