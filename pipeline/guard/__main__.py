"""Runs one command and ends it, with all its children, before it takes more memory or time than allowed.

    python -m pipeline.guard --gpu-limit-gb 108 --gpu-over-secs 0 --gpu-poll-secs 0.05 -- COMMAND ARG …

Starts in a fraction of a second: before the command runs, only the standard library is imported.
Exit code: the command's own (128 + signal number if a signal ended it); 124 after a limit; 130 if it had to
be killed after a request to stop; 137 if the supervisor was killed; 127 or 126 if the command could not be
started; 2 for impossible settings or unreadable memory.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.guard_limits import GuardLimits
from pipeline.guard import supervisor
from pipeline.guard.console import print_line
from pipeline.guard.memory_readers import MemoryReader, MemoryReadError, open_reader
from pipeline.guard.options import GuardOptions, OptionsError, parse
from pipeline.guard.report import GuardFigures, GuardReport, Reason
from pipeline.guard.supervisor import SupervisedCommand
from pipeline.guard.trace import TraceWriter
from pipeline.guard.watchdog import Watchdog, min_available_gb
from stages.contract.clock import utc_text
from stages.contract.events import ExitCode
from stages.contract.signals import STOP_SIGNALS, StopSignals, exit_process


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the guard; returns its exit code."""
    began = time.time()
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
    except OptionsError as error:
        problems = "\n".join(f"  - {problem}" for problem in error.problems)
        print_line(f"{len(error.problems)} problem(s) 設定有誤, nothing was started:\n{problems}")
        return ExitCode.BAD_INPUT
    if options.parent_pid is not None and os.getppid() != options.parent_pid:
        print_line(
            f"process {options.parent_pid}, for which this was to run, is gone already; nothing was started"
        )
        return ExitCode.INTERRUPTED
    try:
        return _guard(options, began)
    except KeyboardInterrupt:
        # Before `StopSignals` was entered; the supervisor ends whatever was started.
        return ExitCode.INTERRUPTED


def _guard(options: GuardOptions, began: float) -> int:
    """Starts the command, watches it to its end, reports."""
    limits = options.limits
    try:
        trace = TraceWriter(options.trace) if options.trace else None
        supervised = supervisor.start(options.command)
    except supervisor.SupervisorKilledError as error:
        print_line(f"nothing was started: {error}")
        return 128 + signal.SIGKILL
    except OSError as error:
        print_line(f"nothing was started: {error}")
        return ExitCode.FAILED
    with StopSignals(may_be_ignored=STOP_SIGNALS) as signals:
        pids = os.getpid(), supervised.child_pid
        print_line("process {0} guards process {1} 守護行程 {0}, 受守護行程 {1}".format(*pids))
        reader, unreadable = _open_reader(limits, supervised)
        watchdog = Watchdog(limits, supervised, reader, trace, options.parent_pid)
        if unreadable and not limits.allow_blind:
            watchdog.reason = Reason.BLIND
            message = f"memory cannot be read, so nothing was started: {unreadable}"
            watchdog.message = f"{message}. --allow-blind runs it unwatched"
        else:
            print_line(_start_line(limits, reader, options.command))
            if unreadable:
                watchdog.note(f"BLIND 未監看: memory is not watched, as --allow-blind allows: {unreadable}")
            watchdog.run(signals)
        supervised.close()
        for closing in (trace, reader):
            if closing:
                try:
                    closing.close()
                except (OSError, RuntimeError) as error:
                    watchdog.note(f"{type(closing).__name__}: {error}")
        report = _report(options, began, watchdog, reader, supervised)
        _print_end(report)
        if options.report:
            _save(report, options.report)
        return report.exit_code


def _open_reader(limits: GuardLimits, supervised: SupervisedCommand) -> tuple[MemoryReader | None, str]:
    """A reader that has read the waiting command once; else None and why."""
    try:
        reader = open_reader(limits.reader)
        reader.read([supervised.child_pid])
    except MemoryReadError as error:
        return None, str(error)
    return reader, ""


