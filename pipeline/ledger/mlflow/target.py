"""Where MLflow lies, and the note of it beside the journal, so that `sync` and `ui` need no settings."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.core.files import replace_text
from pipeline.core.settings import TrackingSettings

_NOTED = ("uri", "artifact_root", "experiment_prefix", "trace_points")
"""The settings that say where MLflow lies and what it gets."""


@dataclass(frozen=True)
class Target:
    """Where to send to. Both addresses are absolute, and nothing of MLflow's own defaults is used."""

    uri: str
    artifact_root: str
    """URI of a folder; empty if a server decides."""
    lock_folder: Path
    """Holds the lock of the first use."""


def mlflow_folder(artifacts: Path) -> Path:
    """Where MLflow's database and artifacts lie, if the settings name no other place."""
    return artifacts / "mlflow"


def resolve(settings: TrackingSettings, root: Path, artifacts: Path) -> Target:
    """The absolute addresses of the settings; relative ones start at `root`."""
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


def save_settings(settings: TrackingSettings, root: Path, artifacts: Path) -> None:
    """Notes where this checkout sends to. Raises OSError."""
    path = mlflow_folder(artifacts) / "target.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in asdict(settings).items() if key in _NOTED}
    noted = values | {"root": os.path.relpath(root, artifacts)}
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
        return TrackingSettings(**{key: noted[key] for key in _NOTED if key in noted}), root
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}: damaged; delete it, the next run writes it anew") from error
