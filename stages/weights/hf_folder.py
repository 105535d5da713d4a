"""A Hugging Face model folder: one safetensors file, or shards with an index; read by slices, streamed out.

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

from stages.process.errors import InputProblems
from stages.process.files import Buffer, new_file, write_new_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class FolderError(InputProblems):
    """A model folder that cannot be read or converted."""


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
    """Name, file, shape and dtype of every tensor of a folder; no payload is read.

    Raises:
        FolderError: listing files that are missing or damaged, and tensors that are not in the file that the
            index names.
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
            if name not in found or found[name].file.name != file
        ]
    if problems:
        raise FolderError(folder, problems)
    return found


def _tensors(path: Path) -> dict[str, StoredTensor]:
    with safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return {name: StoredTensor(path, tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}


def read_rows(tensor: StoredTensor, name: str, slices: Iterable[slice]) -> Iterator[torch.Tensor]:
    """Yields row chunks of a tensor. The file is mapped for this tensor only: that bounds resident memory."""
    with safe_open(tensor.file, framework="pt") as file:
        whole = file.get_slice(name)
        for rows in slices:
            yield whole[rows.start : rows.stop]


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor to be written; `chunks` makes its bytes when it is written."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: Callable[[], Iterable[Buffer]]

    @property
    def nbytes(self) -> int:
        """Payload size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_shards(folder: Path, tensors: list[TensorToWrite], shard_bytes: int) -> None:
    """Streams `model.safetensors`, or numbered shards and their index. Memory: the largest chunk.

    Args:
        folder: Where the files go.
        tensors: In file order.
        shard_bytes: A new file begins where the next tensor would pass this; a single tensor may be larger.
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
            for chunk in tensor.chunks():
                writer.write(chunk)
            if writer.nbytes - before != tensor.nbytes:
                sizes = f"{writer.nbytes - before} bytes, {tensor.nbytes} were announced"
                raise ValueError(f"{path}: {tensor.name}: {sizes}")
