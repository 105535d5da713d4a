"""What the guard and its callers share as plain data: limits, report, and the argument list that starts a
guarded command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pipeline.core.files import replace_text
from pipeline.core.settings import GuardLimits
from stages.contract.fields import bound_problems
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
    """The process that started the guard is no more."""
    SUPERVISOR_LOST = "supervisor_lost"
    """The guard's second process was killed by someone; the tree was killed with it."""
    NOT_STARTED = "not_started"
    """The command could not be started: no such program, or not executable."""


@dataclass
class GuardFigures:
    """What was seen while a command was watched. Memory in MiB, times in UTC. The watch fills it in as it
    goes.
    """

    samples: int = 0
    failed_reads: int = 0
    peak_mib: float = 0.0
    """Largest sample of the tree."""
    peak_time: str = ""
    least_available_mib: float | None = None
    breach_mib: float | None = None
    """The sample that led to the kill: of the tree, or of free memory if the reason is `available`."""
    breach_to_kill_ms: float | None = None
    """From that sample's time to the last SIGKILL of the tree, new members searched for and none left."""
    leftovers: int = 0
    """Processes of the tree that outlived the command itself by more than their moment of grace, and were
    killed.
    """
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
    """Whether the command ran, for any time, without its memory being read."""
    guard_pid: int
    child_pid: int
    command: list[str]
    limit_gb: float
    over_secs: float
    poll_secs: float
    min_available_gb: float
    """The floor in force; 0: none."""
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
        """Writes the report aside, syncs and renames it: it exists whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        replace_text(path, dump(self))


def guard_command(limits: GuardLimits, command: Sequence[str], trace: Path, report: Path) -> list[str]:
    """The argument list that runs `command` under the guard, as a child of this very process.

    The guard stops the command when this process is no more. Start it in a session of its own
    (`start_new_session=True`): a Ctrl-C then reaches it once, through the caller, and not a second time from
    the terminal, which would mean "at once".

    Args:
        limits: what the command may use.
        command: program and arguments; no shell is involved.
        trace: CSV that samples are appended to.
        report: JSON of `GuardReport`, written at the end; must not exist yet.

    Raises:
        ValueError: listing every problem of `limits`, or if `command` is empty.
    """
    problems = bound_problems(limits) + ([] if command else ["command: empty: name the program to run"])
    if problems:
        raise ValueError("guard: " + "; ".join(problems))
    arguments = [sys.executable, "-m", "pipeline.guard"]
    for key in (
        "gpu_limit_gb",
        "gpu_over_secs",
        "gpu_poll_secs",
        "min_available_gb",
        "time_limit",
        "grace_secs",
    ):
        value = getattr(limits, key)
        if value is not None:
            arguments += [flag_of(key), f"{value:.12g}"]
    arguments += ["--reader", limits.reader.value, "--trace", str(trace), "--report", str(report)]
    arguments += ["--parent-pid", str(os.getpid())] + (["--allow-blind"] if limits.allow_blind else [])
    return [*arguments, "--", *command]


def flag_of(key: str) -> str:
    """`gpu_limit_gb` → `--gpu-limit-gb`."""
    return "--" + key.replace("_", "-")
