"""The weight file: TorchSharp's `exportsd` container, read by mapping and written by streaming.

Layout (TorchSharp, `torch.nn.Module.save`): an unsigned LEB128 entry count, then for each entry its key
length and UTF-8 key, element type, number of dims and dims (all LEB128), and the row-major little-endian
payload. No padding, index or checksum. Nothing in a file can execute: keys are text, payloads are numbers.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

from stages.process.files import Buffer, new_file

_MAX_NDIM = 64
_SHARE = 1 << 22  # bytes that one thread reads at a time
_MIN_ENTRY_BYTES = 3  # key length, element type and ndim take a byte each at least


class ElemType(IntEnum):
    """Element types of the container: torch's scalar types, and two byte types of the NVFP4 bundles."""

    UINT8 = 0
    INT8 = 1
    INT16 = 2
    INT32 = 3
    INT64 = 4
    FLOAT16 = 5
    FLOAT32 = 6
    FLOAT64 = 7
    BOOL = 11
    BFLOAT16 = 15
    RAW = 100
    E4M3 = 101
    """FP8 E4M3FN, one byte. Its bytes are no numbers until they are decoded."""


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


class DatError(ValueError):
    """A file that is no weight file. Names the file, the byte offset and the entry."""

    def __init__(self, path: Path, offset: int, where: str, what: str) -> None:
        self.path, self.offset, self.where = path, offset, where
        super().__init__(f"{path}: byte {offset}: {where}: {what}")


@dataclass(frozen=True)
class Spec:
    """What the container says of one entry, its payload aside."""

    name: str
    elem_type: ElemType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Payload size in bytes."""
        return math.prod(self.shape) * TORCH_DTYPES[self.elem_type].itemsize

    def header(self) -> bytes:
        """The entry's bytes before its payload."""
        key = self.name.encode("utf-8")
        numbers = [int(self.elem_type), len(self.shape), *self.shape]
        return leb128(len(key)) + key + b"".join(leb128(n) for n in numbers)


@dataclass(frozen=True)
class Entry(Spec):
    """An entry of an open file."""

    offset: int
    """Byte offset of the payload."""


def leb128(value: int) -> bytes:
    """Unsigned LEB128 of a number that is 0 or more."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class DatFile:
    """An open weight file. The index is read at once; payloads are read when they are asked for.

    Raises:
        DatError: if the file is no weight file, naming the entry and the offset. Lengths are checked against
            the file's size before anything is allocated.
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb", buffering=0)
        try:
            self.nbytes = os.fstat(self._file.fileno()).st_size
            if self.nbytes == 0:
                raise DatError(path, 0, "header", "the file is empty")
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self.entries: dict[str, Entry] = {e.name: e for e in _read_index(path, self._map)}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> DatFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the map and the file. Views from `raw` must be gone by then."""
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
            # Reading straight into the tensor: the map would problem page by page, and payloads are not
            # aligned.
            self._read_into(_bytes_of(out), entry.offset + start, name)
        return out

    def pieces(self, name: str, size: int = 1 << 22) -> Iterator[memoryview]:
        """The payload of `name` in pieces of two buffers, each valid until the next but one is asked for.
        Memory: 2 × `size` bytes.
        """
        entry = self.entries[name]
        buffers = cycle(
            memoryview(bytearray(min(size, entry.nbytes))) for _ in range(2 if entry.nbytes > size else 1)
        )
        for start, buffer in zip(range(0, entry.nbytes, size), buffers, strict=False):
            piece = buffer[: min(size, entry.nbytes - start)]
            self._read(piece, entry.offset + start, name)
            yield piece

    def _read_into(self, view: memoryview, offset: int, name: str) -> None:
        if len(view) < 2 * _SHARE:
            self._read(view, offset, name)
            return
        # Memory that is new must be cleared by the system before it is filled: that is most of the work, and
        # threads share it.
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for done in [
                pool.submit(self._read, view[at : at + _SHARE], offset + at, name)
                for at in range(0, len(view), _SHARE)
            ]:
                done.result()

    def _read(self, view: memoryview, offset: int, name: str) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self._file.fileno(), [view[done : done + (1 << 30)]], offset + done)
            if count == 0:
                raise DatError(
                    self.path, offset + done, f"entry {name!r}", "the file became shorter while it was read"
                )
            done += count


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialized memory. Large arrays of numpy lie on huge pages where the system has them: 512 times
    fewer page problems.
    """
    count = math.prod(shape) * dtype.itemsize
    if count < _SHARE:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.empty(count, dtype=np.uint8)).view(dtype).view(shape)


