"""MLflow for the ledger: settings, where it lies, runs that must not stay open there, and the commands `sync`
and `ui`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.core.files import replace_text
from pipeline.core.lock import LockHeldError
from pipeline.core.settings import TrackingSettings
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import JOURNAL_NAME, Journal
from pipeline.ledger.mlflow.client import Backend, RejectedError, Target, UnreachableError, quotable
from pipeline.ledger.mlflow.records import milliseconds, status
from pipeline.ledger.mlflow.sender import SyncResult, drain
from pipeline.ledger.mlflow.spool import Progress, save_progress, waiting
from pipeline.ledger.schema import State


def mlflow_folder(artifacts: Path) -> Path:
    """Where the database, the artifacts and the spool of MLflow lie."""
    return artifacts / "mlflow"


def spool_folder(artifacts: Path) -> Path:
    """Where what is to be sent waits."""
    return mlflow_folder(artifacts) / "spool"


def resolve(settings: TrackingSettings, root: Path, artifacts: Path) -> Target:
    """The absolute addresses of the settings."""
    folder = mlflow_folder(artifacts).resolve()
    uri = settings.uri or f"sqlite:///{folder / 'mlflow.db'}"
    lock_folder = folder
    if uri.startswith("sqlite:///"):
        database = (root / uri.removeprefix("sqlite:///")).resolve()
        uri, lock_folder = f"sqlite:///{database}", database.parent
    artifact_root = settings.artifact_root
    if not artifact_root and uri.startswith("sqlite:///"):
        artifact_root = str(folder / "artifacts")
    if artifact_root and "://" not in artifact_root:
        artifact_root = (root / artifact_root).resolve().as_uri()
    return Target(uri, artifact_root, lock_folder)


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment for computing processes: without any of MLflow's variables, since the control process
    alone talks to it.
    """
    source = os.environ if environment is None else environment
    return {key: value for key, value in source.items() if not key.startswith("MLFLOW_")}


def save_settings(settings: TrackingSettings, root: Path, artifacts: Path) -> None:
    """Notes where this checkout sends to, so that `sync` and `ui` need no settings. Raises OSError."""
    path = mlflow_folder(artifacts) / "target.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    noted = {
        "uri": settings.uri,
        "artifact_root": settings.artifact_root,
        "root": os.path.relpath(root, artifacts),
    }
    text = json.dumps(noted, ensure_ascii=False, indent=2) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        replace_text(path, text)


def load_settings(artifacts: Path) -> tuple[TrackingSettings, Path]:
    """What was noted, with the project root; the defaults and the folder above if nothing was.

    Raises:
        ValueError: naming the file, if it is damaged.
    """
    path = mlflow_folder(artifacts) / "target.json"
    if not path.is_file():
        return TrackingSettings(), artifacts.resolve().parent
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
        root = (artifacts / noted["root"]).resolve()
        return TrackingSettings(uri=noted["uri"], artifact_root=noted["artifact_root"]), root
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}: damaged; delete it, the next run writes it anew") from error


def close_stale(journal: Path, backend: Backend) -> int:
    """Ends runs that MLflow shows as running although the journal has them closed. Runs of other journals are
    left alone.

    Returns:
        How many were ended.

    Raises:
        UnreachableError: if MLflow does not answer.
        JournalError: if the journal cannot be read.
    """
    if not journal.is_file():
        return 0
    ended = 0
    running = dict(backend.running())
    if not running:
        return 0
    with Journal(journal) as book:
        for run in book.runs():
            ends = [(run.run_id, run.state, run.end.outcome if run.end else None, run.closed_utc)]
            for row in book.attempts(run.run_id):
                ends.append((row.id, row.state, row.end.outcome if row.end else None, row.closed_utc))
            for key, state, outcome, closed_utc in ends:
                if quotable(key) in running and state is not State.OPEN:
                    backend.end(running[quotable(key)], status(outcome), milliseconds(closed_utc))
                    ended += 1
    return ended


def sync(artifacts: Path, root: Path, target: Target, again: bool = False) -> SyncResult:
    """Sends all that waits, and ends runs that are stale. `again` sends everything anew, to a new or emptied
    MLflow.

    Raises:
        UnreachableError: if MLflow does not take it; what is left stays.
        LockHeldError: if another process is sending and does not finish within a minute.
    """
    spools = spool_folder(artifacts)
    if again:
        for path in spools.glob("*.sent.json"):
            spool = path.with_name(path.name.replace(".sent.json", ".jsonl"))
            save_progress(spool, Progress())
    backend = Backend(target)
    done = drain(spools, root, backend, target.uri, wait_secs=60.0)
    close_stale(artifacts / JOURNAL_NAME, backend)
    return done


def ui_command(target: Target, port: int) -> list[str]:
    """The argument list that shows MLflow's page on this machine only."""
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        target.uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    return [
        *command,
        "--workers",
        "1",
        *(["--default-artifact-root", target.artifact_root] if target.artifact_root else []),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """`sync` sends what waits; `ui` shows MLflow's page."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.tracking", description=__doc__)
    parser.add_argument(
        "--artifacts", type=Path, default=Path("artifacts"), help="the artifacts folder (default: artifacts)"
    )
    parser.add_argument("--uri", default="", help="another MLflow than the one last used")
    commands = parser.add_subparsers(dest="command", required=True)
    sync_parser = commands.add_parser("sync", help="send to MLflow what could not be sent before")
    sync_parser.add_argument(
        "--again", action="store_true", help="send everything anew, to a new or emptied MLflow"
    )
    ui_parser = commands.add_parser("ui", help="show MLflow's page on this machine (127.0.0.1)")
    ui_parser.add_argument("--port", type=int, default=5000)
    options = parser.parse_args(arguments)
    try:
        settings, root = load_settings(options.artifacts)
        target = resolve(
            TrackingSettings(uri=options.uri) if options.uri else settings, root, options.artifacts
        )
        if options.command == "ui":
            return _ui(target, options.port)
        done = sync(options.artifacts, root, target, options.again)
    except (UnreachableError, RejectedError, LockHeldError, JournalError, OSError, ValueError) as error:
        left = len(waiting(spool_folder(options.artifacts)))
        sys.stderr.write(f"{error}\n{left} run(s) wait to be sent; start `sync` again when MLflow answers\n")
        return 1
    sys.stdout.write(
        f"sent {done.sent} record(s) to {target.uri}, {done.rejected} refused, {done.left} run(s) wait\n"
    )
    return 0 if not done.left else 1


def _ui(target: Target, port: int) -> int:
    if target.uri.startswith("http"):
        sys.stdout.write(f"MLflow runs at {target.uri}: open that address\n")
        return 0
    target.lock_folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    command = ui_command(target, port)
    os.execv(command[0], command)


if __name__ == "__main__":
    sys.exit(main())
