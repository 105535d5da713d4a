"""A Hugging Face model folder: safetensors files, one or many with an index, read by slices and written by
streaming.

The safetensors layout: 8 bytes little-endian header length, a JSON header of name → dtype, shape and data
    offsets, the payloads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from stages.process.files import Buffer, new_file, write_new_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class FolderError(ValueError):
    """A model folder that cannot be read. `problems` lists every reason."""

    def __init__(self, folder: Path, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"{folder}: {len(problems)} problem(s)\n" + "\n".join(f"  - {problem}" for problem in problems)
        )


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a folder."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """As safetensors writes it: `BF16`."""

    @property
    def nbytes(self) -> int:
        """Payload size in bytes."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def read_index(folder: Path) -> dict[str, StoredTensor]:
    """Name, place, shape and dtype of every tensor of a folder; no payload is read.

    Raises:
        FolderError: listing files that are missing or damaged, and names that the index places where they are
            not.
    """
    index, problems = folder / INDEX, []
    wanted: dict[str, str] = {}
    if index.is_file():
        try:
            wanted = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise FolderError(folder, [f"{INDEX}: no index of safetensors: {error!r}"]) from None
        files = sorted(set(wanted.values()))
    else:
        files = [SINGLE]
    found: dict[str, StoredTensor] = {}
    for file in files:
        try:
            found |= _tensors(folder / file)
        except (OSError, SafetensorError) as error:
            problems.append(f"{file}: {error}")
    if not problems:
        problems = [
            f"{INDEX}: {name} is said to be in {file}"
            for name, file in wanted.items()
            if _place(found, name) != file
        ]
    if problems:
        raise FolderError(folder, problems)
    return found


def _place(found: dict[str, StoredTensor], name: str) -> str | None:
    return found[name].file.name if name in found else None


def _tensors(path: Path) -> dict[str, StoredTensor]:
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return {name: StoredTensor(path, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}


def read_rows(tensor: StoredTensor, name: str, slices: Iterable[slice]) -> Iterator[torch.Tensor]:
    """Yields rows of a tensor. The file is mapped for this tensor only, so resident memory is bounded by it."""
    with safe_open(tensor.file, framework="pt") as file:
        whole = file.get_slice(name)
        for piece in slices:
            yield whole[piece.start : piece.stop]


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor to be written; `pieces` gives its bytes when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Callable[[], Iterable[Buffer]]

    @property
    def nbytes(self) -> int:
        """Payload size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_shards(folder: Path, tensors: list[TensorToWrite], shard_bytes: int) -> None:
    """Writes `model.safetensors`, or numbered shards and their index, each streamed. Memory is bounded by the
    largest piece.

    Args:
        shard_bytes: A new file begins where the next tensor would pass this; a single tensor may.
    """
    shards: list[list[TensorToWrite]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(t.nbytes for t in shards[-1]) + tensor.nbytes > shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    if len(shards) == 1:
        _write_one(folder / SINGLE, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_one(folder / file, shard)
        weight_map |= {tensor.name: file for tensor in shard}
    total = sum(tensor.nbytes for tensor in tensors)
    write_new_text(
        folder / INDEX, json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1)
    )


def _write_one(path: Path, tensors: list[TensorToWrite]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # payloads begin aligned
    with new_file(path, 8 + len(text) + end) as writer:
        writer.write(len(text).to_bytes(8, "little"))
        writer.write(text)
        for tensor in tensors:
            before = writer.nbytes
            for piece in tensor.pieces():
                writer.write(piece)
            if writer.nbytes - before != tensor.nbytes:
                raise ValueError(
                    f"{path}: {tensor.name}: {writer.nbytes - before} bytes, {tensor.nbytes} were announced"
                )
