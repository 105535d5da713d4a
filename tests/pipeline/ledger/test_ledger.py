"""The ledger as a whole: the same story everywhere, after every death at every point."""

from __future__ import annotations

import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Attempt, AttemptEnd, Outcome, RunEnd
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import Journal
from pipeline.ledger.ledger import Ledger
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.sync import sync
from pipeline.ledger.mlflow.target import resolve
from pipeline.ledger.schema import Destination, State
from stages.contract.event_reader import read_events
from stages.contract.events import Event, EventKind, StageResult
from tests.pipeline.ledger.mlflow.context import mlflow_runs
from tests.pipeline.ledger.samples import (
    RUN,
    attempt,
    end,
    step,
    with_database,
    write_events,
    write_folder,
    write_weight,
)

PROJECT = Path(__file__).parents[3]
OFF = TrackingSettings(enabled=False)


def open_run(ledger: Ledger, run_id: str = RUN) -> None:
    ledger.open_run(run_id, "stageG", "python -m pipeline +experiment=stageG", "seed: 0\n")


def marks(root: Path) -> list[str]:
    """The ids of DevLog's entries."""
    path = root / "DevLog.md"
    return re.findall(r"<!-- ledger:(\S+) -->", path.read_text()) if path.exists() else []


def runs_in_mlflow(root: Path) -> dict[str, Any]:
    """Key → run of everything in MLflow."""
    return mlflow_runs(client_of(root))


def client_of(root: Path) -> Client:
    """MLflow of a project."""
    return Client(resolve(TrackingSettings(), root, root / "artifacts"))


def whole_attempt(
    ledger: Ledger, item: Attempt, outcome: Outcome = Outcome.PASSED, steps: int = 3
) -> AttemptEnd:
    """An attempt as the runner carries it out, with a weight that is judged and moved."""
    ledger.open_attempt(item)
    write_folder(ledger.root, item)
    ledger.process_started(item, os.getpid())
    write_events(ledger.root, item, (step(number) for number in range(1, steps + 1)))
    made = f"{item.folder}/out.dat"
    sha = write_weight(ledger.root, made, item.id.encode())
    ledger.stage_finished(item, StageResult(0, output=made, sha256=sha))
    place = (
        f"artifacts/{'weights' if outcome is Outcome.PASSED else '_trash'}/{item.run_id}-{item.number}.dat"
    )
    ledger.moving_weight(made, place, "" if outcome is Outcome.PASSED else "repetition 0.8")
    (ledger.root / place).parent.mkdir(parents=True, exist_ok=True)
    (ledger.root / made).rename(ledger.root / place)
    last = end(outcome, place, sha)
    ledger.close_attempt(item, last)
    return last


def test_journal_devlog_list_and_mlflow_agree(tmp_path: Path) -> None:
    with_database(tmp_path)
    with Ledger(tmp_path, TrackingSettings()) as ledger:
        open_run(ledger)
        ledger.base_weight("artifacts/base/b.dat", "a" * 64)
        whole_attempt(ledger, attempt(1, key="k1"), Outcome.COLLAPSED)
        last = whole_attempt(ledger, attempt(2, key="k2"))
        ledger.close_run(
            RUN, RunEnd(Outcome.PASSED, last.output_weight, last.output_sha256, ("1: collapsed", "2: passed"))
        )
        assert ledger.find_finished("k2") == (attempt(2, key="k2"), last)
    ids = [f"{RUN}:run_opened", f"{RUN}/G/1:attempt_closed", f"{RUN}/G/2:attempt_closed", f"{RUN}:run_closed"]
    assert marks(tmp_path) == ids
    table = (tmp_path / "artifacts" / "檔案說明清單.md").read_text()
    lines = {
        line.split(" | ")[0][2:]: line
        for line in table.splitlines()
        if ".dat" in line and line.startswith("|")
    }
    assert set(lines) == {
        "artifacts/base/b.dat",
        f"artifacts/_trash/{RUN}-1.dat",
        f"artifacts/weights/{RUN}-2.dat",
    }
    assert "collapsed" in lines[f"artifacts/_trash/{RUN}-1.dat"]
    assert "repetition 0.8" in lines[f"artifacts/_trash/{RUN}-1.dat"]
    assert last.output_sha256[:12] in lines[f"artifacts/weights/{RUN}-2.dat"]
    runs = runs_in_mlflow(tmp_path)
    assert {key: run.info.status for key, run in runs.items()} == {
        RUN: "FINISHED",
        f"{RUN}/G/1": "FAILED",
        f"{RUN}/G/2": "FINISHED",
    }
    assert runs[f"{RUN}/G/2"].data.tags["weight_sha256"] == last.output_sha256
    assert runs[f"{RUN}/G/2"].data.tags["why"] == "崩壞之後降低 lr"


