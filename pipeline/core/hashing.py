"""SHA-256 of files and of plain data: how weights, data and attempts are known. Files are streamed, never
read whole.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stages.contract.serial import to_jsonable

_CHUNK = 1 << 20
_known: dict[tuple[str, int, int], str] = {}


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hexadecimal digits.

    A file that was hashed before and has the same path, size and modification time is not read again. The
    memory of this lasts as long as the process: nothing stale can lie about on disk.

    Raises:
        OSError: if the file cannot be read.
    """
    status = path.stat()
    key = (str(path.absolute()), status.st_size, status.st_mtime_ns)
    if key not in _known:
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        _known[key] = digest.hexdigest()
    return _known[key]


def sha256_data(value: Any) -> str:
    """SHA-256 of plain data as canonical JSON: equal values give equal digests whatever the order of their
    keys.
    """
    text = json.dumps(to_jsonable(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_sources(folder: Path) -> str:
    """SHA-256 of all Python sources below a folder, by relative name and content."""
    files = sorted(path for path in folder.rglob("*.py"))
    return sha256_data([[path.relative_to(folder).as_posix(), sha256_file(path)] for path in files])
