"""檔案說明清單.md: a true table, and nothing of the user's touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.ledger.schema import WeightRow
from pipeline.ledger.weight_list import BEGIN, END, WeightListError, table, update
from tests.pipeline.ledger.samples import RUN, write_weight


def weight(path: str, moved_to: str = "", note: str = "") -> WeightRow:
    """A registered weight of six bytes."""
    return WeightRow(
        path, "f" * 64, 6, "", "", f"{RUN}/G/1", "passed", note, "2026-03-01T02:00:00.000000Z", moved_to
    )


def test_list_keeps_foreign_text_byte_for_byte(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    write_weight(tmp_path, "artifacts/a.dat")
    update(artifacts, tmp_path, [weight("artifacts/a.dat")])
    path = artifacts / "檔案說明清單.md"
    before, after = "我的筆記\r\n| 自己的表 |\n".encode(), b"\xff\xfe not UTF-8\n<!-- mine -->"
    held = path.read_bytes()
    held = held[held.index(BEGIN.encode()) : held.index(END.encode()) + len(END)]
    path.write_bytes(before + held + after)
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
    with pytest.raises(WeightListError, match=r"檔案說明清單.*missing"):
        update(tmp_path, tmp_path, [])
    assert path.read_text() == text


def test_list_says_what_is_gone_changed_and_unknown(tmp_path: Path) -> None:
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
        line.split(" | ")[0][2:]: line for line in table(tmp_path / "artifacts", tmp_path, known).splitlines()
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
    text = table(tmp_path / "artifacts", tmp_path, known)
    assert [line.split(" | ")[0] for line in text.splitlines() if ".dat" in line] == [
        "| artifacts/_trash/a.dat" if moved else "| artifacts/a.dat"
    ]
    assert "已不存在" not in text