def test_passed_attempt_counts_only_with_its_weight(tmp_path: Path) -> None:
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        last = whole_attempt(ledger, attempt())
        weight = tmp_path / last.output_weight
        content = weight.read_bytes()
        weight.write_bytes(b"another")
        assert ledger.find_finished("k1") is None
        weight.unlink()
        assert ledger.find_finished("k1") is None
        weight.write_bytes(content)
        assert ledger.find_finished("k1") is not None
        whole_attempt(ledger, attempt(2, key="k2"), Outcome.COLLAPSED)
        (tmp_path / f"artifacts/_trash/{RUN}-2.dat").unlink()
        assert ledger.find_finished("k2") is not None


def test_reused_attempt_is_noted_once_in_each_run(tmp_path: Path) -> None:
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        whole_attempt(ledger, attempt())
        open_run(ledger, "run2")
        ledger.reuse_attempt("run2", attempt())
        ledger.reuse_attempt("run2", attempt())
    assert [mark for mark in marks(tmp_path) if "reused" in mark] == [f"{RUN}/G/1:attempt_reused:run2"]


@pytest.mark.fault("an error inside the control process", how="ZeroDivisionError in the runner")
def test_error_in_the_run_closes_everything_as_interrupted(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        ledger.open_attempt(attempt())
        raise ZeroDivisionError("in the runner")
    with Journal(tmp_path / "artifacts" / "journal.db") as book:
        assert book.run(RUN).state is State.INTERRUPTED
        assert "in the runner" in book.attempts(RUN)[0].reason
    assert marks(tmp_path)[-2:] == [f"{RUN}/G/1:attempt_interrupted", f"{RUN}:run_interrupted"]


@pytest.mark.fault(
    "DevLog and file list cannot be written", how="folders in their place, removed before the end"
)
def test_unwritable_devlog_and_list_do_not_stop_the_run_and_are_caught_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "DevLog.md").mkdir()
    (tmp_path / "artifacts" / "檔案說明清單.md").mkdir(parents=True)
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        whole_attempt(ledger, attempt())
        assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
        (tmp_path / "DevLog.md").rmdir()
        (tmp_path / "artifacts" / "檔案說明清單.md").rmdir()
        ledger.close_run(RUN, RunEnd(Outcome.PASSED))
    assert marks(tmp_path) == [f"{RUN}:run_opened", f"{RUN}/G/1:attempt_closed", f"{RUN}:run_closed"]
    assert "passed" in (tmp_path / "artifacts" / "檔案說明清單.md").read_text()


@pytest.mark.fault("artifacts folder read-only or a file", how="a file in its place (ledger alone)")
def test_artifacts_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(JournalError, match="artifacts"), Ledger(tmp_path, TrackingSettings()):
        pytest.fail("opened")


@pytest.mark.fault("DevLog replaced by hand meanwhile", how="written anew during a run")
def test_entry_deleted_by_the_user_is_not_written_again(tmp_path: Path) -> None:
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        whole_attempt(ledger, attempt())
        (tmp_path / "DevLog.md").write_text("只留這一行\n")
        ledger.close_run(RUN, RunEnd(Outcome.PASSED))
    assert (tmp_path / "DevLog.md").read_text().startswith("只留這一行\n")
    assert marks(tmp_path) == [f"{RUN}:run_closed"]


def test_infinite_and_missing_figures_are_recorded(tmp_path: Path) -> None:
    with_database(tmp_path)
    with Ledger(tmp_path, TrackingSettings()) as ledger:
        open_run(ledger)
        ledger.open_attempt(attempt())
        note = Event("2026-03-01T10:00:00.000000Z", EventKind.NOTE, text="hello")
        write_events(tmp_path, attempt(), [step(1, float("nan")), step(2, float("inf")), note])
        ledger.close_attempt(
            attempt(), AttemptEnd(Outcome.BROKEN, 3, None, "loss is NaN", figures={"last_loss": float("nan")})
        )
        ledger.close_run(RUN, RunEnd(Outcome.BROKEN))
    assert runs_in_mlflow(tmp_path)[f"{RUN}/G/1"].info.status == "FAILED"
    with Journal(tmp_path / "artifacts" / "journal.db") as book:
        assert book.pending(Destination.MLFLOW) == []
    with sqlite3.connect(tmp_path / "artifacts" / "journal.db") as connection:
        assert connection.execute("SELECT count(*) FROM notices WHERE refused != ''").fetchone() == (0,)
    connection.close()


