"""The watchdog around one command: ends it, with all its children, before it takes more memory or time than
allowed.

    python -m pipeline.guard --gpu-limit-gb 108 --gpu-over-secs 0 --gpu-poll-secs 0.05 -- COMMAND ARG …

Starts in a fraction of a second: nothing heavier than the standard library is imported before the command
    runs.
Exit code: the command's own (128 + signal number if a signal ended it); 124 after a limit; 130 if it had to
be killed after a request to stop; 137 if the guard's second process was killed; 127 or 126 if the command
could not be started; 2 for impossible settings or unreadable memory.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.settings import GuardLimits, ReaderKind
from pipeline.guard import supervisor
from pipeline.guard.console import say
from pipeline.guard.limits import GuardFigures, GuardReport, Reason, flag_of, guard_command
from pipeline.guard.memory_readers import MemoryReader, MemoryUnreadable, open_reader
from pipeline.guard.trace import TraceWriter
from pipeline.guard.watchdog import Watchdog, floor_gb
from stages.contract.clock import utc_text
from stages.contract.events import ExitCode
from stages.contract.fields import bound_problems
from stages.contract.signals import StopSignals

__all__ = ["GuardLimits", "GuardReport", "Reason", "guard_command", "main"]

NUMBERS = {
    "gpu_limit_gb": "memory limit of the process tree, GB of 1024 MiB; GPU memory where there is a GPU, else resident memory",
    "gpu_over_secs": "how long it may stay over the limit; 0 (default): killed at the first sample over it",
    "gpu_poll_secs": "seconds between samples (default 0.05)",
    "min_available_gb": "floor of the machine's free memory; 0: none (default: 4 where CPU and GPU share one memory, else none)",
    "time_limit": "seconds; 0 (default): none",
    "grace_secs": "seconds between the polite signal and SIGKILL (default 150)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the guard; returns its exit code."""
    began = time.time()
    argv = list(sys.argv[1:] if argv is None else argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    options, command = _parser().parse_args(argv[:cut]), argv[cut + 1 :]
    limits, problems = _limits(options)
    problems += _file_problems(options, command)
    if problems:
        say(
            f"{len(problems)} problem(s) 設定有誤, nothing was started:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )
        return ExitCode.BAD_INPUT
    if options.parent_pid is not None and os.getppid() != options.parent_pid:
        say(f"process {options.parent_pid}, for which this was to run, is gone already; nothing was started")
        return ExitCode.INTERRUPTED
    try:
        return _guard(limits, command, options, began)
    except (
        KeyboardInterrupt
    ):  # before the guard's own signal handling began; the supervisor ends what there is
        return ExitCode.INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.guard",
        usage="%(prog)s --gpu-limit-gb GB [options] -- COMMAND [ARG …]",
        description="Runs COMMAND and ends it, with all its children, when it takes more memory or time than allowed. "
        "執行 COMMAND, 記憶體或時間超過上限時連同所有子行程一併終止。",
        epilog="GB are 1024 MiB, as nvidia-smi counts: 108 means 110592 MiB. Exit code: the command's own, or 124 after a limit. "
        "SIGINT or SIGTERM once: passed on, the command may finish its step; twice: killed at once.",
        allow_abbrev=False,
    )
    for key, text in NUMBERS.items():
        parser.add_argument(flag_of(key), metavar="GB" if key.endswith("gb") else "SECS", help=text)
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
            problems.append(f"{flag_of(key)}: {text!r}: is no number: give one like 0.05 or 108")
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
            problems.append(flag_of(key) + ":" + rest)
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


def _guard(limits: GuardLimits, command: Sequence[str], options: argparse.Namespace, began: float) -> int:
    """Starts the command, watches it to its end, reports."""
    try:
        trace = TraceWriter(options.trace) if options.trace else None
        kept = supervisor.start(command)
    except supervisor.SupervisorKilledError as error:
        say(f"nothing was started: {error}")
        return 128 + signal.SIGKILL
    except OSError as error:
        say(f"nothing was started: {error}")
        return ExitCode.FAILED
    with StopSignals() as signals:
        say(
            f"process {os.getpid()} guards process {kept.child_pid} 守護行程 {os.getpid()}, 受守護行程 {kept.child_pid}"
        )
        reader, unreadable = _open_reader(limits, kept)
        watch = Watchdog(limits, kept, reader, trace, options.parent_pid)
        if unreadable and not limits.allow_blind:
            watch.reason = Reason.BLIND
            watch.message = f"memory cannot be read, so nothing was started: {unreadable}. --allow-blind runs it unwatched"
        else:
            say(_watching(limits, reader, command))
            if unreadable:
                watch.note(f"BLIND 未監看: memory is not watched, as --allow-blind allows: {unreadable}")
            watch.run(signals)
        kept.close()
        for closing in (trace, reader):
            if closing:
                try:
                    closing.close()
                except (OSError, RuntimeError) as error:
                    watch.note(f"{type(closing).__name__}: {error}")
        return _finish(_report(limits, command, began, watch, reader, kept), options.report)


def _open_reader(limits: GuardLimits, kept: supervisor.SupervisedCommand) -> tuple[MemoryReader | None, str]:
    """A reader that has read the waiting command once; else None and why."""
    try:
        reader = open_reader(limits.reader)
        reader.read([kept.child_pid])
    except MemoryUnreadable as error:
        return None, str(error)
    return reader, ""


def _watching(limits: GuardLimits, reader: MemoryReader | None, command: Sequence[str]) -> str:
    what = reader.describe() if reader else "nothing (blind)"
    over = "at once" if limits.gpu_over_secs == 0 else f"after {limits.gpu_over_secs:g} s"
    floor, last = floor_gb(limits, reader), limits.time_limit
    return (
        f"watches 監看 {what}; limit 上限 {limits.gpu_limit_gb:g} GB ({limits.limit_mib:.0f} MiB), killed {over}, "
        f"every {limits.gpu_poll_secs:g} s; floor of free memory {f'{floor:g} GB' if floor else 'none'}; "
        f"time limit {f'{last:g} s' if last else 'none'}; command: {shlex.join(command)}"
    )


def _report(
    limits: GuardLimits,
    command: Sequence[str],
    began: float,
    watch: Watchdog,
    reader: MemoryReader | None,
    kept: supervisor.SupervisedCommand,
) -> GuardReport:
    own = None if watch.child_status is None else exit_code_of(watch.child_status)
    return GuardReport(
        reason=watch.reason,
        message=watch.message,
        exit_code=_exit_code(watch, own),
        child_exit_code=None if watch.reason is Reason.NOT_STARTED else own,
        killed=watch.killed,
        reader=reader.kind.value if reader else "none",
        blind=reader is None or watch.figures.failed_reads > 0,
        guard_pid=os.getpid(),
        child_pid=kept.child_pid,
        command=list(command),
        limit_gb=limits.gpu_limit_gb,
        over_secs=limits.gpu_over_secs,
        poll_secs=limits.gpu_poll_secs,
        min_available_gb=floor_gb(limits, reader),
        time_limit=limits.time_limit,
        started_utc=utc_text(began),
        seconds=round(time.time() - began, 3),
        figures=watch.figures,
    )


def exit_code_of(status: int) -> int:
    """A wait(2) status as a shell says it: the exit code, or 128 + signal number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _exit_code(watch: Watchdog, own: int | None) -> int:
    if watch.reason is Reason.BLIND and own is None:
        return ExitCode.BAD_INPUT
    if watch.reason in (Reason.MEMORY, Reason.AVAILABLE, Reason.TIME, Reason.BLIND):
        return ExitCode.GUARD_KILLED
    if watch.reason in (Reason.INTERRUPTED, Reason.PARENT_GONE) and watch.killed:
        return ExitCode.INTERRUPTED
    return 128 + signal.SIGKILL if own is None else own


def _how_blind(figures: GuardFigures) -> str:
    tried = figures.samples + figures.failed_reads
    return (
        f"{figures.failed_reads} of {tried} samples could not be read" if figures.samples else "all the time"
    )


def _finish(report: GuardReport, path: Path | None) -> int:
    """Says why it ended and writes the report. A report that cannot be written is said, and does not change
    the exit code.
    """
    if report.blind and report.child_exit_code is not None:
        say(f"BLIND 未監看: the command ran without its memory being watched, {_how_blind(report.figures)}")
    if report.message:
        verb = "killed 已終止" if report.killed else "ended 已結束"
        ms = report.figures.breach_to_kill_ms
        took = f" (SIGKILL {ms:.1f} ms after the sample)" if ms is not None else ""
        say(f"{verb}, {report.reason.value}: {report.message}{took}; exit code {report.exit_code}")
    if path:
        try:
            report.save(path)
        except OSError as error:
            say(f"--report: {path}: not written: {error}")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
