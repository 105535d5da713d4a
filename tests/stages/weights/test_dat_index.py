"""The index alone: damage is named, no torch is loaded."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.weights.dat import TORCH_DTYPES, DatFile
from stages.weights.dat_index import DatError, ElemType, leb128, read_index
from tests.conftest import TinyModel


@given(st.integers(0, 2**62))
def test_leb128_ends_and_counts_up(value: int) -> None:
    encoded = leb128(value)
    assert sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded)) == value
    assert len(encoded) == max(1, math.ceil(value.bit_length() / 7))


@pytest.mark.fault("a weight file is damaged in each known way", how="written so")
@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"\xff" * 9 + b"\x01", "no LEB128|more than any file"),
        (b"\x80" * 11, "no LEB128"),
        (b"\xff\xff\x7f" + b"\x00" * 30, "do not fit"),
        (b"\x01\xff\xff\x7fab" + b"\x00" * 9, "key needs 2097151 bytes"),
        (b"\x01\x01\xff\x06\x00" + b"\x00" * 4, "not UTF-8"),
        (b"\x01\x01a\x63\x00" + b"\x00" * 4, "element type 99"),
        (b"\x01\x01a\x06\x7f" + b"\x00" * 4, "127 dims"),
        (b"\x01\x01a\x06\x01\xff\xff\xff\xff\x0f" + b"\x00" * 4, "payload of 4294967295 needs"),
        (b"\x01\x01a\x06\x00" + b"\x00" * 5, "1 bytes follow the last entry"),
        (b"\x02\x01a\x00\x00\x00\x01a\x00\x00\x00", "stands twice"),
    ],
)
def test_each_kind_of_damage_is_named(tmp_path: Path, raw: bytes, says: str) -> None:
    path = tmp_path / "w.dat"
    path.write_bytes(raw)
    for reader in (read_index, DatFile):
        with pytest.raises(DatError, match=says):
            reader(path)


def test_sizes_are_torchs() -> None:
    assert {t: t.itemsize for t in ElemType} == {t: d.itemsize for t, d in TORCH_DTYPES.items()}


def test_the_index_is_that_of_the_open_file_and_needs_no_torch(tiny: TinyModel) -> None:
    with DatFile(tiny.weight) as dat:
        assert list(read_index(tiny.weight).items()) == list(dat.entries.items())
    code = "import sys; from stages.weights.dat_index import read_index; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_index(tmp_path / "none.dat")
