"""A Hugging Face folder to a weight file: its layout; what does not fit or cannot be held is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config as PeerConfig
from transformers import Qwen3ForCausalLM

from stages.contract.requests import InferencePath
from stages.process.files import OutputExistsError
from stages.qwen3.config import read_config
from stages.weights.dat import DatFile
from stages.weights.dat_index import ElemType
from stages.weights.hf_folder import FolderError
from stages.weights.hf_to_dat import Format, to_dat
from stages.weights.model_weights import EMBEDDING, WeightError, load_model
from tests.conftest import CONFIG
from tests.stages.weights.checkpoints import save_checkpoint
from tests.stages.weights.conftest import LOADING


@pytest.mark.parametrize("two_level", [False, True])
def test_nvfp4_has_the_users_layout(tmp_path: Path, two_level: bool) -> None:
    save_checkpoint(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4, two_level=two_level)
    middle = ".two_level" if two_level else ""
    with DatFile(tmp_path / "w.dat") as dat:
        types = {name: entry.elem_type for name, entry in dat.entries.items()}
    assert types.pop(f"lm_head.weight{middle}.qdata") is ElemType.UINT8
    assert types.pop(f"lm_head.weight{middle}.scale") is ElemType.E4M3
    for name, elem_type in types.items():
        plain = name.endswith("norm.weight") or name == EMBEDDING
        assert plain == (elem_type is ElemType.FLOAT16), name
        assert plain or name.endswith((f"proj.weight{middle}.qdata", f"proj.weight{middle}.scale", "scale_2"))
    with pytest.raises(OutputExistsError):
        to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)


def test_a_file_in_two_levels_is_used_but_neither_trained_nor_mistaken(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4, two_level=True)
    with DatFile(tmp_path / "w.dat") as dat:
        assert not [name for name in dat.entries if name.endswith("weight.qdata")], (
            "a reader of one level must find no codes"
        )
        with pytest.raises(WeightError, match="used but not trained"):
            load_model(dat, read_config(tmp_path / "config.json"), path=InferencePath.FP2, **LOADING)


def test_everything_that_does_not_fit_is_listed_before_anything_is_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "hf", tied=False)
    tensors = load_file(tmp_path / "hf/model.safetensors")
    del tensors["lm_head.weight"]
    tensors["model.norm.weight"] = torch.ones(33)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(64, 32, dtype=torch.int8)
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.ones(1)
    save_file(tensors, tmp_path / "hf/model.safetensors")
    with pytest.raises(FolderError) as error:
        to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)
    assert [fault.split(":")[0] for fault in error.value.problems] == [
        "model.layers.0.mlp.up_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.7.mlp.up_proj.weight",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "hf"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (EMBEDDING, 7e4, "more than float16 holds"),
        ("model.norm.weight", float("nan"), "model.norm.weight: holds NaN"),
        ("model.layers.0.mlp.up_proj.weight", float("inf"), "up_proj.weight: holds NaN or infinity"),
    ],
)
def test_values_that_the_file_cannot_hold_are_refused(
    tmp_path: Path, name: str, value: float, says: str
) -> None:
    save_checkpoint(tmp_path / "hf", tied=False)
    tensors = load_file(tmp_path / "hf/model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, tmp_path / "hf/model.safetensors")
    with pytest.raises(FolderError, match=says):
        to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)
    assert not list(tmp_path.glob("*w.dat*"))


CHILD = """
import sys
from pathlib import Path
from stages.weights.hf_to_dat import Format, to_dat
def peak():
    # not ru_maxrss, which a child inherits from the process that started it
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
idle = peak()
to_dat(Path(sys.argv[1]), Path(sys.argv[2]), Format.NVFP4)
print(peak() - idle)
"""


@pytest.mark.slow
def test_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    settings = {k: v for k, v in CONFIG.items() if k != "model_type"} | {
        "hidden_size": 1024,
        "intermediate_size": 16384,
        "vocab_size": 20000,
        "num_hidden_layers": 4,
    }
    with torch.device("meta"):
        shapes = {n: p.shape for n, p in Qwen3ForCausalLM(PeerConfig(**settings)).named_parameters()}
    (tmp_path / "hf").mkdir()
    PeerConfig(**settings).save_pretrained(tmp_path / "hf")
    save_file(
        {n: torch.zeros(s, dtype=torch.bfloat16) for n, s in shapes.items()},
        tmp_path / "hf/model.safetensors",
    )
    assert (tmp_path / "hf/model.safetensors").stat().st_size > 400e6
    command = [sys.executable, "-c", CHILD, str(tmp_path / "hf"), str(tmp_path / "w.dat")]
    grown = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # 245 to 280 MiB of working memory, by how soon freed chunks are used again, and 100 MiB of mapped pages,
    # were seen here.
    assert grown < 450, (
        f"{grown} MiB for tensors of 41 MiB, worked on in chunks of 16M elements; all of them are 486 MB"
    )
