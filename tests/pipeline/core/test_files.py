"""Replacing files whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.core.files import replace_text, replacing


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("one", "兩"):
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError), replacing(path) as aside:
        aside.write_text("half of the n", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
        raise RuntimeError
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]
