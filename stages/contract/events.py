"""What `stages` reports: JSON-lines events while it works, and one result at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from stages.contract.serial import to_jsonable


class Phase(StrEnum):
    """The phases of a stage, in the user's own words. Memory is reported at each of them."""

    START = "start"
    MODEL_LOADED = "model_loaded"
    BATCH_READY = "batch_ready"
    ZERO_GRAD_DONE = "zero_grad_done"
    BACKWARD_DONE = "backward_done"
    OPTIMIZER_STEP_DONE = "optimizer_step_done"
    EXPORTED = "exported"


class EventKind(StrEnum):
    """`PHASE` marks a phase, `STEP` carries a step's figures, `PROGRESS` counts work, `NOTE` says one line to
    the user.
    """

    PHASE = "phase"
    STEP = "step"
    PROGRESS = "progress"
    NOTE = "note"


class ExitCode(IntEnum):
    """Exit codes of every `stages` process, and of the guard around it."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    NON_FINITE = 3
    DISAGREE = 4
    """Two things that must agree do not: training against inference forward, or trainable against exported
    names.
    """
    OVER_LIMIT = 5
    """An allocation failed inside the process; the guard's own kill is `GUARD_KILLED`."""
    NO_SPACE = 6
    GUARD_KILLED = 124
    INTERRUPTED = 130


@dataclass(frozen=True)
class Event:
    """One line of the event stream."""

    time_utc: str
    """ISO 8601 with microseconds and `Z`."""
    kind: EventKind
    phase: str = ""
    """A `Phase`, for `PHASE`."""
    step: int = 0
    """Steps done so far, for `STEP`; items done, for `PROGRESS`."""
    total: int = 0
    values: dict[str, float] = field(default_factory=dict)
    """For `STEP`: loss, lr, grad_norm, update_ratio, tokens, step_seconds. For `PHASE`: device memory in MiB.
    """
    text: str = ""

    def line(self) -> str:
        """This event as one JSON line with its newline."""
        return json.dumps(to_jsonable(self), ensure_ascii=False, separators=(",", ":")) + "\n"


class Finish(StrEnum):
    """Why an answer ended."""

    END_OF_TURN = "end_of_turn"
    LENGTH = "length"
    NON_FINITE = "non_finite"
    INTERRUPTED = "interrupted"
    """By the user, in a chat."""


@dataclass(frozen=True)
class Answer:
    """One weight's answer to one probe: a line of the answers file."""

    file: str
    """Name of the probe file, without its folder."""
    line: int
    """1-based line of the probe in that file."""
    prompt: str
    text: str
    """Decoded answer without special tokens."""
    token_ids: list[int]
    """Generated ids without the end-of-turn token."""
    finish: Finish
    first_token_logit: float = 0.0
    """The largest logit at the first generated position; NaN is reported as finish `non_finite`."""


@dataclass(frozen=True)
class StageResult:
    """How a `stages` process ended."""

    exit_code: int
    error: str = ""
    """Empty when it went well; else what went wrong and what to do."""
    output: str = ""
    """Path of the weight or answers written."""
    sha256: str = ""
    output_bytes: int = 0
    steps: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    """Last loss, mean update ratio, seconds by phase, tokens, trainable_params, total_elems, peak memory …"""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
