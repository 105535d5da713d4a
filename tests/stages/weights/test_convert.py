"""Hugging Face folders to weight files and back, judged by transformers' own logits."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config as PeerConfig
from transformers import Qwen3ForCausalLM

from stages.contract import ComputeDtype, InferencePath, ScaleRule
from stages.nvfp4.fake_quantize import fake_quantize
from stages.process.files import NoSpaceError, OutputExistsError
from stages.qwen3.config import read_config
from stages.weights import convert
from stages.weights.convert import Format, main, to_dat, to_hf
from stages.weights.dat import DatFile, ElemType
from stages.weights.hf_folder import INDEX, FolderError
from stages.weights.model_weights import EMBEDDING, WeightError, load_model
from tests.conftest import CONFIG

IDS = torch.arange(3, 43)[None]
LOADING = {"rule": ScaleRule.SEARCH, "compute_dtype": ComputeDtype.FP32, "device": torch.device("cpu")}


def _folder(path: Path, *, tied: bool, shards: str = "5GB") -> Qwen3ForCausalLM:
    """A checkpoint as transformers saves it, of BF16 values that float16 holds too."""
    settings = {key: value for key, value in CONFIG.items() if key != "model_type"} | {
        "tie_word_embeddings": tied
    }
    torch.manual_seed(5)
    model = Qwen3ForCausalLM(PeerConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.05))
            parameter.copy_(parameter.bfloat16().half())
    model.bfloat16().save_pretrained(path, max_shard_size=shards)
    shutil.copy(path / "config.json", path.parent / "config.json")
    return model.float()


def _peer_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits


def _our_logits(dat: Path, config: Path) -> torch.Tensor:
    with DatFile(dat) as file, torch.no_grad():
        return load_model(file, read_config(config), path=InferencePath.BRIDGE, **LOADING)[0](IDS)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", ["5GB", "40KB"])
def test_float16_there_and_back_is_the_same_model(tmp_path: Path, tied: bool, shards: str) -> None:
    _folder(tmp_path / "hf", tied=tied, shards=shards)
    assert (tmp_path / "hf" / INDEX).exists() == (shards == "40KB")
    assert main(["to-dat", str(tmp_path / "hf"), str(tmp_path / "w.dat"), "--format", "float16"]) == 0
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back"), "--shard-gb", "0.00004"]) == 0
    assert (tmp_path / "back" / INDEX).exists()
    expected = _peer_logits(tmp_path / "hf")
    assert torch.equal(_peer_logits(tmp_path / "back"), expected)
    assert (_our_logits(tmp_path / "w.dat", tmp_path / "config.json") - expected).abs().max() < 1e-4


@pytest.mark.parametrize("two_level", [False, True])
def test_nvfp4_has_the_users_layout_and_transformers_computes_the_same_from_it(
    tmp_path: Path, two_level: bool
) -> None:
    model = _folder(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4, two_level=two_level)
    to_hf(tmp_path / "w.dat", tmp_path / "back", tmp_path)
    ours = _our_logits(tmp_path / "w.dat", tmp_path / "config.json")
    assert (_peer_logits(tmp_path / "back") - ours).abs().max() < 1e-4
    middle = ".two_level" if two_level else ""
    with DatFile(tmp_path / "w.dat") as dat:
        types = {name: entry.elem_type for name, entry in dat.entries.items()}
    assert (
        types.pop(f"lm_head.weight{middle}.qdata") is ElemType.UINT8
        and types.pop(f"lm_head.weight{middle}.scale") is ElemType.E4M3
    )
    for name, elem_type in types.items():
        plain = name.endswith("norm.weight") or name == EMBEDDING
        assert plain == (elem_type is ElemType.FLOAT16), name
        assert plain or name.endswith((f"proj.weight{middle}.qdata", f"proj.weight{middle}.scale", "scale_2"))
    if not two_level:
        back = Qwen3ForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
        assert (
            back.lm_head.weight is not back.model.embed_tokens.weight and not back.config.tie_word_embeddings
        )
        name = "model.layers.1.mlp.down_proj.weight"
        expected = fake_quantize(model.get_parameter(name).detach(), ScaleRule.SEARCH, torch.float32)
        assert torch.equal(back.get_parameter(name), expected)


def test_a_file_in_two_levels_is_used_but_neither_trained_nor_mistaken(tmp_path: Path) -> None:
    _folder(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4, two_level=True)
    with DatFile(tmp_path / "w.dat") as dat:
        assert not [name for name in dat.entries if name.endswith("weight.qdata")], (
            "a reader of one level must find no codes"
        )
        with pytest.raises(WeightError, match="used but not trained"):
            load_model(dat, read_config(tmp_path / "config.json"), path=InferencePath.FP2, **LOADING)


def test_everything_that_does_not_fit_is_listed_before_anything_is_written(tmp_path: Path) -> None:
    _folder(tmp_path / "hf", tied=False)
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
    _folder(tmp_path / "hf", tied=False)
    tensors = load_file(tmp_path / "hf/model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, tmp_path / "hf/model.safetensors")
    with pytest.raises(FolderError, match=says):
        to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)
    assert not list(tmp_path.glob("*w.dat*"))


def test_damaged_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _folder(tmp_path / "hf", tied=False, shards="40KB")
    first = sorted((tmp_path / "hf").glob("model-*.safetensors"))[0]
    kept = first.read_bytes()
    arguments = ["to-dat", str(tmp_path / "hf"), str(tmp_path / "w.dat")]
    first.write_bytes(kept[:100])
    assert main(arguments) == 2 and first.name in capsys.readouterr().err
    first.unlink()
    assert main(arguments) == 2 and first.name in capsys.readouterr().err
    first.write_bytes(kept)
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    index["weight_map"]["ghost"] = first.name
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    assert main(arguments) == 2 and "ghost is said to be in" in capsys.readouterr().err
    (tmp_path / "hf" / INDEX).write_text("{}")
    assert main(arguments) == 2 and "no index" in capsys.readouterr().err
    (tmp_path / "hf" / INDEX).unlink()
    assert main(arguments) == 2 and "model.safetensors" in capsys.readouterr().err


def test_nothing_is_overwritten_and_nothing_half_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)
    with pytest.raises(OutputExistsError):
        to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4)
    with pytest.raises(OutputExistsError):
        to_hf(tmp_path / "w.dat", tmp_path / "hf", tmp_path)
    before = sorted(tmp_path.iterdir())

    def full(path: Path, needed: int) -> None:
        raise NoSpaceError(path, needed, 0)

    monkeypatch.setattr("stages.process.files.require_space", full)
    assert main(["to-dat", str(tmp_path / "hf"), str(tmp_path / "x.dat")]) == 6
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back")]) == 6
    monkeypatch.setattr(convert, "require_space", full)
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back")]) == 6
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_shows_its_progress(tmp_path: Path) -> None:
    _folder(tmp_path / "hf", tied=True)
    command = [
        sys.executable,
        "-m",
        "stages.convert",
        "to-dat",
        str(tmp_path / "hf"),
        str(tmp_path / "w.dat"),
        "--format",
        "nvfp4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "100%" in done.stderr and "MB/s" in done.stderr and "SHA-256" in done.stdout


CHILD = """
import sys
from pathlib import Path
from stages.weights.convert import Format, to_dat
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
    # 245 to 280 MiB of working memory, by how soon freed pieces are used again, and 100 MiB of mapped pages,
    # were seen here.
    assert grown < 450, (
        f"{grown} MiB for tensors of 41 MiB, worked on in pieces of 16M elements; all of them are 486 MB"
    )
