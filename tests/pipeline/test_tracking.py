"""The commands `sync` and `ui`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pipeline import tracking
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.target import resolve, save_settings
from tests.pipeline.ledger.mlflow.context import DEAD, SyncContext
from tests.pipeline.ledger.samples import with_database


@pytest.fixture
def context(tmp_path: Path) -> SyncContext:
    """A finished run that MLflow has nothing of."""
    made = SyncContext(tmp_path)
    made.open(steps=1)
    made.close()
    save_settings(made.settings, made.root, made.artifacts)
    return made


def main(context: SyncContext, *words: str) -> int:
    return tracking.main(["--artifacts", str(context.artifacts), *words])


def test_sync_says_what_waits_and_sends_it(context: SyncContext, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(context, "--uri", DEAD, "sync") == 1
    assert "1 run(s) wait" in capsys.readouterr().err
    assert main(context, "sync") == 0
    assert f"sent 4 notice(s) to {context.client._target.uri}, 0 refused" in capsys.readouterr().out
    assert len(context.runs()) == 2
    experiment = next(iter(context.runs().values())).info.experiment_id
    assert context.client.connect().get_experiment(experiment).name == "pre/stageG", "the prefix was noted"
    assert main(context, "sync") == 0
    assert "sent 0" in capsys.readouterr().out


def test_again_sends_everything_to_another_mlflow(
    context: SyncContext, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(context, "sync") == 0
    other = f"sqlite:///{with_database(context.root / 'other')}"
    assert main(context, "--uri", other, "sync") == 0
    assert main(context, "--uri", other, "sync", "--again") == 0
    assert [line.split(" notice")[0] for line in capsys.readouterr().out.splitlines()] == [
        "sent 4",
        "sent 0",
        "sent 4",
    ]


def test_what_mlflow_refuses_is_listed_and_is_no_failure(
    context: SyncContext, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(context, "sync") == 0
    client = Client(resolve(context.settings, context.root, context.artifacts))
    for run in context.runs().values():
        client.connect().delete_run(run.info.run_id)
    with sqlite3.connect(context.journal.path) as book:
        book.execute("UPDATE notices SET delivered = 1 WHERE kind = 'run_interrupted'")
    book.close()
    assert main(context, "sync") == 0
    out, err = capsys.readouterr()
    assert "1 refused" in out and err.startswith("refused: ") and "active" in err


@pytest.mark.fault("the journal is damaged (tracking command)", how="other bytes")
def test_damaged_journal_is_named(context: SyncContext, capsys: pytest.CaptureFixture[str]) -> None:
    context.journal.close()
    context.journal.path.write_bytes(b"not a database" * 100)
    assert main(context, "sync") == 1
    err = capsys.readouterr().err
    assert "journal.db" in err and "Traceback" not in err and "wait" not in err


def test_page_is_for_this_machine_only(context: SyncContext, capsys: pytest.CaptureFixture[str]) -> None:
    target = context.client._target
    command = tracking.ui_command(target, 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == target.uri
    assert command[command.index("--default-artifact-root") + 1] == target.artifact_root
    assert main(context, "--uri", "http://host:5000", "ui") == 0
    assert "http://host:5000" in capsys.readouterr().out
