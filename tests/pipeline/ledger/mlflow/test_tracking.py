"""MLflow: what is spooled arrives once, in order, whatever fails in between. Real MLflow on SQLite
throughout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Outcome
from pipeline.guard.trace import MemorySample
from pipeline.ledger.journal import Journal
from pipeline.ledger.mlflow import records as tracking_records
from pipeline.ledger.mlflow import tracking
from pipeline.ledger.mlflow.client import KEY_TAG, Backend, Batch, RejectedError, UnreachableError
from pipeline.ledger.mlflow.records import thinned
from pipeline.ledger.mlflow.sender import Sender, SyncResult, drain
from pipeline.ledger.mlflow.spool import Record, Spool, load_progress, waiting
from pipeline.ledger.mlflow.tracking import child_environment, close_stale, resolve, sync
from stages.contract.events import Event, EventKind
from tests.pipeline.ledger.samples import RUN, attempt, end, step, with_database, write_folder

PROJECT = Path(__file__).parents[4]
DEAD = "http://127.0.0.1:9"


class RunContext:
    """A project root with a journal, a spool and an MLflow of its own."""

    def __init__(self, root: Path) -> None:
        self.root, self.artifacts = root, root / "artifacts"
        with_database(root)
        self.target = resolve(TrackingSettings(), root, self.artifacts)
        self.backend = Backend(self.target)
        self.journal = Journal(self.artifacts / "journal.db", root)
        self.spools = tracking.spool_folder(self.artifacts)
        self.spool = Spool(self.spools, RUN)

    def drain(self, backend: Any = None) -> SyncResult:
        return drain(self.spools, self.root, backend or self.backend, self.target.uri)

    def runs(self) -> dict[str, Any]:
        """Key → run; fails if a key stands twice."""
        client = self.backend.connect()
        found = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=1000)
        keyed = {run.data.tags[KEY_TAG]: run for run in found}
        assert len(keyed) == len(found)
        return keyed

    def open(self, steps: int = 0) -> None:
        """A run with an open attempt, in journal and spool."""
        self.journal.open_run(RUN, "stageG", "make run", "seed: 0\n")
        self.journal.open_attempt(attempt())
        self.spool.append(tracking_records.run_opened(self.journal.run(RUN), "pre/"))
        self.spool.append(tracking_records.attempt_opened(self.journal.attempt(f"{RUN}/G/1"), "pre/"))
        for number in range(1, steps + 1):
            self.spool.append(tracking_records.event(attempt(), step(number, 1 / number)))

    def close(self, outcome: Outcome = Outcome.PASSED) -> None:
        """Ends attempt and run there."""
        self.journal.close_attempt(attempt(), end(outcome))
        self.journal.interrupt_run(RUN, "test")
        row = self.journal.attempt(f"{RUN}/G/1")
        self.spool.append(tracking_records.attempt_ended(row, self.root, "entry", 300))
        self.spool.append(tracking_records.run_ended(self.journal.run(RUN), "end"))


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    """In a folder whose name has a space and characters beyond ASCII."""
    (tmp_path / "有 空").mkdir()
    return RunContext(tmp_path / "有 空")


class Flaky:
    """A backend that fails at the n-th call and then never again; calls that reached MLflow before the
    failure count.
    """

    def __init__(self, inner: Backend, fail_at: int, after: bool) -> None:
        self._inner, self._left, self._after = inner, fail_at, after

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise UnreachableError("cut off before")
            result = getattr(self._inner, name)(*arguments)
            if self._left == 0:
                raise UnreachableError("cut off after")
            return result

        return call


def test_everything_of_an_attempt_arrives(context: RunContext) -> None:
    write_folder(context.root, attempt())
    context.open(steps=150)
    context.close(Outcome.COLLAPSED)
    assert context.drain() == SyncResult(sent=context.spool.path.read_text().count("\n"), rejected=0, left=0)
    client, runs = context.backend.connect(), context.runs()
    parent, child = runs[RUN], runs[f"{RUN}/G/1"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.status, child.info.status) == ("KILLED", "FAILED")
    assert client.get_experiment(child.info.experiment_id).name == "pre/stageG"
    history = client.get_metric_history(child.info.run_id, "loss")
    assert [(m.step, m.value) for m in sorted(history, key=lambda m: m.step)] == [
        (n, 1 / n) for n in range(1, 151)
    ]
    assert len(client.get_metric_history(child.info.run_id, "memory/pid_mib")) == 300
    assert child.data.metrics["memory/pid_mib"] == 999
    assert child.data.metrics["peak_mib"] == 1234.5
    assert child.data.metrics["verdict/identity_heldout"] == 0.97
    assert child.data.params["lr_groups.lm_head"] == "10.0"
    assert child.data.tags["outcome"] == "collapsed"
    assert child.data.tags["data.datasets/身份.tsv"] == "b" * 64
    assert child.data.tags["input_sha256"] == "a" * 64
    names = {item.path for item in client.list_artifacts(child.info.run_id)}
    assert names == {"request.json", "command.txt", "trace.png", "trace.csv", "probes.json", "DevLog.md"}
    place = context.artifacts / "mlflow" / "artifacts" / child.info.run_id / "artifacts" / "probes.json"
    table = json.loads(place.read_text())
    assert dict(zip(table["columns"], table["data"][0], strict=True))["flags"] == "repetition, leak"


def test_long_parameter_is_cut_and_kept_whole_as_artifact(context: RunContext) -> None:
    long = "字" * 7000
    context.journal.open_run(RUN, "stageG", "make run", "")
    context.journal.open_attempt(attempt(note=long))
    context.spool.append(tracking_records.run_opened(context.journal.run(RUN), ""))
    context.spool.append(tracking_records.attempt_opened(context.journal.attempt(f"{RUN}/G/1"), ""))
    assert context.drain().rejected == 0
    child = context.runs()[f"{RUN}/G/1"]
    assert len(child.data.params["note"]) <= 6000
    assert child.data.params["note"].startswith("字" * 5900)
    folder = context.artifacts / "mlflow" / "artifacts" / child.info.run_id / "artifacts" / "params"
    assert (folder / "note.txt").read_text() == long


def test_many_words_and_figures_fit_mlflows_limits(context: RunContext) -> None:
    context.open()
    many = {f"k{i}": str(i) for i in range(250)}
    context.spool.append(
        [
            {
                "op": "batch",
                "run": f"{RUN}/G/1",
                "params": many,
                "tags": {f"t{i}": "x" * 9000 for i in range(120)},
            }
        ]
    )
    rows = [["m", float(i), 1000 + i, i] for i in range(2500)]
    context.spool.append([{"op": "batch", "run": f"{RUN}/G/1", "metrics": rows}])
    context.spool.append(
        [
            {
                "op": "batch",
                "run": f"{RUN}/G/1",
                "metrics": [["odd", float("nan"), 1, 0], ["odd", float("inf"), 2, 1]],
            }
        ]
    )
    assert context.drain().rejected == 0
    child = context.runs()[f"{RUN}/G/1"]
    assert {k: child.data.params[k] for k in many} == many
    assert len(context.backend.connect().get_metric_history(child.info.run_id, "m")) == 2500


@pytest.mark.fault(
    "MLflow fails at each single call", how="before and after each call; progress lost now and then"
)
@pytest.mark.parametrize("after", [False, True])
def test_cut_off_at_every_call_everything_arrives_once(context: RunContext, after: bool) -> None:
    write_folder(context.root, attempt())
    context.open(steps=5)
    context.close()
    for fail_at in range(1, 100):
        try:
            # Progress made before each cut is thrown away now and then, as a kill between call and note
            # would.
            if fail_at % 3 == 0:
                (context.spools / f"{RUN}.sent.json").unlink(missing_ok=True)
            context.drain(Flaky(context.backend, fail_at, after))
            break
        except UnreachableError:
            assert waiting(context.spools) == [context.spool.path]
    assert 5 < fail_at < 99
    runs = context.runs()
    assert len(runs) == 2
    assert {run.info.status for run in runs.values()} == {"KILLED", "FINISHED"}
    assert len(context.backend.connect().get_metric_history(runs[f"{RUN}/G/1"].info.run_id, "loss")) == 5
    assert not (context.spools / f"{RUN}.rejected.jsonl").exists()


@pytest.mark.fault("MLflow not reachable (sender alone)", how="a port where nobody listens")
def test_unreachable_server_keeps_everything_for_sync(
    context: RunContext, caplog: pytest.LogCaptureFixture
) -> None:
    context.open(steps=3)
    dead = resolve(TrackingSettings(uri=DEAD), context.root, context.artifacts)
    sender = Sender(context.spools, context.root, Backend(dead), DEAD)
    sender.start()
    context.close()
    assert not sender.stop(wait_secs=20)
    assert len([record.message for record in caplog.records if "sync" in record.message]) == 1
    assert waiting(context.spools) == [context.spool.path]
    done = sync(context.artifacts, context.root, context.target)
    assert done.left == 0
    assert done.sent > 5
    assert len(context.runs()) == 2
    assert sync(context.artifacts, context.root, context.target) == SyncResult()


def test_sender_sends_while_the_run_goes_on_and_the_rest_at_the_end(context: RunContext) -> None:
    context.open(steps=3)
    done = threading.Event()
    sender = Sender(context.spools, context.root, context.backend, context.target.uri, done.set)
    sender.start()
    context.close()
    assert sender.stop(wait_secs=30)
    assert done.is_set()
    assert {run.info.status for run in context.runs().values()} == {"KILLED", "FINISHED"}


def test_half_sent_spool_is_sent_whole_to_another_server(context: RunContext, tmp_path: Path) -> None:
    context.open(steps=2)
    context.drain()
    context.close()
    other = RunContext(tmp_path / "other")
    assert drain(context.spools, context.root, other.backend, other.target.uri).rejected == 0
    assert set(other.runs()) == {RUN, f"{RUN}/G/1"}


def test_again_fills_an_emptied_mlflow(context: RunContext) -> None:
    context.open(steps=2)
    context.close()
    context.drain()
    with_database(context.root)
    context.backend = Backend(context.target)
    assert sync(context.artifacts, context.root, context.target, again=True).rejected == 0
    assert set(context.runs()) == {RUN, f"{RUN}/G/1"}


@pytest.mark.fault(
    "MLflow refuses records", how="a changed parameter, a missing file, an unknown run, half a line", trials=4
)
def test_what_mlflow_refuses_is_kept_aside_and_does_not_hold_up_the_rest(context: RunContext) -> None:
    context.open()
    context.drain()
    context.spool.append([{"op": "batch", "run": f"{RUN}/G/1", "params": {"lr": "changed"}}])
    context.spool.append(
        [
            {"op": "file", "run": RUN, "source": "gone.txt", "folder": ""},
            {"op": "text", "run": "who", "text": ""},
        ]
    )
    with context.spool.path.open("ab") as stream:
        stream.write(b'{"op": "ba\n')
    context.spool.append(tracking_records.event(attempt(), step(1)))
    assert context.drain() == SyncResult(sent=1, rejected=4, left=0)
    kept = [json.loads(line) for line in (context.spools / f"{RUN}.rejected.jsonl").read_text().splitlines()]
    assert kept[0]["record"]["params"] == {"lr": "changed"}
    assert kept[3]["record"] == '{"op": "ba'
    assert context.runs()[f"{RUN}/G/1"].data.metrics["loss"] == 1.0


@pytest.mark.fault("the disk fills up within a line of the spool", how="half a record")
def test_line_cut_by_a_full_disk_does_not_swallow_the_next(context: RunContext) -> None:
    context.open()
    with context.spool.path.open("ab") as stream:
        stream.write(b'{"op": "ba')
    context.drain()
    assert context.spool.path.stat().st_size > load_progress(context.spool.path).offset
    Spool(context.spools, RUN).append(tracking_records.event(attempt(), step(1)))
    assert context.drain() == SyncResult(sent=1, rejected=1, left=0)


@pytest.mark.fault("MLflow shows a dead run as running", how="closed in the journal, RUNNING there")
def test_stale_runs_are_ended_and_others_are_not(context: RunContext) -> None:
    context.open()
    context.drain()
    context.backend.create_run("foreign", "pre/stageG", "foreign", "", 0)
    assert close_stale(context.journal.path, context.backend) == 0
    context.journal.interrupt_attempt(attempt(), "killed")
    assert close_stale(context.journal.path, context.backend) == 1
    assert {key: run.info.status for key, run in context.runs().items()} == {
        RUN: "RUNNING",
        f"{RUN}/G/1": "KILLED",
        "foreign": "RUNNING",
    }


def test_deleted_experiment_is_taken_up_again(context: RunContext) -> None:
    client = context.backend.connect()
    client.delete_experiment(
        client.create_experiment("pre/stageG", artifact_location=context.target.artifact_root)
    )
    context.open()
    assert context.drain().rejected == 0


FIRST_USE = """
import sys; from pathlib import Path
from pipeline.ledger.mlflow.client import Backend
from pipeline.ledger.mlflow.tracking import resolve
from pipeline.core.settings import TrackingSettings
root = Path(sys.argv[1])
backend = Backend(resolve(TrackingSettings(), root, root / "artifacts"))
print("ready", flush=True); sys.stdin.readline()
print(backend.create_run(sys.argv[2], "same", "name", "", 0))
"""


@pytest.mark.fault("two processes make MLflow's tables at once", how="both released in the same moment")
def test_two_processes_race_on_first_use_quietly(tmp_path: Path) -> None:
    def start(key: str) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", FIRST_USE, str(tmp_path), key]
        pipe = subprocess.PIPE
        return subprocess.Popen(arguments, cwd=PROJECT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    both = [start("a"), start("b")]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    ends = [one.communicate() for one in both]
    assert [(one.returncode, error) for one, (_, error) in zip(both, ends, strict=True)] == [(0, ""), (0, "")]
    backend = Backend(resolve(TrackingSettings(), tmp_path, tmp_path / "artifacts"))
    assert {key for key, _ in backend.running()} == {"a", "b"}
    assert len([e for e in backend.connect().search_experiments() if e.name == "same"]) == 1


def test_errors_tell_later_from_never(context: RunContext) -> None:
    run_id = context.backend.create_run("k", "e", "n", "", 0)
    context.backend.connect().delete_run(run_id)
    with pytest.raises(RejectedError, match="active"):
        context.backend.log(run_id, Batch(tags=(("a", "b"),)))
    with pytest.raises(RejectedError, match="not found"):
        context.backend.end("0" * 32, "FINISHED", 0)
    with pytest.raises(UnreachableError, match="127"):
        Backend(resolve(TrackingSettings(uri=DEAD), context.root, context.artifacts)).connect()
    (context.root / "bad.db").write_bytes(b"not a database" * 100)
    with pytest.raises(UnreachableError):
        Backend(resolve(TrackingSettings(uri="sqlite:///bad.db"), context.root, context.artifacts)).connect()


def test_addresses_are_absolute_and_beside_the_artifacts(tmp_path: Path) -> None:
    own = resolve(TrackingSettings(), tmp_path, tmp_path / "artifacts")
    assert own.uri == f"sqlite:///{tmp_path}/artifacts/mlflow/mlflow.db"
    assert own.artifact_root == (tmp_path / "artifacts/mlflow/artifacts").as_uri()
    other = resolve(
        TrackingSettings(uri="sqlite:///db/x.db", artifact_root="plots"), tmp_path, tmp_path / "artifacts"
    )
    assert other.uri == f"sqlite:///{tmp_path}/db/x.db"
    assert other.artifact_root == (tmp_path / "plots").as_uri()
    assert (
        resolve(TrackingSettings(uri="http://host:5000"), tmp_path, tmp_path / "artifacts").artifact_root
        == ""
    )


def test_settings_that_cannot_be_are_named() -> None:
    assert TrackingSettings().check() == []
    problems = TrackingSettings(uri="mlruns", trace_points=1, close_wait_secs=-1).check()
    assert sorted(fault.split(":")[0] for fault in problems) == ["close_wait_secs", "trace_points", "uri"]


def test_children_get_none_of_mlflows_variables() -> None:
    assert child_environment({"MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_URI": "y", "PATH": "p"}) == {"PATH": "p"}
    assert child_environment().keys() <= os.environ.keys()


def test_thinning_keeps_the_peak_and_the_order() -> None:
    samples = [
        MemorySample(f"2026-01-01T00:00:{i % 60:02d}.000000Z", float(i * 7919 % 1000), 0, 0)
        for i in range(997)
    ]
    few = thinned(samples, 100)
    assert len(few) == 100
    assert max(s.pid_mib for s in few) == max(s.pid_mib for s in samples)
    places = [samples.index(s) for s in few]
    assert places == sorted(places)
    assert thinned(samples[:50], 100) == samples[:50]


@pytest.mark.parametrize("kind", [EventKind.NOTE, EventKind.PROGRESS])
def test_events_without_figures_are_not_sent(kind: EventKind) -> None:
    assert tracking_records.event(attempt(), Event("2026-01-01T00:00:00.000000Z", kind, text="x")) == []


def test_phase_memory_is_a_metric_of_its_own() -> None:
    event = Event(
        "2026-01-01T00:00:00.000000Z", EventKind.PHASE, phase="exported", values={"device_mib": 5.0}
    )
    records: list[Record] = tracking_records.event(attempt(), event)
    assert records[0]["metrics"] == [["phase/exported/device_mib", 5.0, 1767225600000, 0]]


def test_commands(context: RunContext, capsys: pytest.CaptureFixture[str]) -> None:
    context.open(steps=1)
    context.close()
    assert tracking.main(["--artifacts", str(context.artifacts), "--uri", DEAD, "sync"]) == 1
    assert "1 run(s) wait" in capsys.readouterr().err
    assert tracking.main(["--artifacts", str(context.artifacts), "sync"]) == 0
    assert context.target.uri in capsys.readouterr().out
    assert len(context.runs()) == 2
    command = tracking.ui_command(context.target, 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--backend-store-uri") + 1] == context.target.uri
