"""Export: bytes that training did not change stay; a changed value changes its own block only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.contract.recipe import ScaleRule
from stages.contract.requests import InferencePath
from stages.qwen3.config import Qwen3Config
from stages.weights.dat import DatFile, write_dat
from stages.weights.dat_index import ElemType
from stages.weights.export import export
from stages.weights.model_weights import load_model
from tests.stages.weights.conftest import LOADING, write_model


@pytest.mark.parametrize("scale_type", [ElemType.E4M3, ElemType.FLOAT16, ElemType.FLOAT32])
def test_an_export_without_training_is_the_input_byte_for_byte(
    tmp_path: Path, config: Qwen3Config, scale_type: ElemType
) -> None:
    write_model(tmp_path / "a.dat", config, tied=False, scale_type=scale_type)
    with DatFile(tmp_path / "a.dat") as dat:
        model, layout = load_model(dat, config, path=InferencePath.FP2, **LOADING)
        export(
            dat,
            layout,
            {n: p.detach() for n, p in model.named_parameters()},
            ScaleRule.SEARCH,
            tmp_path / "b.dat",
        )
    assert (tmp_path / "a.dat").read_bytes() == (tmp_path / "b.dat").read_bytes()


def test_a_changed_master_changes_its_own_blocks_only(tmp_path: Path, config: Qwen3Config) -> None:
    write_model(tmp_path / "a.dat", config, tied=False)
    name = "model.layers.1.mlp.up_proj.weight"
    with DatFile(tmp_path / "a.dat") as dat:
        model, layout = load_model(dat, config, path=InferencePath.FP2, **LOADING)
        master = dict(model.named_parameters())[name].detach().clone()
        master[5, 17] += 1.0
        export(dat, layout, {name: master}, ScaleRule.SEARCH, tmp_path / "b.dat")
        with DatFile(tmp_path / "b.dat") as new:
            assert list(new.entries.values()) == list(dat.entries.values()), (
                "same order, types, shapes and offsets"
            )
            changed = [
                n
                for n in dat.entries
                if dat.tensor(n).view(torch.uint8).ne(new.tensor(n).view(torch.uint8)).any()
            ]
            assert changed == [f"{name}.qdata", f"{name}.scale"]
            scales = dat.tensor(f"{name}.scale").float() != new.tensor(f"{name}.scale").float()
            assert scales.nonzero().tolist() == [[5, 1]]


def test_scales_that_stand_before_their_codes_are_exported_too(tmp_path: Path, config: Qwen3Config) -> None:
    write_model(tmp_path / "a.dat", config, tied=False)
    with DatFile(tmp_path / "a.dat") as dat:
        entries = [(entry, lambda n=name: dat.chunks(n)) for name, entry in reversed(dat.entries.items())]
        write_dat(tmp_path / "reversed.dat", entries)
    name = "model.layers.1.mlp.up_proj.weight"
    exported = []
    for source in ("a.dat", "reversed.dat"):
        with DatFile(tmp_path / source) as dat:
            model, layout = load_model(dat, config, path=InferencePath.FP2, **LOADING)
            master = dict(model.named_parameters())[name].detach() + 0.01
            export(dat, layout, {name: master}, ScaleRule.SEARCH, tmp_path / f"new-{source}")
        with DatFile(tmp_path / f"new-{source}") as dat:
            exported.append({n: bytes(dat.tensor(n).view(torch.uint8).numpy()) for n in dat.entries})
    assert exported[0] == exported[1]
