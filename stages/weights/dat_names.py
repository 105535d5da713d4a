"""Names of a weight file's entries without torch: their headers are read, their payloads passed over.
`stages.dat` checks the file.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import BinaryIO

_SIZES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 15: 2, 100: 1, 101: 1}
"""Bytes of an element by its type; see `stages.weights.dat.ElemType`."""


def entry_names(path: Path) -> list[str]:
    """The names in the order of the file; the layout stands in `stages.dat`.

    Raises:
        ValueError: if it is no weight file.
        OSError: if it cannot be read.
    """
    names: list[str] = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for _ in range(_number(file)):
            key = file.read(min(_number(file), size))
            elem_type = _number(file)
            shape = [_number(file) for _ in range(min(_number(file), size))]
            end = file.tell() + math.prod(shape) * _SIZES.get(elem_type, size)
            if end > size:
                raise ValueError(
                    f"{path}: entry {len(names)} ends after the file: no weight file, or a damaged one"
                )
            names.append(key.decode("utf-8"))
            file.seek(end)
    return names


def _number(file: BinaryIO) -> int:
    """An unsigned LEB128 number."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError(f"{file.name}: ends inside a number: no weight file, or a damaged one")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError(f"{file.name}: a number without an end: no weight file, or a damaged one")
