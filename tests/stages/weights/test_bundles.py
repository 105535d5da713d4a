"""NVFP4 bundles in a weight file: written in chunks, in either order; values; bad scales named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from stages.contract.recipe import ScaleRule
from stages.contract.requests import InferencePath
from stages.nvfp4.codec import Bundle, decode, encode
from stages.qwen3.config import read_config
from stages.weights.bundles import (
    TWO_LEVEL,
    bundle_entries,
    bundle_payloads,
    bundle_problems,
    bundle_values,
    encode_two_level,
    read_bundle,
    tensor_scale,
)
from stages.weights.dat import DatFile, rewrite, tensor_bytes, write_dat
from stages.weights.dat_index import DatError, ElemType, Spec
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel
from tests.stages.weights.conftest import LOADING

PROJ = "model.layers.0.mlp.up_proj.weight"
WEIGHT = torch.randn(40, 32, generator=torch.Generator().manual_seed(8)) * 0.05


def _chunks(two_level: float | None = None) -> Iterator[Bundle]:
    for rows in WEIGHT.split(16):
        yield (
            encode(rows, ScaleRule.SEARCH)
            if two_level is None
            else encode_two_level(rows, two_level, ScaleRule.SEARCH)
        )


@pytest.mark.parametrize("first", ["codes", "scales"])
def test_payloads_may_be_written_in_either_order(first: str) -> None:
    whole = encode(WEIGHT, ScaleRule.SEARCH)
    expected = [bytes(tensor_bytes(whole.codes)), bytes(tensor_bytes(whole.scales))]
    payloads = bundle_payloads(_chunks)
    order = (0, 1) if first == "codes" else (1, 0)
    for index in (*order, *order):
        assert b"".join(map(bytes, payloads[index]())) == expected[index]


@pytest.mark.parametrize("two_level", [False, True])
def test_what_is_written_is_read_back(tmp_path: Path, two_level: bool) -> None:
    top = tensor_scale(float(WEIGHT.abs().amax())) if two_level else None
    write_dat(tmp_path / "w.dat", bundle_entries("w", (40, 32), lambda: _chunks(top), top))
    name = "w" + TWO_LEVEL if two_level else "w"
    with DatFile(tmp_path / "w.dat") as dat:
        assert bundle_problems(dat, name, (40, 32)) == bundle_problems(dat, name) == []
        values = bundle_values(dat, name, slice(8, 30), torch.float32, torch.device("cpu"))
    error = (values - WEIGHT[8:30]).norm() / WEIGHT[8:30].norm()
    assert 0 < error < 0.12
    if not two_level:
        assert torch.equal(values, decode(encode(WEIGHT, ScaleRule.SEARCH))[8:30])


def test_every_wrong_type_and_shape_is_named(tmp_path: Path) -> None:
    specs = [
        Spec("a.qdata", ElemType.INT16, (4, 8)),
        Spec("a.scale", ElemType.INT8, (4, 2)),
        Spec("b.qdata", ElemType.UINT8, (4, 8)),
        Spec("c.two_level.qdata", ElemType.UINT8, (4, 8)),
        Spec("c.two_level.scale", ElemType.E4M3, (4, 1)),
    ]
    write_dat(tmp_path / "w.dat", [(spec, lambda n=spec.nbytes: [bytes(n)]) for spec in specs])
    with DatFile(tmp_path / "w.dat") as dat:
        assert bundle_problems(dat, "a") == [
            "a.qdata: INT16 [4, 8], its codes ask for UINT8 [4, 8]",
            "a.scale: INT8 [4, 2], its codes ask for E4M3 [4, 1]",
        ]
        assert bundle_problems(dat, "b", (4, 16)) == ["b.scale: missing beside b.qdata"]
        assert "only linear weights" in bundle_problems(dat, "b", (64,))[0]
        assert bundle_problems(dat, "c.two_level", (4, 16)) == [
            "c.two_level.scale_2: missing, one FLOAT32 number is needed"
        ]


def test_bundle_and_values_agree(tiny: TinyModel) -> None:
    config = read_config(tiny.folder / "config.json")
    with DatFile(tiny.weight) as dat:
        model, _ = load_model(dat, config, path=InferencePath.BRIDGE, **LOADING)
        assert torch.equal(model.lm_head.weight, decode(read_bundle(dat, "lm_head.weight")))


def test_a_scale_that_is_no_number_stops_loading(tiny: TinyModel, tmp_path: Path) -> None:
    with DatFile(tiny.weight) as dat:
        scales = bytearray(tensor_bytes(dat.tensor(f"{PROJ}.scale")))
        scales[2 * 9 + 1] = 0xFF
        rewrite(dat, tmp_path / "a.dat", {f"{PROJ}.scale": lambda: [scales]})
    with DatFile(tmp_path / "a.dat") as dat:
        with pytest.raises(DatError, match="scale of row 9, block 1 is not finite") as error:
            read_bundle(dat, PROJ, slice(4, 20))
        assert error.value.offset == dat.entries[f"{PROJ}.scale"].offset + 19
        assert torch.isfinite(read_bundle(dat, PROJ, slice(10, 64)).scales.float()).all()
