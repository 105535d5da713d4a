"""What the journal has arrives in MLflow once, in order, whatever fails in between. Real MLflow on SQLite."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.lock import FolderLock, LockHeldError
from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Outcome, RunEnd
from pipeline.ledger.journal import Journal
from pipeline.ledger.mlflow.client import Client, UnreachableError
from pipeline.ledger.mlflow.sync import BackgroundSync, Sync, SyncResult, sync, waiting_runs
from pipeline.ledger.mlflow.target import resolve
from pipeline.ledger.schema import Destination
from tests.pipeline.ledger.mlflow.context import ATTEMPT, DEAD, SyncContext, mlflow_runs
from tests.pipeline.ledger.samples import (
    RUN,
    attempt,
    step,
    with_database,
    write_events,
    write_folder,
    write_old_journal,
)


class Flaky(Client):
    """A client whose n-th call of MLflow fails, before or after it reached MLflow, and never again."""

    def __init__(self, inner: Client, fail_at: int, after: bool) -> None:
        super().__init__(inner._target)
        self._client = FlakyMlflow(inner.connect(), fail_at, after)  # type: ignore[assignment]


class FlakyMlflow:
    """MLflow's own client, so failing."""

    def __init__(self, inner: Any, fail_at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, fail_at, after

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise ConnectionError("cut off before")
            result = getattr(self._inner, name)(*arguments, **named)
            if self._left == 0:
                raise ConnectionError("cut off after")
            return result

        return call


def test_everything_of_an_attempt_arrives(context: SyncContext) -> None:
    write_folder(context.root, attempt())
    (context.root / attempt().folder / "steps.png").write_bytes(b"\x89PNG")
    context.open(steps=150)
    context.close(Outcome.COLLAPSED)
    assert context.sync().catch_up() == SyncResult(sent=4)
    client, runs = context.client.connect(), context.runs()
    parent, child = runs[RUN], runs[ATTEMPT]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.status, child.info.status) == ("KILLED", "FAILED")
    assert client.get_experiment(child.info.experiment_id).name == "pre/stageG"
    assert context.history("loss") == [(n, 1 / n) for n in range(1, 151)]
    assert len(context.history("memory/pid_mib")) == 300
    assert child.data.metrics["memory/pid_mib"] == 999
    assert child.data.metrics["peak_mib"] == 1234.5
    assert child.data.metrics["verdict/identity_heldout"] == 0.97
    assert child.data.params["lr_groups.lm_head"] == "10.0"
    assert child.data.tags["outcome"] == "collapsed"
    assert child.data.tags["data.datasets/身份.tsv"] == "b" * 64
    assert child.data.tags["input_sha256"] == "a" * 64
    names = {item.path for item in client.list_artifacts(child.info.run_id)}
    pictures = {"trace.png", "steps.png"}
    assert names == {"request.json", "command.txt", "trace.csv", "probes.json", "DevLog.md", *pictures}
    place = context.artifacts / "mlflow" / "artifacts" / child.info.run_id / "artifacts" / "probes.json"
    table = json.loads(place.read_text())
    assert dict(zip(table["columns"], table["data"][0], strict=True))["flags"] == "repetition, leak"
    assert context.sync().catch_up() == SyncResult()


def test_long_parameter_is_whole_as_artifact(context: SyncContext) -> None:
    long = "字" * 7000
    context.open(note=long)
    assert context.sync().catch_up().refused == ()
    child = context.runs()[ATTEMPT]
    assert child.data.params["note"].startswith("字" * 5900)
    folder = context.artifacts / "mlflow" / "artifacts" / child.info.run_id / "artifacts" / "params"
    assert (folder / "note.txt").read_text() == long


def test_figures_of_an_open_attempt_appear_as_it_goes_on(context: SyncContext) -> None:
    context.open(steps=2)
    worker = context.sync()
    worker.catch_up()
    assert [number for number, _ in context.history("loss")] == [1, 2]
    context.steps(3, 5)
    worker.catch_up()
    assert [number for number, _ in context.history("loss")] == [1, 2, 3, 4, 5]
    assert context.runs()[ATTEMPT].info.status == "RUNNING"
    context.steps(6, 6)
    context.close()
    worker.catch_up()
    assert [number for number, _ in context.history("loss")] == [1, 2, 3, 4, 5, 6]


def test_figures_that_could_not_be_sent_are_sent_by_the_next_pass(context: SyncContext) -> None:
    context.open(steps=2)
    worker = context.sync(Flaky(context.client, 10_000, after=False))
    worker.catch_up()
    context.steps(3, 4)
    worker.client._client._left = 1  # type: ignore[union-attr]
    with pytest.raises(UnreachableError):
        worker.catch_up()
    worker.catch_up()
    assert [number for number, _ in context.history("loss")] == [1, 2, 3, 4]