def test_cost_of_an_attempt_with_100_steps_is_under_100_ms(tmp_path: Path) -> None:
    with_database(tmp_path)
    with Ledger(tmp_path, TrackingSettings()) as ledger:
        open_run(ledger)
        ledger._sync._arguments[2].connect()  # type: ignore[union-attr]
        write_folder(tmp_path, attempt())
        seconds = []
        for number in range(2, 7):
            item = attempt(number)
            began = time.perf_counter()
            ledger.open_attempt(item)
            ledger.process_started(item, os.getpid())
            write_events(tmp_path, item, (step(count) for count in range(1, 101)))
            ledger.stage_finished(item, StageResult(0))
            ledger.close_attempt(item, end())
            seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[2] < 0.1, seconds


def test_attempt_of_other_code_is_found(tmp_path: Path) -> None:
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        whole_attempt(ledger, attempt(1, key="code before"))
        assert ledger.find_other_code(attempt(2, key="code now")) == attempt(1, key="code before")
        assert ledger.find_other_code(attempt(2, key="code before")) is None


def test_mlflow_switched_off_is_not_even_imported_and_gets_nothing_later(tmp_path: Path) -> None:
    with Ledger(tmp_path, OFF) as ledger:
        open_run(ledger)
        whole_attempt(ledger, attempt())
    assert not (tmp_path / "artifacts" / "mlflow").exists()
    with Journal(tmp_path / "artifacts" / "journal.db") as book:
        assert book.pending(Destination.MLFLOW) == []


# --- death at every point ---

KILL_DRIVER = '''
"""Runs the story in forked children, each of which dies by SIGKILL at one point; then starts it again."""
import os, signal, sqlite3, sys
from pathlib import Path
from pipeline.ledger import ledger as module
from pipeline.ledger.database import Database
from pipeline.core.lock import FolderLock
from pipeline.ledger.ledger import Ledger
from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Outcome, RunEnd
from tests.pipeline.ledger.samples import attempt
from tests.pipeline.ledger.test_ledger import open_run, whole_attempt

module.Ledger._start_sync = lambda self: None
base, stride, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

def story(root, run_id):
    (root / "artifacts").mkdir(parents=True, exist_ok=True)
    with FolderLock(root / "artifacts", "story"), Ledger(root, TrackingSettings()) as ledger:
        open_run(ledger, run_id)
        for number, outcome in ((1, Outcome.COLLAPSED), (2, Outcome.PASSED)):
            item = attempt(number, run_id, key=f"k{number}")
            found = ledger.find_finished(item.content_key)
            if found:
                ledger.reuse_attempt(run_id, found[0])
            else:
                whole_attempt(ledger, item, outcome)
        ledger.close_run(run_id, RunEnd(Outcome.PASSED))

def deadly(point):
    """Counts every call that changes something on the disk, before and after it, and dies at one."""
    count = 0
    def tick():
        nonlocal count
        count += 1
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)
    def wrap(owner, name):
        inner = getattr(owner, name)
        def outer(*args, **kwargs):
            tick()
            result = inner(*args, **kwargs)
            tick()
            return result
        setattr(owner, name, outer)
    for owner, name in ((Database, "run"), (os, "write"), (os, "fsync"), (Path, "replace"), (Path, "rename")):
        wrap(owner, name)

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

point = first
while True:
    root = base / f"p{point}"
    def dying():
        deadly(point)
        story(root, "run-a")
    code = child(dying)
    again = child(lambda: story(root, "run-b"))
    print(point, code, again, flush=True)
    if code == 0:
        break
    point += stride
'''


