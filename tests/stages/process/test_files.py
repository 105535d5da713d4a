"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stages.process import files
from stages.process.files import NoSpaceError, OutputExistsError, new_file, sha256_of, write_new_text


def test_hash_and_size_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a"
    with new_file(path) as writer:
        writer.write(b"ab")
        writer.write(memoryview(b"c"))
    assert path.read_bytes() == b"abc" and writer.nbytes == 3
    assert writer.sha256 == sha256_of(path) == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.fault("an error while a file is written", how="an exception in its middle")
def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_file(tmp_path / "a") as writer:
        writer.write(b"x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("a file's name is taken while it is written", how="another file put there")
def test_a_name_taken_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(OutputExistsError), new_file(path) as writer:
        writer.write(b"mine")
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and len(list(tmp_path.iterdir())) == 1


def test_a_file_system_without_links_is_served_by_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    write_new_text(tmp_path / "a", "文")
    assert (tmp_path / "a").read_text("utf-8") == "文"


@pytest.mark.fault("too little space for a file", how="an exbibyte asked for")
def test_too_little_space_is_said_before_writing(tmp_path: Path) -> None:
    with pytest.raises(NoSpaceError, match="are free"), new_file(tmp_path / "a", needed=1 << 60):
        pytest.fail("the block must not run")


@pytest.mark.fault("the disk is full while a file is written", how="/dev/full")
@pytest.mark.parametrize("size", [1, 3 << 20])
def test_a_disk_that_fills_up_leaves_the_old_state(tmp_path: Path, size: int) -> None:
    # /dev/full fails every write as a full disk does.
    with pytest.raises(NoSpaceError), new_file(tmp_path / "a") as writer:
        with Path("/dev/full").open("wb", buffering=0) as full, ThreadPoolExecutor(1) as beside:
            files.HashingWriter(full, beside).write(bytes(size))
        writer.write(b"y")
    assert list(tmp_path.iterdir()) == []


def test_bytes_are_synced_before_the_name_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(handle: int) -> None:
        fsync(handle)
        calls.append(
            "folder synced"
            if stat.S_ISDIR(os.fstat(handle).st_mode)
            else f"{os.fstat(handle).st_size} bytes synced"
        )

    def linked(*names: Path) -> None:
        link(*names)
        calls.append("named")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    with new_file(tmp_path / "a") as writer:
        writer.write(b"abc")
    assert calls == ["3 bytes synced", "named", "folder synced"]
