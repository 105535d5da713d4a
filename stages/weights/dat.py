"""The weight file: read by mapping, written by streaming. `stages.weights.dat_index` has its layout."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

from stages.process.files import Buffer, new_file
from stages.weights.dat_index import DatError, ElemType, Entry, Spec, leb128, map_file, parse_index

_READ_BYTES = 1 << 22  # that one thread reads at a time

TORCH_DTYPES: dict[ElemType, torch.dtype] = {
    ElemType.UINT8: torch.uint8,
    ElemType.INT8: torch.int8,
    ElemType.INT16: torch.int16,
    ElemType.INT32: torch.int32,
    ElemType.INT64: torch.int64,
    ElemType.FLOAT16: torch.float16,
    ElemType.FLOAT32: torch.float32,
    ElemType.FLOAT64: torch.float64,
    ElemType.BOOL: torch.bool,
    ElemType.BFLOAT16: torch.bfloat16,
    ElemType.RAW: torch.uint8,
    ElemType.E4M3: torch.float8_e4m3fn,
}


class DatFile:
    """An open weight file. The index is read at once, payloads on request.

    Raises:
        DatError: see `stages.weights.dat_index.parse_index`.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        try:
            self._map = map_file(path, self._file)
            self.nbytes = len(self._map)
            self.entries: dict[str, Entry] = parse_index(path, self._map)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> DatFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the map and the file. Views from `raw` must be released before."""
        self._map.close()
        self._file.close()

    def raw(self, name: str) -> memoryview:
        """The payload of `name` as a view of the map: read-only bytes, no copy. Release it before `close`."""
        entry = self.entries[name]
        return memoryview(self._map)[entry.offset : entry.offset + entry.nbytes]

    def tensor(self, name: str, rows: slice | None = None) -> torch.Tensor:
        """Reads a payload into a new tensor of the entry's shape and dtype (`E4M3` as `torch.float8_e4m3fn`).

        Args:
            name: The entry.
            rows: Only these rows of the first dimension (step 1).
        """
        entry = self.entries[name]
        shape, start = entry.shape, 0
        if rows is not None:
            first, last, _ = rows.indices(shape[0])
            start = first * (entry.nbytes // shape[0]) if shape[0] else 0
            shape = (max(0, last - first), *shape[1:])
        out = _empty(shape, TORCH_DTYPES[entry.elem_type])
        if out.numel():
            # Read straight into the tensor: the map would fault page by page, and payloads are not aligned.
            self._read_parallel(_bytes_of(out), entry.offset + start, name)
        return out

    def chunks(self, name: str, size: int = 1 << 22) -> Iterator[memoryview]:
        """The payload of `name` in chunks of `size` bytes, read into two buffers in turn.

        A chunk is valid until the next but one is requested. Memory: 2 × `size` bytes.
        """
        entry = self.entries[name]
        buffers = cycle(
            memoryview(bytearray(min(size, entry.nbytes))) for _ in range(2 if entry.nbytes > size else 1)
        )
        for start, buffer in zip(range(0, entry.nbytes, size), buffers, strict=False):
            chunk = buffer[: min(size, entry.nbytes - start)]
            self._read(chunk, entry.offset + start, name)
            yield chunk

    def _read_parallel(self, view: memoryview, offset: int, name: str) -> None:
        if len(view) < 2 * _READ_BYTES:
            self._read(view, offset, name)
            return
        # The system clears new memory before it is filled: that is most of the work, and threads share it.
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            reads = [
                pool.submit(self._read, view[at : at + _READ_BYTES], offset + at, name)
                for at in range(0, len(view), _READ_BYTES)
            ]
            for read in reads:
                read.result()

    def _read(self, view: memoryview, offset: int, name: str) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self._file.fileno(), [view[done : done + (1 << 30)]], offset + done)
            if count == 0:
                what = "the file became shorter while it was read"
                raise DatError(self.path, offset + done, f"entry {name!r}", what)
            done += count


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialized memory. numpy puts large arrays on huge pages where the system has them: 512 times fewer
    page faults.
    """
    count = math.prod(shape) * dtype.itemsize
    if count < _READ_BYTES:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(count, dtype=np.uint8)).view(dtype).view(shape)


Payload = Callable[[], Iterable[Buffer]]
"""Makes the chunks of an entry's payload, called when the entry is written. A chunk must stay unchanged until
the next but one is requested.
"""
EntryToWrite = tuple[Spec, Payload]


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The little-endian bytes of a tensor, copied to the CPU if it lies elsewhere."""
    tensor = tensor.detach().cpu().contiguous()
    return _bytes_of(tensor) if tensor.numel() else memoryview(b"")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A writable view of a contiguous CPU tensor's bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True)
class WrittenFile:
    """Hash and size of a file that was written."""

    sha256: str
    nbytes: int


def write_dat(path: Path, entries: Iterable[EntryToWrite]) -> WrittenFile:
    """Streams a new weight file; it appears whole or not at all.

    Args:
        path: Must not exist.
        entries: In file order. Memory is bounded by the two largest chunks of a payload.

    Raises:
        OutputExistsError, NoSpaceError: see `stages.process.files.new_file`.
        ValueError: if a payload is not as long as its header says, or two entries have one name.
    """
    entries = list(entries)
    names = [spec.name for spec, _ in entries]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: entries written twice: {sorted({n for n in names if names.count(n) > 1})}")
    needed = len(leb128(len(entries))) + sum(len(spec.header()) + spec.nbytes for spec, _ in entries)
    with new_file(path, needed) as writer:
        writer.write(leb128(len(entries)))
        for spec, payload in entries:
            writer.write(spec.header())
            before = writer.nbytes
            for chunk in payload():
                writer.write(chunk)
            if writer.nbytes - before != spec.nbytes:
                sizes = f"payload of {writer.nbytes - before} bytes, {spec.nbytes} were announced"
                raise ValueError(f"{path}: {spec.name}: {sizes}")
        return WrittenFile(writer.sha256, writer.nbytes)


def rewrite(source: DatFile, path: Path, replaced: Mapping[str, Payload]) -> WrittenFile:
    """Writes `source` again with some payloads replaced: same entries, order and element types, the others
    byte for byte.

    Raises:
        KeyError: if `replaced` names an entry that `source` does not have.
    """
    unknown = sorted(set(replaced) - set(source.entries))
    if unknown:
        raise KeyError(f"{source.path}: has no entry {', '.join(unknown)}")

    def copy(name: str) -> Payload:
        return lambda: source.chunks(name)

    return write_dat(
        path, [(entry, replaced.get(name) or copy(name)) for name, entry in source.entries.items()]
    )