def check_story(root: Path, died: bool) -> None:
    """Everything that must hold after a death and the same command again."""
    with Journal(root / "artifacts" / "journal.db") as book:
        states = {row.run_id: row.state for row in book.runs()}
        attempts = [row for run_id in states for row in book.attempts(run_id)]
        assert book.pending(Destination.DEVLOG) == []
        kinds = [(notice.subject, notice.kind) for notice in book.pending(Destination.MLFLOW)]
        finished = [row.attempt.content_key for row in attempts if row.state is State.CLOSED]
        assert sorted(finished) == ["k1", "k2"], "finished attempts are not repeated"
        assert all(row.state is not State.OPEN for row in attempts)
        assert states["run-b"] is State.CLOSED
        assert states.get("run-a", State.CLOSED) is not State.OPEN
        for row in attempts:
            if row.end:
                assert (root / row.end.output_weight).is_file(), "no weight is lost"
    ids = marks(root)
    assert len(ids) == len(set(ids)), "each entry once"
    noted = {f"{row.id}:attempt_{row.state}" for row in attempts}
    noted |= {f"{run_id}:run_{state}" for run_id, state in states.items()} | {
        f"{run_id}:run_opened" for run_id in states
    }
    assert {mark for mark in ids if "reused" not in mark} == noted
    table = (root / "artifacts" / "檔案說明清單.md").read_text()
    assert table.count("ledger:weights:begin") == 1
    paths = [
        line.split(" | ")[0]
        for line in table.splitlines()
        if ".dat" in line and line.startswith("| artifacts")
    ]
    assert len(paths) == len(set(paths))
    assert "未登記" not in table or died
    for row in (*states, *(row.id for row in attempts)):
        opened, *others = [kind for subject, kind in kinds if subject == row]
        assert opened.endswith("_opened"), "MLflow will get each run from its beginning"
        assert any(kind.endswith(("_closed", "_interrupted")) for kind in others), (
            "and no run is left running"
        )


def kill_points(tmp_path: Path, stride: int, first: int) -> list[list[int]]:
    arguments = [sys.executable, "-c", KILL_DRIVER, str(tmp_path), str(stride), str(first)]
    done = subprocess.run(arguments, cwd=PROJECT, capture_output=True, text=True, check=True)
    rows = [[int(part) for part in line.split()] for line in done.stdout.splitlines()]
    assert [row for row in rows if row[2] != 0] == [], done.stderr
    assert {row[1] for row in rows[:-1]} == {-signal.SIGKILL}
    for point, code, _ in rows:
        check_story(tmp_path / f"p{point}", died=code != 0)
    return rows


@pytest.mark.fault(
    "the control process is killed at any change on disk",
    how="SIGKILL before and after every 9th change; started again",
)
def test_killed_at_points_all_over_the_story_and_started_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    rows = kill_points(tmp_path, stride=9, first=2)
    record_property("trials", len(rows) - 1)
    assert len(rows) > 20
    # Into the real MLflow: the story of one that died in the middle, and nothing is left running.
    root = tmp_path / f"p{rows[len(rows) // 2][0]}"
    with_database(root)
    assert sync(root / "artifacts", root, client_of(root), TrackingSettings()).refused == ()
    statuses = {key: run.info.status for key, run in runs_in_mlflow(root).items()}
    assert statuses["run-a"] == "KILLED"
    assert statuses["run-b"] == "FINISHED"
    assert "RUNNING" not in statuses.values()


@pytest.mark.fault(
    "the control process is killed at any change on disk",
    how="SIGKILL before and after every change; started again",
)
@pytest.mark.slow
def test_killed_at_every_point_of_the_story_and_started_again(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = len(kill_points(tmp_path, stride=1, first=1)) - 1
    record_property("trials", points)
    assert points > 200


SLOW_STORY = """
import sys, time; from pathlib import Path
from pipeline.ledger.ledger import Ledger
from pipeline.core.settings import TrackingSettings
from tests.pipeline.ledger.samples import attempt, step, write_events
from tests.pipeline.ledger.test_ledger import open_run
with Ledger(Path(sys.argv[1]), TrackingSettings()) as ledger:
    open_run(ledger)
    ledger.open_attempt(attempt())
    for number in range(1, 100000):
        write_events(ledger.root, attempt(), [step(number)])
        if number == 20: print("running", flush=True)
        time.sleep(0.01)
"""


@pytest.mark.fault(
    "the control process is killed while it sends to MLflow", how="SIGKILL after the first figures"
)
def test_killed_while_sending_to_real_mlflow_leaves_no_run_running(tmp_path: Path) -> None:
    database = with_database(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_STORY, str(tmp_path)], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with sqlite3.connect(database) as connection:
            if connection.execute("SELECT count(*) FROM metrics").fetchone()[0] > 0:
                break
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert {run.info.status for run in runs_in_mlflow(tmp_path).values()} == {"RUNNING"}
    with Ledger(tmp_path, TrackingSettings()) as ledger:
        assert ledger.interrupted() == [attempt()]
    runs = runs_in_mlflow(tmp_path)
    assert {key: run.info.status for key, run in runs.items()} == {RUN: "KILLED", f"{RUN}/G/1": "KILLED"}
    events, _ = read_events(tmp_path / attempt().folder / "events.jsonl")
    history = client_of(tmp_path).connect().get_metric_history(runs[f"{RUN}/G/1"].info.run_id, "loss")
    assert sorted(metric.step for metric in history) == [event.step for event in events]
    assert len(events) >= 20
