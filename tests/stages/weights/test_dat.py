"""The weight file: round trips by property, and damaged files by fuzzing."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.process import files
from stages.process.files import OutputExistsError, sha256_of
from stages.weights.dat import TORCH_DTYPES, DatFile, rewrite, tensor_bytes, write_dat
from stages.weights.dat_index import DatError, ElemType, Spec, leb128

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SPECS = st.builds(Spec, KEYS, st.sampled_from(ElemType), st.lists(st.integers(0, 5), max_size=4).map(tuple))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.dat"


def _write(path: Path, specs: list[Spec], seed: int = 0) -> dict[str, bytes]:
    path.unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(seed)
    payloads = {
        s.name: bytes(torch.randint(0, 256, (s.nbytes,), generator=generator, dtype=torch.uint8).numpy())
        for s in specs
    }
    write_dat(path, [(s, lambda s=s: [payloads[s.name]]) for s in specs])
    return payloads


@QUICK
@given(specs=st.lists(SPECS, max_size=6, unique_by=lambda s: s.name), seed=st.integers(0, 99))
def test_what_is_written_is_read_in_order_and_written_again_to_the_same_bytes(
    path: Path, specs: list[Spec], seed: int
) -> None:
    payloads = _write(path, specs, seed)
    again = path.with_name("again.dat")
    again.unlink(missing_ok=True)
    with DatFile(path) as dat:
        assert [(e.name, e.elem_type, e.shape) for e in dat.entries.values()] == [
            (s.name, s.elem_type, s.shape) for s in specs
        ]
        for spec in specs:
            tensor = dat.tensor(spec.name)
            assert tensor.dtype == TORCH_DTYPES[spec.elem_type] and tuple(tensor.shape) == spec.shape
            assert bytes(tensor_bytes(tensor)) == payloads[spec.name]
            with dat.raw(spec.name) as view:
                assert bytes(view) == payloads[spec.name]
        rewrite(dat, again, {})
    assert again.read_bytes() == path.read_bytes()


def test_layout_is_torchsharps(path: Path) -> None:
    spec = Spec("a.重", ElemType.INT16, (1, 2))
    write_dat(path, [(spec, lambda: [b"\x01\x02", b"\x03\x04"])])
    key = "a.重".encode()
    assert (
        path.read_bytes()
        == b"\x01" + bytes([len(key)]) + key + b"\x02" + b"\x02\x01\x02" + b"\x01\x02\x03\x04"
    )


@pytest.mark.fault("a weight file is damaged", how="bits and bytes changed, cuts: as hypothesis finds them")
@settings(max_examples=300, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_gives_one_clear_error_or_reads_within_its_bounds(
    path: Path, data: st.DataObject
) -> None:
    specs = [
        Spec("w.qdata", ElemType.UINT8, (4, 8)),
        Spec("w.scale", ElemType.E4M3, (4, 1)),
        Spec("n", ElemType.FLOAT16, ()),
    ]
    _write(path, specs)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1)) if damaged else 0
        match data.draw(st.sampled_from(["flip", "cut", "insert"])):
            case "flip" if damaged:
                damaged[at] ^= data.draw(st.integers(1, 255))
            case "cut":
                del damaged[at:]
            case _:
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    path.write_bytes(damaged)
    tracemalloc.start()
    try:
        with DatFile(path) as dat:
            for name, entry in dat.entries.items():
                assert entry.offset + entry.nbytes <= len(damaged)
                dat.tensor(name)
    except DatError as error:
        assert str(path) in str(error) and 0 <= error.offset <= len(damaged)
        assert error.where == "header" or error.where.startswith(("entry", "end"))
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20


def test_rows_are_read_alone(path: Path) -> None:
    values = torch.arange(24, dtype=torch.float32).view(6, 4)
    write_dat(path, [(Spec("a", ElemType.FLOAT32, (6, 4)), lambda: [tensor_bytes(values)])])
    with DatFile(path) as dat:
        assert torch.equal(dat.tensor("a", slice(2, 5)), values[2:5])
        assert dat.tensor("a", slice(6, 9)).shape == (0, 4)


def test_nothing_is_overwritten_and_nothing_half_written_stays(path: Path) -> None:
    _write(path, [Spec("a", ElemType.UINT8, (3,))])
    before = path.read_bytes()
    with pytest.raises(OutputExistsError, match="never overwritten"):
        write_dat(path, [])
    with pytest.raises(ValueError, match="payload of 2 bytes, 3 were announced"):
        write_dat(path.with_name("b.dat"), [(Spec("a", ElemType.UINT8, (3,)), lambda: [b"ab"])])
    with pytest.raises(ValueError, match="written twice"):
        write_dat(path.with_name("b.dat"), [(Spec("a", ElemType.UINT8, (0,)), lambda: [])] * 2)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["w.dat"]


def test_replacing_an_unknown_entry_is_refused(path: Path) -> None:
    _write(path, [Spec("a", ElemType.UINT8, (3,))])
    with DatFile(path) as dat, pytest.raises(KeyError, match="has no entry b"):
        rewrite(dat, path.with_name("b.dat"), {"b": lambda: [b""]})


def _sparse(path: Path, specs: list[Spec]) -> None:
    """A file whose payloads are holes: zeros that take no disk."""
    with path.open("wb") as file:
        file.write(leb128(len(specs)))
        for spec in specs:
            file.write(spec.header())
            file.seek(spec.nbytes, 1)
        file.truncate(file.tell())


def test_an_entry_past_4_gb_is_read_where_it_is(path: Path) -> None:
    rows = (1 << 32) // 4096 + 100
    _sparse(path, [Spec("large", ElemType.UINT8, (rows, 4096)), Spec("after", ElemType.INT32, (1,))])
    with path.open("r+b") as file:
        file.seek(
            len(leb128(2)) + len(Spec("large", ElemType.UINT8, (rows, 4096)).header()) + (rows - 1) * 4096
        )
        file.write(b"\x07\x08")
    with DatFile(path) as dat:
        assert dat.entries["large"].nbytes > 1 << 32
        assert dat.tensor("large", slice(rows - 2, rows)).nonzero().tolist() == [[1, 0], [1, 1]]
        with dat.raw("large") as view:
            assert view[-4096:-4094] == b"\x07\x08"


PEAK = """
import sys
from pathlib import Path
from stages.weights.dat import DatFile, rewrite
def peak():
    # not ru_maxrss, which a child inherits from the process that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
