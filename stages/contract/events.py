"""What `stages` reports: JSON-lines events while it works, and one result at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

from stages.contract.serial import dump_line


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
    """What an event reports."""

    PHASE = "phase"
    """The stage has reached a phase."""
    STEP = "step"
    """The figures of a training step."""
    PROGRESS = "progress"
    """How many items are done."""
    NOTE = "note"
    """One line of text for the user."""


class ExitCode(IntEnum):
    """Exit codes of every `stages` process, and of the guard around it."""

    OK = 0
    FAILED = 1
    BAD_INPUT = 2
    NON_FINITE = 3
    DISAGREE = 4
    """Two things that must agree do not: training and inference forward, or trainable and exported names."""
    OVER_LIMIT = 5
    """An allocation failed inside the process; `GUARD_KILLED` is the guard's own kill."""
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
    """For `PHASE`: a `Phase`."""
    step: int = 0
    """For `STEP`: steps done. For `PROGRESS`: items done."""
    total: int = 0
    """How many steps or items there are."""
    values: dict[str, float] = field(default_factory=dict)
    """For `STEP`: loss, lr, grad_norm, update_ratio, tokens, step_seconds. For `PHASE`: memory in MiB."""
    text: str = ""
    """For `NOTE`."""

    def line(self) -> str:
        """This event as one JSON line with its newline."""
        return dump_line(self) + "\n"


class Finish(StrEnum):
    """Why an answer ended."""

    END_OF_TURN = "end_of_turn"
    LENGTH = "length"
    NON_FINITE = "non_finite"
    INTERRUPTED = "interrupted"
    """By the user, in a chat."""


@dataclass(frozen=True)
class Answer:
    """The answer of one weight to one probe: a line of the answers file."""

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
    """What went wrong and what to do; empty if nothing did."""
    output: str = ""
    """Path of the weight or the answers."""
    sha256: str = ""
    output_bytes: int = 0
    steps: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    """Last loss, mean update ratio, seconds by phase, tokens, trainable_params, total_elems, peak memory …"""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
