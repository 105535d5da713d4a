"""Runs one `stages` process under the guard: follows its events, forwards stop requests, reads its result."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.environment import child_environment
from pipeline.core.guard_limits import GuardLimits
from pipeline.guard.options import child_options, guard_command
from pipeline.guard.report import GuardReport
from stages.contract.event_reader import EventReader
from stages.contract.events import Event, ExitCode, StageResult
from stages.contract.requests import WRITE_ROOT
from stages.contract.serial import RequestError, dump, load_file
from stages.contract.signals import StopSignals

POLL_SECS = 0.02
MEMORY_SECS = 0.5
TAIL_BYTES = 2000


@dataclass(frozen=True)
class StageCommands:
    """How the processes of `stages` are started; a request file is appended, for `estimate` its options."""

    train: tuple[str, ...] = (sys.executable, "-m", "stages.train")
    probe: tuple[str, ...] = (sys.executable, "-m", "stages.probe")
    init: tuple[str, ...] = (sys.executable, "-m", "stages.init")
    external: tuple[str, ...] = (sys.executable, "-m", "stages.external")
    estimate: tuple[str, ...] = (sys.executable, "-m", "stages.estimate")


@dataclass(frozen=True)
class Job:
    """One process to run, and the folder of its files, relative to the root (or absolute outside of it)."""

    command: tuple[str, ...]
    folder: str
    prefix: str = ""
    """Starts the names of its files: one folder holds the training's files and the probing's."""

    def path(self, name: str) -> str:
        """A file of this job: `request.json`, `events.jsonl`, `result.json`, `guard.json`, `trace.csv` …"""
        return f"{self.folder}/{self.prefix}{name}"

    def arguments(self) -> list[str]:
        """The stage's own argument list."""
        return [*self.command, self.path("request.json")]


@dataclass(frozen=True)
class ProcessResult:
    """How a guarded process ended."""

    exit_code: int
    """`ExitCode`, or 128 + signal number."""
    error: str
    """What went wrong and what to do; empty if nothing did."""
    result: StageResult
    """As the process wrote it; with nothing but the exit code if it ended before that."""
    report: GuardReport | None
    """None if the guard ended before it wrote one."""
    seconds: float

    @property
    def from_outside(self) -> bool:
        """Whether something else than the guard killed it: a person, or the kernel out of memory."""
        return self.exit_code == 128 + signal.SIGKILL


@dataclass
class ProcessCallbacks:
    """What is called while a process runs, and the user's requests to stop it."""

    on_start: Callable[[int], None] = lambda pid: None
    """Given the guard's process id."""
    on_event: Callable[[Event], None] = lambda event: None
    on_memory: Callable[[float], None] = lambda mib: None
    """Given the memory of the process tree, in MiB, about twice a second."""
    stop: StopSignals = field(default_factory=StopSignals)


