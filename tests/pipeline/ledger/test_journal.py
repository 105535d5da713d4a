"""The journal: what was written is there, whole, after any death of its writer."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.types import AttemptEnd, Outcome, RunEnd
from pipeline.ledger.database import JournalError
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Delivered, NoticeKind, State
from stages.contract.events import StageResult
from stages.contract.serial import RequestError, dump_line, load_text
from tests.pipeline.ledger.samples import RUN, attempt, end, write_weight

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """An open journal with an open run."""
    book = Journal(tmp_path / "artifacts" / "journal.db", tmp_path)
    book.open_run(RUN, "stageG", "python -m pipeline +experiment=stageG", "seed: 0\n")
    return book


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Python code in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_words_come_back_as_they_were() -> None:
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
def test_words_that_do_not_fit_are_refused(path: tuple[str | int, ...], value: object) -> None:
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


def test_marks_say_how_far_an_attempt_came(journal: Journal) -> None:
    journal.open_attempt(attempt())
    assert journal.find_mark(attempt(), "stage_finished") is None
    journal.mark(attempt(), "stage_finished", StageResult(0, sha256="f"))
    text = journal.find_mark(attempt(), "stage_finished")
    assert text is not None
    assert load_text(StageResult, text, "mark") == StageResult(0, sha256="f")
    with pytest.raises(JournalError):
        journal.mark(attempt(9), "stage_finished", None)


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
    kinds = [notice.kind for notice in journal.pending()]
    assert kinds == [NoticeKind.RUN_OPENED, NoticeKind.ATTEMPT_OPENED, NoticeKind.ATTEMPT_CLOSED]


def test_notice_stays_until_everyone_has_it(journal: Journal) -> None:
    (notice,) = journal.pending()
    journal.tell(notice, Delivered.PEOPLE)
    assert [one.told for one in journal.pending()] == [Delivered.PEOPLE]
    journal.tell(notice, Delivered.MLFLOW)
    assert journal.pending() == []


OPENS_AND_WAITS = """
import sys; from pathlib import Path; from pipeline.ledger.journal import Journal; from tests.pipeline.ledger.samples import attempt
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


def test_weight_is_known_wherever_a_crash_leaves_it(journal: Journal, tmp_path: Path) -> None:
    sha = write_weight(tmp_path, "a/out.dat")
    journal.open_attempt(attempt())
    journal.weights.record("a/out.dat", sha, attempt=attempt())
    journal.weights.will_move("a/out.dat", "_trash/out.dat", "collapsed")
    rows = {row.path: row for row in journal.weights.all()}
    assert rows["a/out.dat"].moved_to == "_trash/out.dat"
    assert rows["_trash/out.dat"].sha256 == sha
    assert rows["_trash/out.dat"].content_key == "k1"
    assert rows["_trash/out.dat"].note == "collapsed"
    with pytest.raises(JournalError, match="not in the journal"):
        journal.weights.will_move("b.dat", "c.dat", "")


def test_one_whole_file_at_rest(journal: Journal, tmp_path: Path) -> None:
    journal.open_attempt(attempt())
    journal.close()
    assert [path.name for path in (tmp_path / "artifacts").iterdir()] == ["journal.db"]


@pytest.mark.fault("the journal is locked", how="BEGIN IMMEDIATE by another connection")
def test_locked_database_names_the_file_and_the_remedy(journal: Journal) -> None:
    other = sqlite3.connect(journal.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with (
        Journal(journal.path, busy_secs=0.05) as late,
        pytest.raises(JournalError, match=r"journal\.db: .*locked: .*close it"),
    ):
        late.open_attempt(attempt())
    other.execute("ROLLBACK")
    other.close()
    journal.open_attempt(attempt())


@pytest.mark.fault(
    "the journal is damaged, from a newer version, or cannot be",
    how="other bytes, a folder that is a file, version 99",
    trials=3,
)
def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"not a database" * 100)
    with pytest.raises(JournalError, match="move it aside"):
        Journal(tmp_path / "journal.db")
    assert (tmp_path / "journal.db").read_bytes() == b"not a database" * 100
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="permissions"):
        Journal(tmp_path / "file" / "journal.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(JournalError, match="version 99"):
        Journal(tmp_path / "newer.db")


@pytest.mark.fault("several processes make the journal at once", how="four released in the same moment")
def test_two_processes_make_the_tables_at_once(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from pipeline.ledger.journal import Journal\n"
    code += "print('ready', flush=True); sys.stdin.readline(); Journal(Path(sys.argv[1])).runs(); print('ok')"
    both = [script(code, str(tmp_path / "journal.db")) for _ in range(4)]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    outs = [one.communicate("go\n")[0] for one in both]
    assert outs == ["ok\n"] * 4