@pytest.mark.fault(
    "MLflow fails at each single call", how="before and after each call; by turns in one process or a new one"
)
@pytest.mark.parametrize("after", [False, True])
def test_cut_off_at_every_call_everything_arrives_once(context: SyncContext, after: bool) -> None:
    write_folder(context.root, attempt())
    context.open(steps=5)
    context.close()
    worker = context.sync()
    for fail_at in range(1, 100):
        client = Flaky(context.client, fail_at, after)
        if fail_at % 2:
            worker = context.sync()  # a process that was killed has forgotten all that it knew
        worker = Sync(worker.journal, context.root, context.artifacts, client, context.settings, worker._ids)
        try:
            worker.catch_up()
            break
        except UnreachableError:
            assert context.waiting() > 0
            if fail_at % 3 == 0:
                context.journal.deliver_again(Destination.MLFLOW)
    assert 10 < fail_at < 99
    assert context.waiting() == 0
    assert {key: run.info.status for key, run in context.runs().items()} == {
        RUN: "KILLED",
        ATTEMPT: "FINISHED",
    }
    assert [number for number, _ in context.history("loss")] == [1, 2, 3, 4, 5]
    assert len(context.history("memory/pid_mib")) == 300


def test_everything_sent_again_changes_nothing(context: SyncContext) -> None:
    write_folder(context.root, attempt())
    context.open(steps=5)
    context.close()
    context.sync().catch_up()
    before = {key: run.to_dictionary() for key, run in context.runs().items()}
    assert sync(context.artifacts, context.root, context.client, context.settings, again=True) == SyncResult(
        4
    )
    assert {key: run.to_dictionary() for key, run in context.runs().items()} == before
    assert len(context.history("loss")) == 5


def test_attempt_of_an_earlier_run_is_noted_on_the_run_that_reuses_it(context: SyncContext) -> None:
    context.open()
    context.close()
    context.journal.open_run("second", "stageG", "make run", "")
    context.journal.reuse_attempt("second", attempt())
    assert context.sync().catch_up().refused == ()
    assert context.runs()["second"].data.tags["reused.G.1"] == ATTEMPT