def write_request(job: Job, request: Any, root: Path) -> None:
    """Writes a request into the job's folder, which is made. An existing request is never replaced.

    Raises:
        FileExistsError: if the folder holds one already.
    """
    path = root / job.path("request.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(dump(request))


def command_line(job: Job, limits: GuardLimits, root: Path) -> str:
    """One shell line that runs the job again by hand from the project root, under the same limits."""
    prefix = f"{root}/"
    return shlex.join(word.removeprefix(prefix) for word in guard_command(limits, job.arguments()))


class GuardedProcess:
    """A guarded process that has been started; see `guarded_process`."""

    def __init__(self, job: Job, limits: GuardLimits, root: Path, callbacks: ProcessCallbacks) -> None:
        self._job, self._root, self._callbacks = job, root, callbacks
        self._began = time.monotonic()
        self._trace = root / job.path("trace.csv")
        self._events = EventReader(root / job.path("events.jsonl"))
        options = child_options(self._trace, root / job.path("guard.json"))
        with (
            (root / job.path("stdout.log")).open("ab") as stdout,
            (root / job.path("stderr.log")).open("ab") as stderr,
        ):
            # A session of its own: a Ctrl-C in the terminal must reach the guard once, through this process.
            self._process = subprocess.Popen(
                guard_command(limits, job.arguments(), *options),
                cwd=root,
                env={**child_environment(), WRITE_ROOT: str((root / job.folder).resolve())},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the guard."""
        return self._process.pid

    def wait(self) -> ProcessResult:
        """Follows the process to its end: calls back, and passes requests to stop on to the guard."""
        sent, memory_due = 0, time.monotonic()
        while self._running():
            self._report_events()
            if time.monotonic() >= memory_due:
                memory_due = time.monotonic() + MEMORY_SECS
                if (mib := last_memory(self._trace)) is not None:
                    self._callbacks.on_memory(mib)
            if self._callbacks.stop.count > sent:
                # One signal a turn, and of different kinds: the kernel merges pending signals of one kind.
                sent += 1
                self._process.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[min(sent, 3) - 1])
        self._report_events()
        seconds = time.monotonic() - self._began
        return _collect(self._job, self._process.returncode, self._root, seconds, self._events.bad)

    def _running(self) -> bool:
        try:
            self._process.wait(POLL_SECS)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _report_events(self) -> None:
        for event in self._events.read():
            self._callbacks.on_event(event)

    def kill(self) -> None:
        """Ends the process at once if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()


@contextmanager
def guarded_process(
    job: Job, limits: GuardLimits, root: Path, callbacks: ProcessCallbacks
) -> Iterator[GuardedProcess]:
    """Starts a job whose request is written. The block calls `GuardedProcess.wait`, after any other work.

    The first request to stop is passed to the guard as SIGINT, which lets the stage finish its step; the
    second, SIGTERM, makes it kill at once; a third kills the guard, whose supervisor then ends the rest. An
    exception in the block, or in a callback, ends the process.

    Args:
        job: what to run.
        limits: of the guard.
        root: working directory of the process, which relative paths are relative to.
        callbacks: called by `wait`; `on_start` before the block.
    """
    process = GuardedProcess(job, limits, root, callbacks)
    try:
        callbacks.on_start(process.pid)
        yield process
    finally:
        process.kill()


def run_guarded(job: Job, limits: GuardLimits, root: Path, callbacks: ProcessCallbacks) -> ProcessResult:
    """Runs a job, whose request is written, to its end; see `guarded_process`."""
    with guarded_process(job, limits, root, callbacks) as process:
        return process.wait()


def last_memory(trace: Path) -> float | None:
    """Memory of the process tree (MiB) in the last whole line of a growing trace; None if there is none."""
    try:
        with trace.open("rb") as file:
            file.seek(max(0, trace.stat().st_size - 200))
            lines = file.read().split(b"\n")[:-1]
        return float(lines[-1].split(b",")[1])
    except (OSError, IndexError, ValueError):
        return None


def _collect(job: Job, code: int, root: Path, seconds: float, bad: Sequence[str]) -> ProcessResult:
    code = code if code >= 0 else 128 - code
    try:
        result = load_file(StageResult, root / job.path("result.json"))
    except RequestError:
        result = StageResult(exit_code=code)
    try:
        report = GuardReport.load(root / job.path("guard.json"))
    except RequestError:
        report = None
    error = ""
    if code != ExitCode.OK:
        message = report.message if report else ""
        error = (
            (message if report and report.killed else "")
            or result.error
            or message
            or _last_line(root / job.path("stderr.log"))
            or f"exit code {code} without a word"
        )
        error += "".join(f"; {line}" for line in bad[:1])
    return ProcessResult(code, error, result, report, seconds)


def _last_line(path: Path) -> str:
    """The last line of a log, the guard's own lines left out, for a process that ended without a result."""
    try:
        text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("guard: ")]
    return f"{lines[-1].strip()} (all of it: {path.name})" if lines else ""
