"""The guard's command line: written by `guard_command`, read and checked by `parse`."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.core.guard_limits import GuardLimits, ReaderKind
from stages.contract.fields import bound_problems

NUMBERS = {
    "gpu_limit_gb": "memory limit of the process tree, GB of 1024 MiB; GPU memory where there is a GPU, "
    "else resident memory",
    "gpu_over_secs": "how long it may stay over the limit; 0 (default): killed at the first sample over it",
    "gpu_poll_secs": "seconds between samples (default 0.05)",
    "min_available_gb": "floor of the machine's free memory; 0: none (default: 4 where CPU and GPU share one "
    "memory, else none)",
    "time_limit": "seconds; 0 (default): none",
    "grace_secs": "seconds between the polite signal and SIGKILL (default 150)",
}
"""Numeric fields of `GuardLimits`, each an option of the same name, and the option's help."""


@dataclass(frozen=True)
class GuardOptions:
    """A command line of the guard that has no problems."""

    limits: GuardLimits
    command: tuple[str, ...]
    """Program and arguments; no shell is involved."""
    trace: Path | None
    """CSV that samples are appended to."""
    report: Path | None
    """JSON of `GuardReport`, written at the end."""
    parent_pid: int | None
    """The command is stopped when this is no longer the guard's parent."""


class OptionsError(ValueError):
    """A command line that the guard cannot run. `problems` lists all reasons as `--option: value: remedy`."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def guard_command(limits: GuardLimits, command: Sequence[str], *options: str) -> list[str]:
    """The argument list that runs `command` under the guard.

    Args:
        limits: what the command may use.
        command: program and arguments; no shell is involved.
        options: further ones, as `child_options` gives them.

    Raises:
        ValueError: listing every problem of `limits`, or if `command` is empty.
    """
    problems = bound_problems(limits) + ([] if command else ["command: empty: name the program to run"])
    if problems:
        raise ValueError("guard: " + "; ".join(problems))
    return [sys.executable, "-m", "pipeline.guard", *_limit_options(limits), *options, "--", *command]


def child_options(trace: Path, report: Path) -> list[str]:
    """Options for a guard that is a child of this process and leaves its record behind.

    The guard stops the command when this process has ended. Start it in a session of its own
    (`start_new_session=True`): a Ctrl-C then reaches it once, through the caller, and not a second time from
    the terminal, which would mean "at once".

    Args:
        trace: CSV that samples are appended to.
        report: JSON of `GuardReport`, written at the end; must not exist yet.
    """
    return ["--trace", str(trace), "--report", str(report), "--parent-pid", str(os.getpid())]


def _limit_options(limits: GuardLimits) -> list[str]:
    words: list[str] = []
    for key in NUMBERS:
        if (value := getattr(limits, key)) is not None:
            words += [_flag(key), f"{value:.12g}"]
    return [*words, "--reader", limits.reader.value, *(["--allow-blind"] if limits.allow_blind else [])]


def _flag(key: str) -> str:
    """`gpu_limit_gb` → `--gpu-limit-gb`."""
    return "--" + key.replace("_", "-")


def parse(argv: Sequence[str]) -> GuardOptions:
    """Reads a command line.

    Raises:
        OptionsError: with all problems together.
        SystemExit: for `--help` and unknown options, as argparse does.
    """
    cut = list(argv).index("--") if "--" in argv else len(argv)
    options, command = _parser().parse_args(argv[:cut]), argv[cut + 1 :]
    limits, problems = _limits(options)
    problems += _file_problems(options, command)
    if problems:
        raise OptionsError(problems)
    return GuardOptions(limits, tuple(command), options.trace, options.report, options.parent_pid)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.guard",
        usage="%(prog)s --gpu-limit-gb GB [options] -- COMMAND [ARG …]",
        description="Runs COMMAND and ends it, with all its children, when it takes more memory or time "
        "than allowed. 執行 COMMAND, 記憶體或時間超過上限時連同所有子行程一併終止。",
        epilog="GB are 1024 MiB, as nvidia-smi counts: 108 means 110592 MiB. Exit code: the command's own, "
        "or 124 after a limit. SIGINT or SIGTERM once: passed on, the command may finish its step; twice: "
        "killed at once.",
        allow_abbrev=False,
    )
    for key, text in NUMBERS.items():
        parser.add_argument(_flag(key), metavar="GB" if key.endswith("gb") else "SECS", help=text)
    parser.add_argument(
        "--reader", default=ReaderKind.AUTO.value, help=f"one of {', '.join(ReaderKind)} (default auto)"
    )
    parser.add_argument(
        "--allow-blind", action="store_true", help="run although memory cannot be read; every report says so"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE.csv", help="append the samples here")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.json", help="write how it went here; must not exist yet"
    )
    parser.add_argument(
        "--parent-pid", type=int, metavar="PID", help="stop when this is no longer the guard's parent"
    )
    return parser


def _limits(options: argparse.Namespace) -> tuple[GuardLimits, list[str]]:
    """The limits, and every problem of the numbers, each naming its flag."""
    problems, values = [], {}
    for key in NUMBERS:
        text = getattr(options, key)
        if text is None:
            continue
        try:
            values[key] = float(text)
        except ValueError:
            problems.append(f"{_flag(key)}: {text!r}: is no number: give one like 0.05 or 108")
    if options.gpu_limit_gb is None:
        problems.append("--gpu-limit-gb: missing: give the limit in GB of 1024 MiB, like 108")
    try:
        reader = ReaderKind(options.reader)
    except ValueError:
        problems.append(f"--reader: {options.reader!r}: must be one of {', '.join(ReaderKind)}")
        reader = ReaderKind.AUTO
    limits = GuardLimits(
        **{"gpu_limit_gb": math.inf, **values}, allow_blind=options.allow_blind, reader=reader
    )
    for problem in bound_problems(limits):
        key, rest = problem.split(":", 1)
        if key in values:
            problems.append(_flag(key) + ":" + rest)
    return limits, problems


def _file_problems(options: argparse.Namespace, command: Sequence[str]) -> list[str]:
    problems = []
    if not command:
        problems.append("COMMAND: missing: put it after --, as in: … --gpu-limit-gb 108 -- python train.py")
    for flag, path in (("--trace", options.trace), ("--report", options.report)):
        if path and not path.parent.is_dir():
            problems.append(f"{flag}: {path}: its folder does not exist: make it first")
        elif path and not os.access(path if path.exists() else path.parent, os.W_OK):
            problems.append(f"{flag}: {path}: not writable: choose another place or change its permissions")
    if options.report and options.report.exists():
        problems.append(
            f"--report: {options.report}: exists already: name another file, nothing is overwritten"
        )
    return problems