def _start_line(limits: GuardLimits, reader: MemoryReader | None, command: Sequence[str]) -> str:
    source = reader.describe() if reader else "nothing (blind)"
    over = "at once" if limits.gpu_over_secs == 0 else f"after {limits.gpu_over_secs:g} s"
    floor, seconds = min_available_gb(limits, reader), limits.time_limit
    return (
        f"watches 監看 {source}; limit 上限 {limits.gpu_limit_gb:g} GB ({limits.limit_mib:.0f} MiB),"
        f" killed {over}, every {limits.gpu_poll_secs:g} s;"
        f" floor of free memory {f'{floor:g} GB' if floor else 'none'};"
        f" time limit {f'{seconds:g} s' if seconds else 'none'}; command: {shlex.join(command)}"
    )


def _report(
    options: GuardOptions,
    began: float,
    watchdog: Watchdog,
    reader: MemoryReader | None,
    supervised: SupervisedCommand,
) -> GuardReport:
    limits = options.limits
    child_code = None if watchdog.child_status is None else exit_code_of(watchdog.child_status)
    return GuardReport(
        reason=watchdog.reason,
        message=watchdog.message,
        exit_code=_exit_code(watchdog, child_code),
        child_exit_code=None if watchdog.reason is Reason.NOT_STARTED else child_code,
        killed=watchdog.killed,
        reader=reader.kind.value if reader else "none",
        blind=reader is None or watchdog.figures.failed_reads > 0,
        guard_pid=os.getpid(),
        child_pid=supervised.child_pid,
        command=list(options.command),
        limit_gb=limits.gpu_limit_gb,
        over_secs=limits.gpu_over_secs,
        poll_secs=limits.gpu_poll_secs,
        min_available_gb=min_available_gb(limits, reader),
        time_limit=limits.time_limit,
        started_utc=utc_text(began),
        seconds=round(time.time() - began, 3),
        figures=watchdog.figures,
    )


def exit_code_of(status: int) -> int:
    """A wait(2) status as a shell reports it: the exit code, or 128 + signal number."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _exit_code(watchdog: Watchdog, child_code: int | None) -> int:
    if watchdog.reason is Reason.BLIND and child_code is None:
        return ExitCode.BAD_INPUT
    if watchdog.reason in (Reason.MEMORY, Reason.AVAILABLE, Reason.TIME, Reason.BLIND):
        return ExitCode.GUARD_KILLED
    if watchdog.reason in (Reason.INTERRUPTED, Reason.PARENT_GONE) and watchdog.killed:
        return ExitCode.INTERRUPTED
    return 128 + signal.SIGKILL if child_code is None else child_code


def _print_end(report: GuardReport) -> None:
    """Why it ended, and whether it ran unwatched."""
    if report.blind and report.child_exit_code is not None:
        unread = _unread_share(report.figures)
        print_line(f"BLIND 未監看: the command ran without its memory being watched, {unread}")
    if report.message:
        verb = "killed 已終止" if report.killed else "ended 已結束"
        ms = report.figures.breach_to_kill_ms
        took = f" (SIGKILL {ms:.1f} ms after the sample)" if ms is not None else ""
        print_line(f"{verb}, {report.reason.value}: {report.message}{took}; exit code {report.exit_code}")


def _unread_share(figures: GuardFigures) -> str:
    if not figures.samples:
        return "all the time"
    return f"{figures.failed_reads} of {figures.samples + figures.failed_reads} samples could not be read"


def _save(report: GuardReport, path: Path) -> None:
    """A report that cannot be written is reported on the console and does not change the exit code."""
    try:
        report.save(path)
    except OSError as error:
        print_line(f"--report: {path}: not written: {error}")


if __name__ == "__main__":
    exit_process(main())
