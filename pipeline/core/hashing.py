"""SHA-256 of files and of plain data, which identifies weights, data and attempts. Files are streamed."""

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

    A file that this process has hashed before is not read again while its path, size and modification time
    are the same.

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
    """SHA-256 of plain data as canonical JSON; the order of keys makes no difference."""
    text = json.dumps(to_jsonable(value), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