idle = peak()
with DatFile(Path(sys.argv[1])) as dat:
    if len(sys.argv) > 2:
        new = b"\\x01" * dat.entries["0"].nbytes
        rewrite(dat, Path(sys.argv[2]), {"0": lambda: [new]})
print(peak(), peak() - idle)
"""


def _peak(*arguments: Path) -> list[float]:
    command = [sys.executable, "-c", PEAK, *map(str, arguments)]
    return [
        float(v) for v in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    ]


def test_opening_a_4b_sized_file_maps_it(path: Path) -> None:
    _sparse(path, [Spec(str(i), ElemType.UINT8, (9728, 1280)) for i in range(233)])
    assert path.stat().st_size > 2.9e9
    whole, grown = _peak(path)
    assert whole < 300 and grown < 40, f"{whole} MiB, {grown} MiB of them by opening"


def test_rewriting_holds_one_entry_at_most(path: Path) -> None:
    _sparse(path, [Spec(str(i), ElemType.UINT8, (1024, 16384)) for i in range(16)])
    _, grown = _peak(path, path.with_name("again.dat"))
    assert grown < 48, f"{grown} MiB for entries of 16 MiB, copied through a buffer of 4 MiB"
    assert path.with_name("again.dat").stat().st_size == path.stat().st_size
    with DatFile(path.with_name("again.dat")) as dat:
        assert dat.tensor("0").min() == 1 and dat.tensor("15").max() == 0


@pytest.mark.slow
def test_an_entry_of_4_gb_is_written_and_read_back(path: Path) -> None:
    chunk, count = bytes(range(256)) * (1 << 16), 257
    spec = Spec("large", ElemType.UINT8, (count, len(chunk)))
    write_dat(
        path,
        [
            (spec, lambda: (chunk for _ in range(count))),
            (Spec("after", ElemType.UINT8, (2,)), lambda: [b"\x05\x06"]),
        ],
    )
    with DatFile(path) as dat:
        assert dat.entries["large"].nbytes > 1 << 32 and dat.tensor("after").tolist() == [5, 6]
        assert bytes(tensor_bytes(dat.tensor("large", slice(count - 1, count)))) == chunk


@pytest.mark.parametrize("size", [0, 1, 100, 5 << 20, (13 << 20) + 3])
def test_large_payloads_read_by_several_threads_are_whole(path: Path, size: int) -> None:
    values = torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    write_dat(
        path,
        [
            (Spec("x", ElemType.INT8, ()), lambda: [b"\1"]),
            (Spec("a", ElemType.UINT8, (size,)), lambda: [tensor_bytes(values)]),
        ],
    )
    with DatFile(path) as dat:
        assert torch.equal(dat.tensor("a"), values)
        assert b"".join(bytes(chunk) for chunk in dat.chunks("a", 1 << 20)) == bytes(tensor_bytes(values))


class _LateHashes(ThreadPoolExecutor):
    """Does nothing until its result is asked for: as late as a thread may be."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **_: Any) -> Any:
        return SimpleNamespace(result=lambda: work(*arguments))


def test_a_chunk_stays_until_its_hash_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randint(0, 256, (13 << 20,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    items = [(Spec(name, ElemType.UINT8, (len(values),)), lambda: [tensor_bytes(values)]) for name in "ab"]
    write_dat(path, items)  # type: ignore[arg-type]
    monkeypatch.setattr(files, "ThreadPoolExecutor", _LateHashes)
    with DatFile(path) as dat:
        written = rewrite(dat, path.with_name("again.dat"), {})
    assert written.sha256 == sha256_of(path) == sha256_of(path.with_name("again.dat"))


@pytest.mark.fault("a weight file shrinks while it is read", how="cut by another program")
def test_a_file_that_shrinks_while_it_is_read_is_an_error(path: Path) -> None:
    _write(path, [Spec("a", ElemType.UINT8, (12 << 20,))])
    with DatFile(path) as dat:
        os.truncate(path, 5 << 20)
        with pytest.raises(DatError, match="became shorter"):
            dat.tensor("a")
