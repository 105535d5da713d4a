"""The journal: what was written is there, whole, after any death of its writer."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.types import Attempt, AttemptEnd, Outcome, RunEnd
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Destination, NoticeKind, State
from stages.contract.clock import utc_now
from stages.contract.serial import RequestError, dump_line, load_text
from tests.pipeline.ledger.samples import RUN, attempt, end, script


def test_rows_come_back_as_they_were() -> None:
    for value in (
        attempt(2),
        end(Outcome.COLLAPSED),
        RunEnd(Outcome.PASSED, "w.dat", "f" * 64, ("a", "b"), "cmd"),
    ):
        assert load_text(type(value), dump_line(value), "here") == value
    nothing = AttemptEnd(Outcome.BROKEN, 1, None)
    assert load_text(AttemptEnd, dump_line(nothing), "here") == nothing


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict", "rows", 0, "okay"), True),
        (("verdict", "evidence"), [1]),
        (("verdict", "rows"), "x"),
        (("outcome",), "fine"),
    ],
)
def test_rows_that_do_not_fit_are_refused(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(dump_line(end()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(RequestError, match="here"):
        load_text(AttemptEnd, json.dumps(data), "here")


def test_finished_attempt_is_found_by_its_key_in_another_process(journal: Journal, tmp_path: Path) -> None:
    item, last = attempt(), end(Outcome.COLLAPSED)
    journal.open_attempt(item)
    assert journal.find_finished("k1") is None
    journal.close_attempt(item, last)
    code = "import sys; from pathlib import Path; from pipeline.ledger.journal import Journal\n"
    code += "found = Journal(Path(sys.argv[1])).find_finished('k1'); print(found[0].number, found[1].outcome)"
    out, _ = script(code, str(journal.path)).communicate()
    assert out == "1 collapsed\n"
    assert journal.find_finished("k1") == (item, last)
    assert journal.find_finished("k2") is None


def test_latest_finished_attempt_counts_and_interrupted_ones_do_not(journal: Journal) -> None:
    for number, outcome in ((1, Outcome.BROKEN), (2, Outcome.PASSED)):
        journal.open_attempt(attempt(number))
        journal.close_attempt(attempt(number), end(outcome))
    journal.open_attempt(attempt(3))
    journal.interrupt_attempt(attempt(3), "Ctrl-C")
    found = journal.find_finished("k1")
    assert found is not None
    assert found[0].number == 2
    assert journal.find_interrupted("k1") == [attempt(3)]


def test_wrong_order_is_refused_and_changes_nothing(journal: Journal) -> None:
    with pytest.raises(JournalError, match="not open"):
        journal.close_attempt(attempt(), end())
    with pytest.raises(JournalError, match="what it belongs to is not"):
        journal.open_attempt(attempt(run_id="unknown"))
    journal.open_attempt(attempt())
    with pytest.raises(JournalError, match="already"):
        journal.open_attempt(attempt())
    journal.close_attempt(attempt(), end())
    with pytest.raises(JournalError, match="not open"):
        journal.interrupt_attempt(attempt(), "late")
    assert [row.state for row in journal.attempts(RUN)] == [State.CLOSED]
    kinds = [notice.kind for notice in journal.pending(Destination.DEVLOG)]
    assert kinds == [NoticeKind.RUN_OPENED, NoticeKind.ATTEMPT_OPENED, NoticeKind.ATTEMPT_CLOSED]


def test_notice_stays_pending_until_it_is_delivered(journal: Journal) -> None:
    (notice,) = journal.pending(Destination.DEVLOG)
    journal.deliver(notice, Destination.MLFLOW, "deleted there")
    journal.deliver(notice, Destination.DEVLOG)
    assert journal.pending(Destination.MLFLOW) == journal.pending(Destination.DEVLOG) == []
    journal.deliver_again(Destination.MLFLOW, "another-run")
    assert journal.pending(Destination.MLFLOW) == []
    journal.deliver_again(Destination.MLFLOW)
    assert [one.delivered for one in journal.pending(Destination.MLFLOW)] == [Destination.DEVLOG]


def test_reason_of_a_refusal_is_noted_until_it_is_sent_again(journal: Journal) -> None:
    (notice,) = journal.pending(Destination.MLFLOW)
    journal.deliver(notice, Destination.MLFLOW, "deleted there")
    journal.deliver(notice, Destination.DEVLOG)
    with sqlite3.connect(journal.path) as book:
        assert book.execute("SELECT refused FROM notices").fetchall() == [("deleted there",)]
    book.close()
    journal.deliver_again(Destination.MLFLOW, RUN)
    assert journal.pending(Destination.MLFLOW)[0].refused == ""


def test_notices_of_one_run_are_delivered_again_and_no_others(journal: Journal) -> None:
    for run_id in (f"{RUN}x", "b"):
        journal.open_run(run_id, "stageG", "cmd", "")
        journal.open_attempt(attempt(run_id=run_id))
    journal.open_attempt(attempt())
    journal.reuse_attempt(RUN, attempt(run_id="b"))
    for notice in journal.pending(Destination.MLFLOW):
        journal.deliver(notice, Destination.MLFLOW)
    journal.deliver_again(Destination.MLFLOW, RUN)
    assert {notice.run_id for notice in journal.pending(Destination.MLFLOW)} == {RUN}
    assert len(journal.pending(Destination.MLFLOW)) == 3
    assert len(journal.pending(Destination.MLFLOW, limit=2)) == 2


def finish(journal: Journal, item: Attempt, last: AttemptEnd | None = None) -> None:
    """An attempt from its beginning to its end."""
    journal.open_attempt(item)
    journal.close_attempt(item, last or end())


def test_attempt_of_other_code_is_the_latest_that_equals_all_but_the_key(journal: Journal) -> None:
    finish(journal, attempt(1, key="old"))
    finish(journal, attempt(2, key="newer"))
    finish(journal, attempt(3, key="other recipe", lr=1.0))
    finish(journal, replace(attempt(4, key="other input"), input_sha256="e" * 64))
    finish(journal, replace(attempt(5, key="other data"), data={"datasets/x.tsv": "b" * 64}))
    finish(journal, attempt(6, key="not judged"), AttemptEnd(Outcome.BROKEN, 1, None))
    finish(journal, attempt(7, key="other stage", stage="xG"))
    journal.open_attempt(attempt(8, key="still open"))
    found = journal.find_other_code(attempt(9, key="now"))
    assert found is not None and found.content_key == "newer"
    again = journal.find_other_code(attempt(9, key="newer"))
    assert again is not None and again.content_key == "old"
    assert journal.find_other_code(attempt(9, key="now", stage="H")) is None


def test_an_attempt_costs_the_same_after_10000(tmp_path: Path) -> None:
    """Counted in instructions of SQLite's virtual machine, which no load on this computer changes."""
    path, steps = tmp_path / "journal.db", []
    with Journal(path) as book:
        book.open_run(RUN, "stageG", "make run", "")
    for before, count in ((0, 200), (201, 10_000)):
        fill(path, range(before, count))
        with Journal(path) as book:
            steps.append(sqlite_steps(book, lambda book=book, count=count: ask_all(book, count)))
    assert steps[1] < 1.5 * steps[0], steps


