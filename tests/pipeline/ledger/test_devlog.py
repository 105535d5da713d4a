"""DevLog and file list: every entry once, nothing of the user's touched."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.types import AttemptEnd, Outcome, RunEnd
from pipeline.ledger import devlog
from pipeline.ledger import weight_list as filelist
from pipeline.ledger.devlog import DevLogError, append_once
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import AttemptRow, State, WeightRow
from pipeline.ledger.weight_list import BEGIN, END, FileListError, update
from tests.pipeline.ledger.samples import RUN, attempt, end, write_weight


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


def weight(path: str, moved_to: str = "", note: str = "") -> WeightRow:
    """A registered weight of six bytes."""
    return WeightRow(
        path, "f" * 64, 6, "", "", f"{RUN}/G/1", "passed", note, "2026-03-01T02:00:00.000000Z", moved_to
    )


def test_entry_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "DevLog.md"
    assert append_once(path, "a", "first")
    assert append_once(path, "ab", "second")
    before = path.read_bytes()
    assert not append_once(path, "a", "first, told otherwise")
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


def test_list_keeps_foreign_text_byte_for_byte(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    write_weight(tmp_path, "artifacts/a.dat")
    update(artifacts, tmp_path, [weight("artifacts/a.dat")])
    path = artifacts / "檔案說明清單.md"
    before, after = "我的筆記\r\n| 自己的表 |\n".encode(), b"\xff\xfe not UTF-8\n<!-- mine -->"
    table = path.read_bytes()
    table = table[table.index(BEGIN.encode()) : table.index(END.encode()) + len(END)]
    path.write_bytes(before + table + after)
    write_weight(tmp_path, "artifacts/b.dat")
    assert update(artifacts, tmp_path, [weight("artifacts/a.dat"), weight("artifacts/b.dat")])
    now = path.read_bytes()
    assert now.startswith(before + BEGIN.encode())
    assert now.endswith(END.encode() + after)
    assert b"artifacts/b.dat" in now
    assert not update(artifacts, tmp_path, [weight("artifacts/a.dat"), weight("artifacts/b.dat")])


def test_list_is_put_at_the_end_of_a_file_without_markers(tmp_path: Path) -> None:
    path = tmp_path / "檔案說明清單.md"
    path.write_text("手寫的清單")
    update(tmp_path, tmp_path, [])
    text = path.read_text()
    assert text.startswith("手寫的清單\n\n" + BEGIN)
    update(tmp_path, tmp_path, [weight("gone.dat")])
    assert path.read_text().count(BEGIN) == 1


@pytest.mark.fault("the file list's markers are damaged by hand", how="one of the two deleted")
@pytest.mark.parametrize("text", [f"x\n{BEGIN}\n", f"x\n{END}\n", f"{END}\n{BEGIN}\n"])
def test_list_with_one_marker_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "檔案說明清單.md"
    path.write_text(text)
    with pytest.raises(FileListError, match=r"檔案說明清單.*missing"):
        update(tmp_path, tmp_path, [])
    assert path.read_text() == text


def test_list_tells_what_is_gone_changed_and_unknown(tmp_path: Path) -> None:
    write_weight(tmp_path, "artifacts/kept.dat")
    write_weight(tmp_path, "artifacts/changed.dat", b"longer than six")
    write_weight(tmp_path, "artifacts/by-hand.dat")
    write_weight(tmp_path, "artifacts/.half.dat")
    write_weight(tmp_path, "artifacts/mlflow/copy.dat")
    known = [
        weight("artifacts/kept.dat"),
        weight("artifacts/changed.dat"),
        weight("artifacts/gone.dat", note="a|b\nc"),
    ]
    lines = {
        line.split(" | ")[0][2:]: line
        for line in filelist.table(tmp_path / "artifacts", tmp_path, known).splitlines()
    }
    assert "已不存在" not in lines["artifacts/kept.dat"]
    assert f"{RUN}/G/1" in lines["artifacts/kept.dat"]
    assert "passed(通過)" in lines["artifacts/kept.dat"]
    assert "大小已變" in lines["artifacts/changed.dat"]
    assert "已不存在" in lines["artifacts/gone.dat"]
    assert "a\\|b c" in lines["artifacts/gone.dat"]
    assert "未登記" in lines["artifacts/by-hand.dat"]
    assert not {"artifacts/.half.dat", "artifacts/mlflow/copy.dat"} & set(lines)


@pytest.mark.parametrize("moved", [False, True])
def test_weight_on_its_way_is_listed_once_where_it_is(tmp_path: Path, moved: bool) -> None:
    write_weight(tmp_path, "artifacts/_trash/a.dat" if moved else "artifacts/a.dat")
    known = [weight("artifacts/a.dat", moved_to="artifacts/_trash/a.dat"), weight("artifacts/_trash/a.dat")]
    text = filelist.table(tmp_path / "artifacts", tmp_path, known)
    assert [line.split(" | ")[0] for line in text.splitlines() if ".dat" in line] == [
        "| artifacts/_trash/a.dat" if moved else "| artifacts/a.dat"
    ]
    assert "已不存在" not in text
