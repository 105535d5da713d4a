"""Files that appear whole or not at all: written under another name, hashed, synced, then renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, the user's share of it, or the largest file allowed."""
_LARGE = 1 << 20
"""Bytes from which hashing in a second thread is faster."""
Buffer = bytes | bytearray | memoryview


class OutputExistsError(FileExistsError):
    """The output exists already; nothing is ever overwritten."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.EEXIST,
            f"{path}: exists already and is never overwritten: move it away or choose another name",
        )


class NoSpaceError(OSError):
    """The disk has too little space."""

    def __init__(self, path: Path, needed: int, free: int) -> None:
        sizes = f"needs {needed / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free"
        super().__init__(errno.ENOSPC, f"{path}: {sizes}: free some space or write elsewhere")


def require_new(path: Path) -> None:
    """Raises OutputExistsError if `path` exists, if only as a dangling link."""
    if os.path.lexists(path):
        raise OutputExistsError(path)


def require_space(path: Path, needed: int) -> None:
    """Raises NoSpaceError unless the file system of `path` has `needed` bytes free. Its folder must exist."""
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise NoSpaceError(path, needed, free)


class HashingWriter:
    """Writes to a binary file, with the SHA-256 and the number of bytes written.

    Args:
        file: Is written to.
        pool: Hashes large buffers while they are written and the next ones are made; hashing and writing
            both release the interpreter lock.
    """

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self._file, self._pool = file, pool
        self._sha256 = hashlib.sha256()
        self._hashing: Future[None] | None = None
        self.nbytes = 0

    def write(self, data: Buffer) -> None:
        """Writes all of `data`, a contiguous buffer that must not change until the next call returns."""
        self._wait()
        size = memoryview(data).nbytes
        if size < _LARGE:
            self._sha256.update(data)
        else:
            self._hashing = self._pool.submit(self._sha256.update, data)
        self._file.write(data)
        self.nbytes += size

    @property
    def sha256(self) -> str:
        """Hex digest of everything written so far."""
        self._wait()
        return self._sha256.hexdigest()

    def _wait(self) -> None:
        if self._hashing is not None:
            self._hashing.result()
            self._hashing = None


@contextmanager
def new_file(path: Path, needed: int = 0) -> Iterator[HashingWriter]:
    """A writer whose file gets its name only when the block ends without an exception.

    Args:
        path: Must not exist. Its folder is made if missing.
        needed: Bytes that will be written, compared with the free space first; 0 if not known.

    Raises:
        OutputExistsError: if `path` exists, before or after writing.
        NoSpaceError: if the disk is too full, before or while writing. Nothing is left behind.
    """
    require_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    require_space(path, needed)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with ThreadPoolExecutor(1) as pool, partial.open("xb") as file:
            writer = HashingWriter(file, pool)
            yield writer
            file.flush()
            os.fsync(file.fileno())
        publish(partial, path)
    except OSError as error:
        if error.errno in _FULL and not isinstance(error, NoSpaceError):
            raise NoSpaceError(path, needed, shutil.disk_usage(path.parent).free) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def publish(partial: Path, path: Path) -> None:
    """Gives a whole, synced file its name. `partial` may still exist afterwards; the caller removes it.

    Raises:
        OutputExistsError: if the name is taken.
    """
    # A link fails where the name is taken. A rename would overwrite; it is for file systems without links.
    try:
        os.link(partial, path)
    except FileExistsError:
        raise OutputExistsError(path) from None
    except OSError:
        require_new(path)
        partial.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the names in `folder`, so that they survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_new_text(path: Path, text: str) -> None:
    """Writes a new UTF-8 text file, whole or not at all."""
    data = text.encode("utf-8")
    with new_file(path, len(data)) as writer:
        writer.write(data)


def sha256_of(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hex SHA-256 of a file, read in blocks of 4 MiB.

    Args:
        path: The file.
        progress: Called with the size of each block in bytes.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            if progress:
                progress(len(block))
    return digest.hexdigest()
