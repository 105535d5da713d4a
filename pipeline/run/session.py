"""Everything a run needs around it: the lock on the artifacts folder, the ledger, the signals and the view;
closed in order.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from pipeline.core.lock import FolderLock, LockHeldError
from pipeline.core.process_identity import is_alive, process_identity
from pipeline.core.settings import Settings, SettingsError
from pipeline.evaluate.answers import AnswerCache
from pipeline.guard.machine import Machine, detect_machine
from pipeline.ledger.database import JournalError
from pipeline.ledger.devlog import DevLogError
from pipeline.ledger.ledger import Ledger
from pipeline.processes.memory_estimate import EstimateError
from pipeline.processes.progress import Progress
from pipeline.processes.stage_process import StageCommands
from pipeline.run.attempt import RunContext
from pipeline.run.plan import memory_need
from pipeline.run.runner import Runner, RunResult, new_run_id
from stages.contract.requests import WRITE_ROOT
from stages.contract.signals import StopSignals

LEFTOVER_SECS = 20.0


class SessionError(RuntimeError):
    """A run that cannot begin or cannot be recorded; the message says what to do."""


def run(
    settings: Settings, root: Path, command: str, settings_yaml: str, commands: StageCommands | None = None
) -> RunResult:
    """Carries out a run under the lock of its artifacts folder.

    Args:
        settings: without problems.
        root: what relative paths are relative to.
        command: the line that started this run, and resumes it.
        settings_yaml: the composed settings, for the record.
        commands: how stage processes are started; the real ones if left out.

    Raises:
        SessionError: if another run holds the folder, or the record cannot be kept.
        SettingsError: if a stage will not stay below the guard's limit.
    """
    artifacts, commands = root / settings.artifacts, commands or StageCommands()
    try:
        artifacts.mkdir(parents=True, exist_ok=True)
        with (
            FolderLock(artifacts, command),
            Ledger(root, settings.tracking, artifacts) as ledger,
            StopSignals() as stop,
            Progress() as progress,
        ):
            end_leftovers(ledger, progress)
            end_strays(ledger, artifacts, progress)
            machine = detect_machine()
            require_memory(settings, root, commands, machine, progress)
            context = RunContext(
                root=root,
                settings=settings,
                run_id=new_run_id(settings.name),
                commands=commands,
                machine=machine,
                answers=AnswerCache(root, settings.artifacts, settings.guard, commands, machine),
                ledger=ledger,
                progress=progress,
                stop=stop,
            )
            return Runner(context, command).run(settings_yaml)
    except (LockHeldError, JournalError, DevLogError) as error:
        raise SessionError(str(error)) from error
    except OSError as error:
        remedy = "make it a folder that can be written to, with space left, or set artifacts="
        raise SessionError(f"{error.filename or artifacts}: {error.strerror or error}: {remedy}") from error


def end_leftovers(ledger: Ledger, progress: Progress) -> None:
    """Ends guards of dead runs that still live, with all they guard: they hold the memory that this run
    needs.

    Only processes whose number and start time the journal knows. The first signal asks, the second ends at
    once.

    Raises:
        SessionError: if one does not end.
    """
    for process in ledger.leftover_processes():
        progress.say(f"left over from {process.attempt_id} 先前遺留: process {process.pid}, ended now")
        deadline = time.monotonic() + LEFTOVER_SECS
        while is_alive(process.pid, process.identity):
            if time.monotonic() > deadline:
                remedy = f"kill -9 {process.pid}, then start again"
                raise SessionError(f"process {process.pid} of {process.attempt_id} does not end: {remedy}")
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.2)


def end_strays(ledger: Ledger, artifacts: Path, progress: Progress) -> None:
    """Ends processes of dead runs that lost even their guard and its supervisor, at once.

    Ours are those whose environment names the folder of a run (see `stages.contract.WRITE_ROOT`) that the
    journal has as ended: nobody else in this folder is touched, such as a `pipeline.validate` under way.
    Linux only: elsewhere there is no such list.
    """
    runs = (artifacts / "runs").resolve()
    for path in Path("/proc").glob("[0-9]*/environ"):
        pid = int(path.parent.name)
        identity, folder = process_identity(pid), _write_root(path)
        if not folder or not folder.is_relative_to(runs) or folder == runs:
            continue
        run_id = folder.relative_to(runs).parts[0]
        if identity and ledger.has_ended(run_id) and is_alive(pid, identity):
            progress.say(f"left over from {run_id} 先前遺留: process {pid} without a guard, killed now")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def require_memory(
    settings: Settings, root: Path, commands: StageCommands, machine: Machine, progress: Progress
) -> None:
    """Holds the estimate of every training against the guard's limit, and against what is free now that
    leftovers are gone.

    What is not free now may be later, so that is only said; and a model that cannot be read is for its stage
    to refuse.

    Raises:
        SettingsError: naming every stage that will not stay below the limit, and the settings with which it
            does.
    """
    refused = []
    for stage in settings.stages:
        try:
            need = memory_need(settings, stage, root, commands, machine)
        except EstimateError as error:
            progress.say(f"{stage.name}: memory is not known beforehand 無法預估記憶體: {error}")
            continue
        if need is not None and need.over:
            refused.append(need.refusal())
        elif need is not None and need.warning():
            progress.say(f"warning 警告: {need.warning()}")
    if refused:
        raise SettingsError(refused)


def _write_root(environ: Path) -> Path | None:
    """The folder that a process may write to; None if it is no stage, gone, or another user's."""
    try:
        words = environ.read_bytes().split(b"\0")
    except OSError:
        return None
    mark = f"{WRITE_ROOT}=".encode()
    found = next((word for word in words if word.startswith(mark)), b"")
    return Path(os.fsdecode(found.removeprefix(mark))) if found else None
