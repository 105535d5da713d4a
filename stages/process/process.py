"""Shared by all `stages` processes: events, result, exit code and device."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from stages.contract.clock import utc_now
from stages.contract.events import Event, EventKind, ExitCode, Phase, StageResult
from stages.contract.fields import setting_of
from stages.contract.requests import WRITE_ROOT, ExternalRequest
from stages.contract.rows import RowFileError
from stages.contract.serial import RequestError, dump, load_file
from stages.process.errors import InputError
from stages.process.files import NoSpaceError, OutputExistsError, require_new, write_new_text
from stages.process.memory_cap import failed_allocation


class StageError(Exception):
    """A stage that cannot continue, with the exit code for the reason."""

    def __init__(self, code: ExitCode, text: str, details: dict[str, Any] | None = None) -> None:
        self.code = code
        self.details = details or {}
        super().__init__(text)


class Request(Protocol):
    """The part that all requests share."""

    @property
    def events(self) -> str: ...
    @property
    def result(self) -> str: ...
    def check(self) -> list[str]: ...


R = TypeVar("R", bound=Request)


class Reporter:
    """Appends events to the event file of a stage, each a whole line in one write."""

    def __init__(self, path: Path, device: torch.device) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.device = device
        self.notes: list[str] = []
        self.last_phase, self.last_step = "", 0

    def _write(self, event: Event) -> None:
        os.write(self._handle, event.line().encode("utf-8"))

    def phase(self, phase: Phase) -> None:
        """Reports a phase, with this process's memory at that moment."""
        self.last_phase = phase
        self._write(
            Event(utc_now(), EventKind.PHASE, phase=phase, values={"device_mib": device_mib(self.device)})
        )

    def step(self, step: int, total: int, values: dict[str, float]) -> None:
        """Reports a training step."""
        self.last_step = step
        self._write(Event(utc_now(), EventKind.STEP, step=step, total=total, values=values))

    def progress(self, done: int, total: int, text: str) -> None:
        """Reports work done, in items."""
        self._write(Event(utc_now(), EventKind.PROGRESS, step=done, total=total, text=text))

    def note(self, text: str) -> None:
        """Reports one line for the user, which is also part of the result."""
        self.notes.append(text)
        self._write(Event(utc_now(), EventKind.NOTE, text=text))


def device_mib(device: torch.device) -> float:
    """Memory of this process in MiB: reserved by the CUDA allocator on a GPU, otherwise resident memory."""
    if device.type == "cuda":
        return round(torch.cuda.memory_reserved(device) / 2**20, 1)
    return round(resident_mib(), 1)


def resident_mib() -> float:
    """Resident memory of this process in MiB; without /proc, its largest value so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    import resource  # not on every platform

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def pick_device(name: str) -> torch.device:
    """The device of a request: `auto` is the first GPU if there is one.

    Raises:
        StageError: if a GPU is asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise StageError(ExitCode.BAD_INPUT, f"device: {name!r}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (
        not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()
    ):
        raise StageError(
            ExitCode.BAD_INPUT,
            f"device: {name}: this machine shows {torch.cuda.device_count()} CUDA device(s)",
        )
    # The allocator's functions need an index, not "the current device".
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def make_deterministic(threads: int) -> None:
    """Same inputs, same bytes: forbids algorithms whose sums depend on timing.

    Args:
        threads: of torch; 0: its default.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` does the same and imports torch's whole compiler.
    torch.set_deterministic_debug_mode("error")
    if threads:
        torch.set_num_threads(threads)


@contextmanager
def convert_out_of_memory(reporter: Reporter) -> Iterator[None]:
    """Turns a failed allocation inside the block into a StageError `OVER_LIMIT` with its size and phase."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        size = failed_allocation(error)
        if size is None:
            raise
        phase, step, held = reporter.last_phase, reporter.last_step, device_mib(reporter.device)
        text = (
            f"out of memory after phase {phase}, {step} step(s) done:"
            f" an allocation of {size / 2**20:.1f} MiB failed, {held:.0f} MiB held"
        )
        remedy = "lower batch_size or seq_len, set gradient_checkpointing, or raise the guard's limit"
        details = {"allocation_bytes": size, "phase": phase, "steps_done": step, "held_mib": held}
        raise StageError(ExitCode.OVER_LIMIT, f"{text}: {remedy}", details) from error


def versions() -> dict[str, str]:
    """Versions that decide what a stage computes."""
    found = {name: importlib.metadata.version(name) for name in ("torch", "tokenizers", "numpy")}
    found["python"] = platform.python_version()
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    return found


def write_root_problems(request: Any, root: str) -> list[str]:
    """Every path outside of `root` that a request would write to, as `key: path: remedy`. Follows links."""
    inside = Path(root).resolve()
    parts = [request, *([request.train] if isinstance(request, ExternalRequest) else [])]
    paths = {f.name: getattr(part, f.name) for part in parts for f in fields(part) if setting_of(f).written}
    wrong = [
        (key, path) for key, path in paths.items() if path and not Path(path).resolve().is_relative_to(inside)
    ]
    return [
        f"{key}: {path}: lies outside of {inside}, where alone this process may write: choose a place in it"
        for key, path in wrong
    ]


_BAD_INPUT = (
    RequestError,
    RowFileError,
    InputError,
    OutputExistsError,
    FileNotFoundError,
    PermissionError,
)


def _failure(error: BaseException) -> StageResult:
    if isinstance(error, StageError):
        code, text = error.code, str(error)
    elif isinstance(error, _BAD_INPUT):
        code, text = ExitCode.BAD_INPUT, str(error)
    elif isinstance(error, NoSpaceError):
        code, text = ExitCode.NO_SPACE, str(error)
    elif (size := failed_allocation(error)) is not None:
        code, text = (
            ExitCode.OVER_LIMIT,
            f"out of memory: an allocation of {size / 2**20:.1f} MiB failed: lower batch_size",
        )
    elif isinstance(error, KeyboardInterrupt):
        code, text = ExitCode.INTERRUPTED, "interrupted"
    else:
        code, text = ExitCode.FAILED, "".join(traceback.format_exception(error))
    details = error.details if isinstance(error, StageError) else {}
    return StageResult(int(code), error=text, versions=versions(), details=details)


def run_process(kind: type[R], work: Callable[[R], StageResult], argv: list[str], what: str) -> int:
    """The main function of a `stages` process: reads the request, does the work, writes the result last.

    Args:
        kind: The request's dataclass.
        work: Does the work; returns a result or raises.
        argv: Command-line arguments: the request file.
        what: One line for `--help`.

    Returns:
        An `ExitCode`.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("request", type=Path, help=f"JSON file with a {kind.__name__}")
    arguments = parser.parse_args(argv)
    try:
        request = load_file(kind, arguments.request)
        result_path = Path(request.result)
        require_new(result_path)
        problems = request.check()
        if root := os.environ.get(WRITE_ROOT):
            problems += write_root_problems(request, root)
        if problems:
            raise RequestError(str(arguments.request), problems)
    except (RequestError, OutputExistsError) as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    try:
        result = work(request)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every failure must end in a result file
        result = _failure(error)
        sys.stderr.write(f"{result.error}\n")
    result_path.parent.mkdir(parents=True, exist_ok=True)
    write_new_text(result_path, dump(result))
    return result.exit_code
