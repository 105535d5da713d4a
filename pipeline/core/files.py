"""Files that are replaced whole: written beside their place, synced, then renamed over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` when the block ends without an exception.

    The content is on the disk before the name is, and the name before this returns. A reader sees the old file or
    the new one, whole.

    Args:
        path: its folder must exist.

    Raises:
        OSError: if it cannot be written; the old file is as it was, and nothing is left beside it.
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
    """Gives a file new content, as `replacing` does."""
    with replacing(path) as aside:
        aside.write_bytes(data)


def replace_text(path: Path, text: str) -> None:
    """Gives a file new text in UTF-8, as `replacing` does."""
    replace_bytes(path, text.encode())


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