@pytest.mark.fault("MLflow not reachable (thread alone)", how="a port where nobody listens")
def test_unreachable_server_costs_one_warning_and_sync_sends_all(
    context: SyncContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.open(steps=3)
    dead = TrackingSettings(uri=DEAD, close_wait_secs=20)
    client = Client(resolve(dead, context.root, context.artifacts))
    background = BackgroundSync(context.root, context.artifacts, client, dead)
    background.start()
    context.close()
    assert not background.stop(context.journal)
    assert len([record.message for record in caplog.records if "sync" in record.message]) == 1
    assert waiting_runs(context.artifacts) == 1
    result = sync(context.artifacts, context.root, context.client, context.settings)
    assert result == SyncResult(sent=4)
    assert waiting_runs(context.artifacts) == 0
    assert len(context.runs()) == 2 and len(context.history("loss")) == 3


def test_thread_sends_while_the_run_goes_on_and_the_rest_at_the_end(context: SyncContext) -> None:
    context.open(steps=3)
    background = BackgroundSync(context.root, context.artifacts, context.client, context.settings)
    background.start()
    context.close()
    assert background.stop(context.journal)
    assert {run.info.status for run in context.runs().values()} == {"KILLED", "FINISHED"}


class Slow(Client):
    """MLflow that takes its time for every call."""

    def send(self, run_id: str, content: Any) -> list[str]:
        """The real one, late."""
        time.sleep(0.5)
        return super().send(run_id, content)


@pytest.mark.fault("MLflow is slow", how="every call takes longer than the end of a run waits")
def test_end_of_a_run_waits_no_longer_than_it_may(
    context: SyncContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.open(steps=3)
    context.close()
    settings = TrackingSettings(close_wait_secs=0.2)
    client = Slow(resolve(settings, context.root, context.artifacts))
    client.connect()
    background = BackgroundSync(context.root, context.artifacts, client, settings)
    background.start()
    began = time.monotonic()
    assert not background.stop(context.journal)
    assert time.monotonic() - began < 0.5
    background._thread.join(5)
    assert not background._thread.is_alive(), "it ends after the call under way"
    assert len(caplog.records) == 1
    assert sync(context.artifacts, context.root, context.client, context.settings).refused == ()
    assert {run.info.status for run in context.runs().values()} == {"KILLED", "FINISHED"}


@pytest.mark.fault("the journal is locked while MLflow is being sent to", how="BEGIN IMMEDIATE elsewhere")
def test_locked_journal_stops_only_the_thread_and_not_for_long(
    context: SyncContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.ledger.mlflow.sync.RETRY_SECS", 0.1)
    monkeypatch.setattr("pipeline.ledger.mlflow.sync.INTERVAL_SECS", 0.1)
    monkeypatch.setattr(Journal.__init__, "__defaults__", (None, 0.1))
    context.open(steps=3)
    context.close()
    with sqlite3.connect(context.journal.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        background = BackgroundSync(context.root, context.artifacts, context.client, context.settings)
        background.start()
        time.sleep(1)
        other.execute("ROLLBACK")
    other.close()
    assert background.stop(context.journal)


def test_changed_address_gets_the_new_with_all_that_it_belongs_to(
    context: SyncContext, tmp_path: Path
) -> None:
    context.open(steps=2)
    context.sync().catch_up()
    context.close()
    other = SyncContext(tmp_path / "other")
    assert context.sync(other.client).catch_up().refused == ()
    assert set(other.runs()) == {RUN, ATTEMPT}
    assert other.runs()[ATTEMPT].data.params["lr_groups.lm_head"] == "10.0", "as it opened"
    assert len(other.history("loss")) == 2
    assert {run.info.status for run in context.runs().values()} == {"RUNNING"}


def test_again_fills_an_emptied_mlflow(context: SyncContext) -> None:
    context.open(steps=2)
    context.close()
    context.sync().catch_up()
    with_database(context.root)
    context.client = Client(resolve(context.settings, context.root, context.artifacts))
    assert sync(context.artifacts, context.root, context.client, context.settings) == SyncResult()
    assert sync(context.artifacts, context.root, context.client, context.settings, again=True).sent == 4
    assert set(context.runs()) == {RUN, ATTEMPT}
    assert len(context.history("loss")) == 2


def refusals(context: SyncContext) -> dict[str, str]:
    """Kind of notice → why MLflow refused it, by the journal."""
    with sqlite3.connect(context.journal.path) as book:
        rows = book.execute("SELECT kind, refused FROM notices WHERE refused != ''").fetchall()
    book.close()
    return dict(rows)


@pytest.mark.fault("a run is deleted in MLflow while it goes on", how="delete_run between two passes")
def test_deleted_run_is_noted_and_does_not_hold_up_the_rest(context: SyncContext) -> None:
    context.open(steps=1)
    worker = context.sync()
    worker.catch_up()
    context.client.connect().delete_run(context.runs()[ATTEMPT].info.run_id)
    context.steps(2, 3)
    assert worker.catch_up() == SyncResult()
    context.close()
    for each in (worker, context.sync()):  # the same process, or one that has to look for the run
        result = each.catch_up()
        assert (result.sent, len(result.refused)) == (1, 1)
        assert "active" in result.refused[0] and ATTEMPT in result.refused[0]
        assert set(refusals(context)) == {"attempt_closed"}
        assert {key: run.info.status for key, run in context.runs().items()} == {RUN: "KILLED"}
        context.journal.deliver_again(Destination.MLFLOW)
        for notice in context.journal.pending(Destination.MLFLOW, 2):
            context.journal.deliver(notice, Destination.MLFLOW)  # opened before
    assert sync(context.artifacts, context.root, context.client, context.settings, again=True).refused == ()
    assert context.runs()[ATTEMPT].info.status == "FINISHED", "again makes it anew"


@pytest.mark.fault(
    "MLflow refuses a value", how="a parameter that has another value there; an unreadable row", trials=2
)
def test_refused_value_is_noted_and_the_rest_arrives(
    context: SyncContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.open(steps=2)
    run_id = context.client.create_run(ATTEMPT, "pre/stageG", "made before", "", 0)
    context.client.connect().log_param(run_id, "lr", "changed")
    context.journal.open_run("second", "stageG", "make run", "")
    with sqlite3.connect(context.journal.path) as book:
        book.execute("UPDATE runs SET end_json = '{' WHERE run_id = 'second'")
    book.close()
    context.close()
    background = BackgroundSync(context.root, context.artifacts, context.client, context.settings)
    background.start()
    assert background.stop(context.journal)
    assert set(refusals(context)) == {"attempt_opened", "run_opened"}
    assert "lr" in refusals(context)["attempt_opened"]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    child = context.runs()[ATTEMPT]
    assert (child.info.status, child.data.tags["outcome"]) == ("FINISHED", "passed")
    assert len(context.history("loss")) == 2


@pytest.mark.fault("MLflow shows a dead run as running", how="closed in the journal, RUNNING there")
def test_stale_runs_are_ended_and_others_are_not(context: SyncContext) -> None:
    context.open()
    worker = context.sync()
    worker.catch_up()
    context.client.create_run("foreign", "pre/stageG", "foreign", "", 0)
    assert worker.end_stale() == 0
    context.journal.interrupt_attempt(attempt(), "killed")
    assert worker.end_stale() == 1
    assert {key: run.info.status for key, run in context.runs().items()} == {
        RUN: "RUNNING",
        ATTEMPT: "KILLED",
        "foreign": "RUNNING",
    }


def test_one_process_sends_at_a_time(context: SyncContext) -> None:
    context.open()
    with FolderLock(context.artifacts / "mlflow", "another", name=".sync.lock"), pytest.raises(LockHeldError):
        context.sync().catch_up()
    results: list[SyncResult] = []

    def send() -> None:
        with Journal(context.journal.path, context.root) as book:
            worker = Sync(book, context.root, context.artifacts, context.client, context.settings)
            results.append(worker.catch_up(wait_secs=30))

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(result.sent for result in results) == 2
    assert set(context.runs()) == {RUN, ATTEMPT}


# --- what the version before left ---


def old_spool(artifacts: Path, sent: int | str) -> Path:
    """A spool of 100 bytes, of which so many were sent."""
    spool = artifacts / "mlflow" / "spool"
    spool.mkdir(parents=True)
    (spool / f"{RUN}.jsonl").write_text("x" * 99 + "\n")
    (spool / f"{RUN}.rejected.jsonl").write_text("{}\n")
    progress = sent if isinstance(sent, str) else json.dumps({"uri": "", "offset": sent, "runs": {}})
    (spool / f"{RUN}.sent.json").write_text(progress)
    return spool


@pytest.mark.parametrize(("sent", "again"), [(100, 0), (60, 4), ("{", 4)])
def test_half_sent_spool_of_the_version_before_is_sent_from_the_journal(
    tmp_path: Path, sent: int | str, again: int
) -> None:
    artifacts = tmp_path / "artifacts"
    write_old_journal(artifacts / "journal.db")
    write_folder(tmp_path, attempt())
    write_events(tmp_path, attempt(), [step(1), step(2)])
    spool = old_spool(artifacts, sent)
    with_database(tmp_path)
    settings = TrackingSettings()
    client = Client(resolve(settings, tmp_path, artifacts))
    assert sync(artifacts, tmp_path, client, settings) == SyncResult(sent=again)
    statuses = {key: run.info.status for key, run in mlflow_runs(client).items()}
    assert statuses == ({RUN: "FINISHED", ATTEMPT: "FINISHED"} if again else {})
    assert not spool.exists()
    assert len(list(spool.with_name("spool-before").iterdir())) == 3, "nothing is deleted"
    assert sync(artifacts, tmp_path, client, settings) == SyncResult()


def test_run_that_the_version_before_left_half_in_mlflow_is_completed(context: SyncContext) -> None:
    """It made the run, sent what it opened with and some steps, and was killed."""
    context.open(steps=3)
    context.sync().catch_up()
    context.close()
    for notice in context.journal.pending(Destination.MLFLOW):
        context.journal.deliver(notice, Destination.MLFLOW)
    old_spool(context.artifacts, 60)
    context.steps(4, 5)
    assert context.sync().catch_up() == SyncResult(sent=4)
    assert {run.info.status for run in context.runs().values()} == {"KILLED", "FINISHED"}
    assert len(context.history("loss")) == 5


def test_without_a_journal_nothing_happens(tmp_path: Path) -> None:
    client = Client(resolve(TrackingSettings(uri=DEAD), tmp_path, tmp_path))
    assert sync(tmp_path, tmp_path, client, TrackingSettings()) == SyncResult()
    assert waiting_runs(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


def test_attempt_whose_folder_is_gone_is_sent_without_its_files(context: SyncContext) -> None:
    write_folder(context.root, attempt())
    context.open(steps=2)
    context.close()
    shutil.rmtree(context.root / attempt().folder)
    assert context.sync().catch_up() == SyncResult(sent=4)
    assert context.runs()[ATTEMPT].data.metrics["peak_mib"] == 1234.5


def test_run_ends_as_its_journal_says(context: SyncContext) -> None:
    context.journal.open_run("failed", "stageG", "make run", "")
    context.journal.close_run("failed", RunEnd(Outcome.COLLAPSED, summary=("1: collapsed",)))
    context.journal.open_run("passed", "stageG", "make run", "")
    context.journal.close_run("passed", RunEnd(Outcome.PASSED, "w.dat", "f" * 64))
    context.sync().catch_up()
    assert {key: run.info.status for key, run in context.runs().items()} == {
        "failed": "FAILED",
        "passed": "FINISHED",
    }
