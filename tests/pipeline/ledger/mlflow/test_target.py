"""Where MLflow lies: addresses, and the note that `sync` and `ui` read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.config.value_checks import tracking_problems
from pipeline.core.settings import TrackingSettings
from pipeline.ledger.mlflow.target import load_settings, resolve, save_settings


def test_addresses_are_absolute_and_beside_the_artifacts(tmp_path: Path) -> None:
    own = resolve(TrackingSettings(), tmp_path, tmp_path / "artifacts")
    assert own.uri == f"sqlite:///{tmp_path}/artifacts/mlflow/mlflow.db"
    assert own.artifact_root == (tmp_path / "artifacts/mlflow/artifacts").as_uri()
    settings = TrackingSettings(uri="sqlite:///db/x.db", artifact_root="plots")
    other = resolve(settings, tmp_path, tmp_path / "artifacts")
    assert other.uri == f"sqlite:///{tmp_path}/db/x.db"
    assert other.artifact_root == (tmp_path / "plots").as_uri()
    server = resolve(TrackingSettings(uri="http://host:5000"), tmp_path, tmp_path / "artifacts")
    assert server.artifact_root == ""


def test_settings_that_cannot_be_are_named() -> None:
    assert tracking_problems(TrackingSettings()) == []
    problems = tracking_problems(TrackingSettings(uri="mlruns", trace_points=1, close_wait_secs=-1))
    assert sorted(fault.split(":")[0] for fault in problems) == ["close_wait_secs", "trace_points", "uri"]


def test_note_says_all_that_the_command_needs(tmp_path: Path) -> None:
    artifacts = tmp_path / "deep" / "artifacts"
    settings = TrackingSettings(uri="http://host:1", experiment_prefix="pre/", trace_points=7)
    save_settings(settings, tmp_path, artifacts)
    assert load_settings(artifacts) == (settings, tmp_path)
    assert load_settings(tmp_path / "none") == (TrackingSettings(), tmp_path)


def test_note_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mlflow" / "target.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"uri": "http://host:1", "artifact_root": "", "root": ".."}))
    assert load_settings(tmp_path) == (TrackingSettings(uri="http://host:1"), tmp_path.parent)


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_damaged_note_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "target.json").write_text(text)
    with pytest.raises(ValueError, match=r"target\.json.*delete it"):
        load_settings(tmp_path)