def fill(path: Path, numbers: range) -> None:
    """Finished attempts, delivered to DevLog, half of them to MLflow."""
    with sqlite3.connect(path) as book:
        for number in numbers:
            item = attempt(number, key=f"k{number}", lr=number / 7)
            rest = ("closed", utc_now(), utc_now(), 1, "gone", dump_line(end()), "")
            row = (item.id, RUN, item.content_key, dump_line(item), *rest)
            book.execute(f"INSERT INTO attempts VALUES ({', '.join('?' * 11)})", row)
            insert = "INSERT INTO notices (id, kind, subject, utc, delivered) VALUES (?, ?, ?, ?, ?)"
            book.execute(insert, (item.id, "attempt_closed", item.id, utc_now(), 1 + 2 * (number % 2)))
    book.close()


def ask_all(journal: Journal, number: int) -> None:
    """What an attempt asks and writes."""
    item = attempt(number, key=f"new{number}")
    assert journal.find_finished(item.content_key) is None and journal.find_interrupted("k") == []
    assert journal.find_other_code(item) is None
    journal.open_attempt(item)
    journal.process_started(item, os.getpid())
    assert len(journal.open_attempts()) == 1 and len(journal.runs(State.OPEN)) == 1
    journal.close_attempt(item, end())
    for notice in journal.pending(Destination.DEVLOG):
        journal.deliver(notice, Destination.DEVLOG)
    for notice in journal.pending(Destination.MLFLOW, 10):
        journal.deliver(notice, Destination.MLFLOW)


def sqlite_steps(journal: Journal, work: Callable[[], None]) -> int:
    """How many hundreds of instructions of SQLite's virtual machine that took."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    connection = journal._database._connection
    connection.set_progress_handler(tick, 100)
    work()
    connection.set_progress_handler(None, 100)
    return count


OPENS_AND_WAITS = """
import sys; from pathlib import Path
from pipeline.ledger.journal import Journal; from tests.pipeline.ledger.samples import attempt
book = Journal(Path(sys.argv[1]))
book.open_run("20260301-101500-stageG-ab12", "stageG", "cmd", "")
book.open_attempt(attempt())
book.process_started(attempt(), int(sys.argv[2]))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.fault("a control process dies with an open attempt", how="SIGKILL; its child lives on")
def test_attempt_of_a_killed_process_is_abandoned_and_its_child_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    stage = subprocess.Popen(["sleep", "60"])
    owner = script(OPENS_AND_WAITS, str(path), str(stage.pid))
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with Journal(path) as book:
            assert book.abandoned_attempts() == []
            assert book.leftover_processes() == []
            owner.kill()
            owner.wait()
            assert [row.attempt for row in book.abandoned_attempts()] == [attempt()]
            assert [row.run_id for row in book.abandoned_runs()] == [RUN]
            assert [row.pid for row in book.leftover_processes()] == [stage.pid]
            stage.kill()
            stage.wait()
            assert book.leftover_processes() == []
    finally:
        owner.kill()
        stage.kill()


def test_one_whole_file_at_rest(journal: Journal, tmp_path: Path) -> None:
    journal.open_attempt(attempt())
    journal.close()
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["journal.db"]
