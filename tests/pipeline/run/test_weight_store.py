"""Where judged weights go: by their hash, and never over anything."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pipeline.run import weight_store


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    def weight(name: str, text: str) -> tuple[Path, str]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name, hashlib.sha256(text.encode()).hexdigest()

    made, sha = weight("weight.dat", "one")
    place = weight_store.kept_place(made, tmp_path / "kept", "G", sha)
    weight_store.move(made, place, sha)
    assert (place.name, place.read_text(encoding="utf-8")) == (f"G-{sha[:8]}.dat", "one")
    twin, _ = weight("weight.dat", "one")
    assert weight_store.kept_place(twin, tmp_path / "kept", "G", sha) == place
    weight_store.move(twin, place, sha)
    assert not twin.exists() and place.read_text(encoding="utf-8") == "one"
    other, other_sha = weight("weight.dat", "two")
    with pytest.raises(FileExistsError):
        weight_store.move(other, place, other_sha)
    place.write_text("changed by hand", encoding="utf-8")
    again, _ = weight("weight.dat", "one")
    longer = weight_store.kept_place(again, tmp_path / "kept", "G", sha)
    assert longer.name == f"G-{sha[:16]}.dat"
