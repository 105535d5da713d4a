"""MLflow: `python -m pipeline.tracking sync` sends what waits, `ui` shows its page."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.core.lock import LockHeldError
from pipeline.ledger.database import JournalError
from pipeline.ledger.mlflow.client import Client, RejectedError, UnreachableError
from pipeline.ledger.mlflow.sync import sync, waiting_runs
from pipeline.ledger.mlflow.target import Target, load_settings, resolve


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries out a command; returns its exit code: 0, or 1 if something is left to send."""
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
        if options.uri:
            settings = replace(settings, uri=options.uri, artifact_root="")
        target = resolve(settings, root, options.artifacts)
        if options.command == "ui":
            return _ui(target, options.port)
        result = sync(options.artifacts, root, Client(target), settings, options.again)
    except (UnreachableError, RejectedError, LockHeldError, JournalError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n{_left(options.artifacts)}")
        return 1
    sys.stderr.writelines(f"refused: {line}\n" for line in result.refused)
    sys.stdout.write(f"sent {result.sent} notice(s) to {target.uri}, {len(result.refused)} refused\n")
    return 0


def ui_command(target: Target, port: int) -> list[str]:
    """The argument list that shows MLflow's page on this machine only."""
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", target.uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    return command + (["--default-artifact-root", target.artifact_root] if target.artifact_root else [])


def _left(artifacts: Path) -> str:
    try:
        left = waiting_runs(artifacts)
    except JournalError:
        return ""
    return f"{left} run(s) wait to be sent; start `sync` again when MLflow answers\n"


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
