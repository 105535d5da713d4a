"""Files that are replaced whole: the new one is written beside the old one, synced, and renamed over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` when the block ends without an exception.

    The content is synced to the disk before the renaming, and the renaming before this returns. A reader sees
    the old file or the new one, whole.

    Args:
        path: its folder must exist.

    Raises:
        OSError: if it cannot be written; the old file is unchanged, and nothing is left beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        _sync(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    _sync(path.parent)


def replace_bytes(path: Path, data: bytes) -> None:
    """Replaces the content of a file, as `replacing` does."""
    with replacing(path) as aside:
        aside.write_bytes(data)


def replace_text(path: Path, text: str) -> None:
    """Replaces the text of a file, in UTF-8, as `replacing` does."""
    replace_bytes(path, text.encode())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
