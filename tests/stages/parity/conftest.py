"""A weight file with a NaN in it, and the points of the network that a report of the tiny model has."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.weights.dat import DatFile

POINTS = [
    "embedding",
    *(f"layer {i} {part}" for i in range(2) for part in ("attention", "mlp")),
    "norm",
    "head",
]


def corrupted(source: Path, target: Path, name: str) -> Path:
    """A copy of a weight file with the first number of a plain entry set to NaN."""
    shutil.copyfile(source, target)
    with DatFile(source) as dat:
        entry = dat.entries[name]
        size = dat.tensor(name).element_size()
    with target.open("r+b") as file:
        file.seek(entry.offset)
        file.write(b"\xff" * (size - 1) + b"\x7f")
    return target
