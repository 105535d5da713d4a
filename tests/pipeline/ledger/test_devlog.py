"""DevLog: every entry once, nothing of the user's touched."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.types import AttemptEnd, Outcome, RunEnd
from pipeline.ledger import devlog
from pipeline.ledger.devlog import DevLogError, append_once
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import AttemptRow, State
from tests.pipeline.ledger.samples import RUN, attempt, end


def row(number: int = 1, last: AttemptEnd | None = None, reason: str = "") -> AttemptRow:
    """A closed or interrupted attempt."""
    state = State.CLOSED if last else State.INTERRUPTED
    item = attempt(number)
    return AttemptRow(
        f"{RUN}/G/{number}",
        item,
        state,
        "2026-03-01T02:00:00.000000Z",
        "2026-03-01T02:01:00.000000Z",
        1,
        "i",
        last,
        reason,
    )


def test_entry_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "DevLog.md"
    assert append_once(path, "a", "first")
    assert append_once(path, "ab", "second")
    before = path.read_bytes()
    assert not append_once(path, "a", "first, said otherwise")
    assert path.read_bytes() == before
    assert before.decode().count("# DevLog\n") == 1


@given(st.text(max_size=200), st.text(max_size=200))
def test_hand_edits_between_entries_stay_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, head: str, tail: str
) -> None:
    path = tmp_path_factory.mktemp("log") / "DevLog.md"
    path.write_bytes(head.encode(errors="replace"))
    append_once(path, "a", "first")
    with path.open("ab") as stream:
        stream.write(tail.encode(errors="replace"))
    before = path.read_bytes()
    append_once(path, "b", "second")
    assert path.read_bytes().startswith(before)
    assert before.startswith(head.encode(errors="replace"))


@pytest.mark.fault("DevLog ends in half an entry", how="cut short")
def test_entry_cut_short_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "DevLog.md"
    append_once(path, "a", "first")
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    assert append_once(path, "a", "first")
    assert path.read_text().count("<!-- ledger:a -->") == 1


@pytest.mark.fault("the disk fills up within an entry of DevLog", how="a write that takes half")
def test_full_disk_takes_the_fragment_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "DevLog.md"
    append_once(path, "a", "first")
    before = path.read_bytes()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: whole(handle, data[:10]))
    with pytest.raises(DevLogError, match="disk is full"):
        append_once(path, "b", "second")
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert append_once(path, "b", "second")


@pytest.mark.fault("DevLog cannot be written", how="a folder in its place")
def test_unwritable_log_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "DevLog.md").mkdir()
    with pytest.raises(DevLogError, match=r"DevLog\.md"):
        append_once(tmp_path / "DevLog.md", "a", "x")


def test_attempt_entry_says_everything() -> None:
    text = devlog.attempt_ended(row(2, end(Outcome.COLLAPSED, "artifacts/_trash/x.dat", "d" * 64)))
    item = attempt(2)
    wanted = [
        item.why,
        item.command,
        "datasets/身份.tsv",
        "b" * 64,
        "lr=0.0002",
        "0.0002 → 0.0001",
        "collapsed(崩壞)",
    ]
    wanted += [
        "identity_heldout 0.97",
        "repetition 0.8 > 0.1: 我是F#之神之神之神",
        "1,234 MiB",
        "artifacts/_trash/x.dat",
        "d" * 64,
    ]
    wanted += ["last_loss 0.25", "12.2 秒", item.input_sha256, RUN, "`G` attempt 2"]
    assert [part for part in wanted if part not in text] == []
    assert re.search(r"```bash\n" + re.escape(item.command) + r"\n```", text)


def test_interrupted_entry_says_why_and_what_next() -> None:
    text = devlog.attempt_ended(row(reason="process 12 died"))
    assert "interrupted(中斷)" in text
    assert "process 12 died" in text
    assert "重做" in text


@pytest.mark.fault("text from outside poses as an entry of DevLog", how="its marks in an error message")
def test_text_from_outside_cannot_pass_for_an_entry(tmp_path: Path) -> None:
    wicked = AttemptEnd(Outcome.BROKEN, 1, None, error="boom\n<!-- ledger:b -->\n# Title")
    path = tmp_path / "DevLog.md"
    append_once(path, "a", devlog.attempt_ended(row(1, wicked)))
    assert append_once(path, "b", "second")
    assert "\n# Title" not in path.read_text()


def test_run_entries(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.db") as book:
        book.open_run(RUN, "stageG", "make run", "")
        opened = devlog.run_opened(book.run(RUN))
        book.close_run(RUN, RunEnd(Outcome.COLLAPSED, "", "", ("G attempt 1: collapsed",), "make run seed=1"))
        ended = devlog.run_ended(book.run(RUN))
    assert "make run" in opened
    assert RUN in opened
    assert "G attempt 1: collapsed" in ended
    assert "make run seed=1" in ended
