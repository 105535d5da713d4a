"""One guarded `stages` process: starts it, follows its events, passes stop requests on, collects how it
ended.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.environment import child_environment
from pipeline.core.settings import GuardLimits
from pipeline.guard.limits import GuardReport, guard_command
from stages.contract import WRITE_ROOT, Event, ExitCode, RequestError, StageResult
from stages.contract.event_reader import EventReader
from stages.contract.serial import dump, load_file
from stages.contract.signals import StopSignals

POLL_SECS = 0.02
MEMORY_SECS = 0.5
TAIL_BYTES = 2000
NOT_BY_HAND = ("--trace", "--report", "--parent-pid")
"""Guard options that belong to the program that starts it: a command run by hand has no such parent and
overwrites nothing.
"""


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
    """One process to run, and where its files lie. Paths are relative to the root, or absolute where outside
    of it.
    """

    command: tuple[str, ...]
    folder: str
    prefix: str = ""
    """Before the names of its files: one folder holds the training's files and the probing's."""

    def path(self, name: str) -> str:
        """A file of this job: `request.json`, `events.jsonl`, `result.json`, `guard.json`, `trace.csv`,
        `stdout.log` …
        """
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
    """Empty when it went well; else what went wrong and what to do."""
    result: StageResult
    """Of the process; an empty one if it did not live to write it."""
    report: GuardReport | None
    seconds: float

    @property
    def from_outside(self) -> bool:
        """Whether the guard or the process was killed, and not by the guard: by a person, or by the kernel
        out of memory.
        """
        return self.exit_code == 128 + signal.SIGKILL


@dataclass
class ProcessCallbacks:
    """What happens while a process runs."""

    on_start: Callable[[int], None] = lambda pid: None
    """Given the guard's process id."""
    on_event: Callable[[Event], None] = lambda event: None
    on_memory: Callable[[float], None] = lambda mib: None
    meanwhile: Callable[[], None] = lambda: None
    """Done once, while the process starts up: work that nobody need wait for."""
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
    words = guard_command(limits, job.arguments(), Path("trace"), Path("report"))
    cut = words.index("--")
    kept: list[str] = []
    skip = False
    for word in words[:cut]:
        if not skip and word not in NOT_BY_HAND:
            kept.append(word)
        skip = not skip and word in NOT_BY_HAND
    return shlex.join([_short(word, root) for word in [*kept, *words[cut:]]])


def _short(word: str, root: Path) -> str:
    """A path below the root as written from there."""
    prefix = f"{root}/"
    return word.removeprefix(prefix) if word.startswith(prefix) else word


def run_guarded(job: Job, limits: GuardLimits, root: Path, callbacks: ProcessCallbacks) -> ProcessResult:
    """Runs a job, whose request is written, to its end.

    The first stop request is passed to the guard as SIGINT, which lets the stage finish its step; the second,
    SIGTERM, makes it kill at once; a third kills the guard, whose second process then ends the rest.

    Args:
        job: what to run.
        limits: of the guard.
        root: working directory of the process; what relative paths are relative to.
        watcher: told of every event, and of the memory about twice a second.
    """
    began = time.monotonic()
    place = {
        name: root / job.path(name) for name in ("events.jsonl", "trace.csv", "guard.json", "result.json")
    }
    words = guard_command(limits, job.arguments(), place["trace.csv"], place["guard.json"])
    tail = EventReader(place["events.jsonl"])
    environment = {**child_environment(), WRITE_ROOT: str((root / job.folder).resolve())}
    with (root / job.path("stdout.log")).open("ab") as out, (root / job.path("stderr.log")).open("ab") as err:
        # A session of its own: a Ctrl-C in the terminal must reach the guard once, through here.
        process = subprocess.Popen(
            words,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    try:
        callbacks.on_start(process.pid)
        callbacks.meanwhile()
        _follow(process, tail, place["trace.csv"], callbacks)
    finally:
        if process.poll() is None:
            # Only an error in this program leads here: end what it started, at once.
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.wait()
    for event in tail.read():
        callbacks.on_event(event)
    return _collect(job, process.returncode, root, time.monotonic() - began, tail.bad)


def _follow(
    process: subprocess.Popen[bytes], tail: EventReader, trace: Path, callbacks: ProcessCallbacks
) -> None:
    sent, memory_due = 0, time.monotonic()
    while True:
        try:
            process.wait(POLL_SECS)
            return
        except subprocess.TimeoutExpired:
            pass
        for event in tail.read():
            callbacks.on_event(event)
        if time.monotonic() >= memory_due:
            memory_due = time.monotonic() + MEMORY_SECS
            if (mib := last_memory(trace)) is not None:
                callbacks.on_memory(mib)
        if callbacks.stop.count > sent:
            # One at a time, and of different kinds: two of a kind that wait to be handled are one to the
            # kernel.
            sent += 1
            process.send_signal((signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[min(sent, 3) - 1])


def last_memory(trace: Path) -> float | None:
    """The process tree's memory (MiB) in the last whole line of a growing trace; None if there is none yet."""
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
        told = (
            (report.message if report and report.killed else "")
            or result.error
            or (report.message if report else "")
        )
        error = told or _last_words(root / job.path("stderr.log")) or f"exit code {code} without a word"
        error += "".join(f"; {line}" for line in bad[:1])
    return ProcessResult(code, error, result, report, seconds)


def _last_words(path: Path) -> str:
    """The end of a log, for a process that died without a result."""
    try:
        text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("guard: ")]
    return f"{lines[-1].strip()} (all of it: {path.name})" if lines else ""