class _Cursor:
    """Reads LEB128 numbers and keys from a mapped file, never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.offset, self.where = path, data, 0, "header"

    def fail(self, what: str, at: int | None = None) -> DatError:
        return DatError(self.path, self.offset if at is None else at, self.where, what)

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def number(self, what: str) -> int:
        start, value = self.offset, 0
        for shift in range(0, 70, 7):
            if self.left == 0:
                raise self.fail(f"the file ends inside the {what}", start)
            byte = self.data[self.offset]
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 63:
                    raise self.fail(f"the {what} is {value}, more than any file holds", start)
                return value
        raise self.fail(f"the {what} is no LEB128 number: ten bytes without an end", start)

    def key(self, length: int) -> str:
        if length > self.left:
            raise self.fail(
                f"the key is said to have {length} bytes, {self.left} are left: the file is cut or damaged"
            )
        start, self.offset = self.offset, self.offset + length
        try:
            return self.data[start : self.offset].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("the key is not UTF-8", start + error.start) from None


def _read_index(path: Path, data: mmap.mmap) -> Iterator[Entry]:
    cursor = _Cursor(path, data)
    count = cursor.number("entry count")
    if count * _MIN_ENTRY_BYTES > cursor.left:
        raise cursor.fail(
            f"{count} entries do not fit in {cursor.left} bytes: no TorchSharp weight file, or damaged", 0
        )
    seen: set[str] = set()
    for index in range(count):
        cursor.where = f"entry {index} of {count}"
        start = cursor.offset
        name = cursor.key(cursor.number("key length"))
        cursor.where = f"entry {index} of {count} ({name[:80]!r})"
        if name in seen:
            raise cursor.fail("the key stands twice", start)
        seen.add(name)
        yield _read_entry(cursor, name)
    cursor.where = "end"
    if cursor.left:
        raise cursor.fail(f"{cursor.left} bytes follow the last entry: the entry count or a shape is wrong")


def _read_entry(cursor: _Cursor, name: str) -> Entry:
    at = cursor.offset
    number = cursor.number("element type")
    if number not in ElemType._value2member_map_:
        raise cursor.fail(f"element type {number} is unknown", at)
    at = cursor.offset
    ndim = cursor.number("number of dims")
    if ndim > _MAX_NDIM:
        raise cursor.fail(f"{ndim} dims; no tensor has more than {_MAX_NDIM}", at)
    shape = tuple(cursor.number(f"dim {i}") for i in range(ndim))
    entry = Entry(name, ElemType(number), shape, cursor.offset)
    if entry.nbytes > cursor.left:
        shown = "x".join(map(str, shape)) or "scalar"
        raise cursor.fail(
            f"payload of {shown} needs {entry.nbytes} bytes, {cursor.left} are left: the file is cut or damaged"
        )
    cursor.offset += entry.nbytes
    return entry


Payload = Callable[[], Iterable[Buffer]]
"""Gives an entry's payload in pieces, when its turn comes. A piece stays as it is until the next but one is
asked for.
"""


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The little-endian bytes of a tensor, moved to the CPU if it lies elsewhere."""
    tensor = tensor.detach().cpu().contiguous()
    return _bytes_of(tensor) if tensor.numel() else memoryview(b"")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A writable view of a contiguous CPU tensor's bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True)
class WrittenFile:
    """A file that was written: its hash and size."""

    sha256: str
    nbytes: int


def write_dat(path: Path, items: Iterable[tuple[Spec, Payload]]) -> WrittenFile:
    """Streams a new weight file; it appears whole or not at all.

    Args:
        path: Must not exist.
        items: Entries in order. Memory is bounded by the two largest pieces that a payload gives.

    Raises:
        OutputExistsError, NoSpaceError: see `stages.process.files.new_file`.
        ValueError: if a payload is not as long as its entry says, or a name stands twice.
    """
    entries = list(items)
    names = [spec.name for spec, _ in entries]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: entries written twice: {sorted({n for n in names if names.count(n) > 1})}")
    needed = len(leb128(len(entries))) + sum(len(spec.header()) + spec.nbytes for spec, _ in entries)
    with new_file(path, needed) as writer:
        writer.write(leb128(len(entries)))
        for spec, payload in entries:
            writer.write(spec.header())
            before = writer.nbytes
            for piece in payload():
                writer.write(piece)
            if writer.nbytes - before != spec.nbytes:
                raise ValueError(
                    f"{path}: {spec.name}: payload of {writer.nbytes - before} bytes, {spec.nbytes} were announced"
                )
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
        return lambda: source.pieces(name)

    return write_dat(
        path, [(entry, replaced.get(name) or copy(name)) for name, entry in source.entries.items()]
    )


if __name__ == "__main__":
    from stages.weights.dat_tool import main  # imports this module

    raise SystemExit(main())
