"""SHA-256 of files and plain data."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from pipeline.core.hashing import sha256_data, sha256_file


def test_the_hash_of_a_file_follows_its_content(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(os.urandom(3 << 20))
    assert sha256_file(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    before = sha256_file(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))
    assert sha256_file(file) != before


def test_a_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weight"
    file.write_bytes(b"x")
    before = sha256_file(file)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("read again"))
    assert sha256_file(file) == before


def test_the_hash_of_data_depends_on_values_and_not_on_the_order_of_keys() -> None:
    assert sha256_data({"a": 1, "b": [2]}) == sha256_data({"b": [2], "a": 1})
    assert sha256_data({"a": 1}) != sha256_data({"a": 1.5})
