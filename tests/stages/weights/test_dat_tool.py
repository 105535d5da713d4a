"""What `python -m stages.dat` prints and finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.weights.dat import DatFile, rewrite, tensor_bytes, write_dat
from stages.weights.dat_index import ElemType, Spec
from stages.weights.dat_tool import main
from tests.conftest import CONFIG, TinyModel

PROJ = "model.layers.0.mlp.up_proj.weight"


def _changed(tiny: TinyModel, path: Path, name: str, at: int, value: bytes) -> Path:
    with DatFile(tiny.weight) as dat:
        raw = bytearray(tensor_bytes(dat.tensor(name)))
        raw[at : at + len(value)] = value
        rewrite(dat, path, {name: lambda: [raw]})
    return path


def test_list_as_a_process_of_its_own(tiny: TinyModel) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stages.dat", "list", str(tiny.weight)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    with DatFile(tiny.weight) as dat:
        assert len(lines) == len(dat.entries) + 2
    row = next(line.split() for line in lines if line.startswith(f"{PROJ}.qdata"))
    assert row == [f"{PROJ}.qdata", "UINT8", "64x16", "1024", "NVFP4", "64x32,", "codes"]
    assert "15 quantized weights" in lines[-1] and lines[-1].endswith("head: separate, quantized")


@pytest.mark.parametrize(
    ("names", "says"),
    [(["model.embed_tokens.weight"], "tied"), (["lm_head.weight"], "separate, plain"), (["other"], "none")],
)
def test_the_kind_of_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str], says: str
) -> None:
    write_dat(tmp_path / "a.dat", [(Spec(name, ElemType.FLOAT16, ()), lambda: [b"\0\0"]) for name in names])
    assert main(["list", str(tmp_path / "a.dat")]) == 0
    assert f"head: {says}" in capsys.readouterr().out


def test_a_sound_file_passes(tiny: TinyModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tiny.weight), "--config", str(tiny.folder / "config.json")]) == 0
    assert capsys.readouterr().out == f"{tiny.weight}: 0 problem(s)\n"


def test_all_problems_are_listed_together(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _changed(tiny, tmp_path / "1.dat", f"{PROJ}.scale", 5, b"\x7f")
    with DatFile(tmp_path / "1.dat") as dat:
        norm = dat.tensor("model.norm.weight")
        norm[3], norm[4] = float("inf"), float("nan")
        items = [
            (entry, lambda n=name: dat.chunks(n))
            for name, entry in dat.entries.items()
            if name != "lm_head.weight.scale"
        ]
        items = [
            (s, (lambda: [tensor_bytes(norm)]) if s.name == "model.norm.weight" else p) for s, p in items
        ]
        items.append((Spec("alone.scale", ElemType.E4M3, (1, 1)), lambda: [b"\x01"]))
        items.append((Spec("odd.qdata", ElemType.UINT8, (2, 3)), lambda: [b"\0" * 6]))
        write_dat(tmp_path / "2.dat", items)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"intermediate_size": 80}))
    assert main(["check", str(tmp_path / "2.dat"), "--config", str(tmp_path / "config.json")]) == 1
    out = capsys.readouterr().out
    for fault in (
        f"{PROJ}.scale: 1 of 128 values are not finite, the first at index 5",
        "model.norm.weight: 2 of 32 values are not finite, the first at index 3",
        "lm_head.weight.scale: missing beside lm_head.weight.qdata",
        "alone.scale: no codes beside it",
        "odd.qdata: shape [2, 3]",
        f"{PROJ}.qdata: UINT8 [64, 16], config.json asks for UINT8 [80, 16]",
    ):
        assert f"problem: {fault}" in out
    assert out.endswith(f"{5 + 2 * 6} problem(s)\n")


def test_negative_scales_are_a_note_and_no_problem(
    tiny: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(_changed(tiny, tmp_path / "a.dat", f"{PROJ}.scale", 0, b"\x85\x86"))]) == 0
    assert f"note: {PROJ}.scale: 2 of 128 scales are negative" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["list", "check"])
def test_what_is_no_weight_file_is_bad_input(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.dat").write_bytes(b"\x80" * 11)
    assert main([way, str(tmp_path / "a.dat")]) == 2 and "byte 0" in capsys.readouterr().err
    assert main([way, str(tmp_path / "none.dat")]) == 2
