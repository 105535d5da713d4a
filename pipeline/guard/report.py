"""The guard's report as JSON: why a command ended, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pipeline.core.files import replace_text
from stages.contract.serial import dump, load_file

BLIND_FIGURE = "guard_blind"
"""Figure of an attempt (1) whose memory was not watched for some or all of the time."""


class Reason(StrEnum):
    """Why the guarded command ended."""

    ENDED = "ended"
    """By itself; the exit code is its own."""
    MEMORY = "memory"
    """Its memory was over `gpu_limit_gb`."""
    AVAILABLE = "available"
    """The machine's free memory was under `min_available_gb`."""
    TIME = "time"
    BLIND = "blind"
    """Its memory could not be read, before the start or any more."""
    INTERRUPTED = "interrupted"
    """The guard was asked to stop by SIGINT, SIGTERM or SIGHUP."""
    PARENT_GONE = "parent_gone"
    """The process that started the guard has ended."""
    SUPERVISOR_LOST = "supervisor_lost"
    """The supervisor was killed from outside; the process tree was killed with it."""
    NOT_STARTED = "not_started"
    """The command could not be started: no such program, or not executable."""


@dataclass
class GuardFigures:
    """What was measured while a command was watched. Memory in MiB, times in UTC. The watchdog updates it."""

    samples: int = 0
    failed_reads: int = 0
    peak_mib: float = 0.0
    """Largest sample of the process tree."""
    peak_time: str = ""
    least_available_mib: float | None = None
    breach_mib: float | None = None
    """The sample that led to the kill: of the tree, or of free memory if the reason is `available`."""
    breach_to_kill_ms: float | None = None
    """From that sample until a search of the tree finds no process that was not sent SIGKILL."""
    leftovers: int = 0
    """Descendants that still ran `LEFTOVER_SECS` after the command itself had ended, and were killed."""
    cpu_seconds: float = 0.0
    """The guard's own processor time while it watched."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GuardReport:
    """How one guarded command went."""

    reason: Reason
    message: str
    """One sentence: figures and remedy. Empty when the command ended by itself."""
    exit_code: int
    """Of the guard: the command's own (128 + signal number if a signal ended it), or 124 after a limit."""
    child_exit_code: int | None
    """Of the command itself; None if it was never started."""
    killed: bool
    """Whether the guard sent SIGKILL to the tree because of `reason`."""
    reader: str
    blind: bool
    """Whether the command ran without its memory being read, if only for a while."""
    guard_pid: int
    child_pid: int
    command: list[str]
    limit_gb: float
    over_secs: float
    poll_secs: float
    min_available_gb: float
    """The least free memory that was enforced; 0: none."""
    time_limit: float
    started_utc: str
    seconds: float
    figures: GuardFigures = field(default_factory=GuardFigures)

    @staticmethod
    def load(path: Path) -> GuardReport:
        """Reads a report.

        Raises:
            RequestError: if the file is missing (the guard did not live to write it) or is no such report.
        """
        return load_file(GuardReport, path)

    def save(self, path: Path) -> None:
        """Writes the report; it exists whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        replace_text(path, dump(self))
