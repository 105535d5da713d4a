"""The index of a weight file, read and checked without torch: names, element types, shapes, offsets.

The container is TorchSharp's `exportsd` (`torch.nn.Module.save`): an unsigned LEB128 entry count, then for
each entry its key length and UTF-8 key, element type, number of dims and dims (all LEB128), and the row-major
little-endian payload. It has no padding, no table of contents and no checksum. Nothing in a file can execute:
keys are text, payloads are numbers.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from stages.process.errors import InputError

_MAX_NDIM = 64
_MIN_ENTRY_BYTES = 3  # key length, element type and number of dims take a byte each at least


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

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_SIZES.get(self, 1)


_ITEM_SIZES = {
    ElemType.INT16: 2,
    ElemType.FLOAT16: 2,
    ElemType.BFLOAT16: 2,
    ElemType.INT32: 4,
    ElemType.FLOAT32: 4,
    ElemType.INT64: 8,
    ElemType.FLOAT64: 8,
}


class DatError(InputError):
    """A file that is no weight file. Names the file, the byte offset and the entry."""

    def __init__(self, path: Path, offset: int, where: str, what: str) -> None:
        self.path, self.offset, self.where = path, offset, where
        super().__init__(f"{path}: byte {offset}: {where}: {what}")


@dataclass(frozen=True)
class Spec:
    """The header of one entry: all that the container says of it except its payload."""

    name: str
    elem_type: ElemType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Payload size in bytes."""
        return math.prod(self.shape) * self.elem_type.itemsize

    def header(self) -> bytes:
        """The entry's bytes before its payload."""
        key = self.name.encode("utf-8")
        numbers = [int(self.elem_type), len(self.shape), *self.shape]
        return leb128(len(key)) + key + b"".join(leb128(n) for n in numbers)


@dataclass(frozen=True)
class Entry(Spec):
    """An entry of a file."""

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


def read_index(path: Path) -> dict[str, Entry]:
    """The entries of a weight file by name, in file order. Payloads are not read.

    Raises:
        DatError: see `parse_index`.
        OSError: if the file cannot be opened.
    """
    with path.open("rb") as file, map_file(path, file) as data:
        return parse_index(path, data)


def map_file(path: Path, file: BinaryIO) -> mmap.mmap:
    """Maps an open file for reading. Raises DatError if it is empty."""
    if os.fstat(file.fileno()).st_size == 0:
        raise DatError(path, 0, "header", "the file is empty")
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def parse_index(path: Path, data: mmap.mmap) -> dict[str, Entry]:
    """The entries of a mapped weight file by name, in file order.

    Raises:
        DatError: if it is no weight file, naming the entry and the offset. Lengths are checked against the
            file's size before anything is allocated.
    """
    return {entry.name: entry for entry in _entries(_Cursor(path, data))}


class _Cursor:
    """Reads LEB128 numbers and keys from a mapped file, never past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.offset, self.where = path, data, 0, "header"

    def error(self, what: str, at: int | None = None) -> DatError:
        return DatError(self.path, self.offset if at is None else at, self.where, what)

    @property
    def left(self) -> int:
        return len(self.data) - self.offset

    def number(self, what: str) -> int:
        start, value = self.offset, 0
        for shift in range(0, 70, 7):
            if self.left == 0:
                raise self.error(f"the file ends inside the {what}", start)
            byte = self.data[self.offset]
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 63:
                    raise self.error(f"the {what} is {value}, more than any file holds", start)
                return value
        raise self.error(f"the {what} is no LEB128 number: ten bytes without an end", start)

    def key(self, length: int) -> str:
        if length > self.left:
            raise self.error(
                f"the key needs {length} bytes, {self.left} are left: the file is cut or damaged"
            )
        start, self.offset = self.offset, self.offset + length
        try:
            return self.data[start : self.offset].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error("the key is not UTF-8", start + error.start) from None


def _entries(cursor: _Cursor) -> Iterator[Entry]:
    count = cursor.number("entry count")
    if count * _MIN_ENTRY_BYTES > cursor.left:
        what = f"{count} entries do not fit in {cursor.left} bytes: no TorchSharp weight file, or damaged"
        raise cursor.error(what, 0)
    seen: set[str] = set()
    for index in range(count):
        cursor.where = f"entry {index} of {count}"
        start = cursor.offset
        name = cursor.key(cursor.number("key length"))
        cursor.where = f"entry {index} of {count} ({name[:80]!r})"
        if name in seen:
            raise cursor.error("the key stands twice", start)
        seen.add(name)
        yield _entry(cursor, name)
    cursor.where = "end"
    if cursor.left:
        raise cursor.error(f"{cursor.left} bytes follow the last entry: the entry count or a shape is wrong")


def _entry(cursor: _Cursor, name: str) -> Entry:
    at = cursor.offset
    number = cursor.number("element type")
    if number not in ElemType._value2member_map_:
        raise cursor.error(f"element type {number} is unknown", at)
    at = cursor.offset
    ndim = cursor.number("number of dims")
    if ndim > _MAX_NDIM:
        raise cursor.error(f"{ndim} dims; no tensor has more than {_MAX_NDIM}", at)
    shape = tuple(cursor.number(f"dim {i}") for i in range(ndim))
    entry = Entry(name, ElemType(number), shape, cursor.offset)
    if entry.nbytes > cursor.left:
        shown = "x".join(map(str, shape)) or "scalar"
        what = f"payload of {shown} needs {entry.nbytes} bytes, {cursor.left} are left"
        raise cursor.error(f"{what}: the file is cut or damaged")
    cursor.offset += entry.nbytes
    return entry
