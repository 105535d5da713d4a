"""A Hugging Face folder: shards and their index, damage named, tensors streamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.weights.convert import main
from stages.weights.dat import tensor_bytes
from stages.weights.hf_folder import INDEX, SINGLE, TensorToWrite, read_index, read_rows, write_shards
from tests.stages.weights.checkpoints import save_checkpoint


def test_damaged_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_checkpoint(tmp_path / "hf", tied=False, shards="40KB")
    first = sorted((tmp_path / "hf").glob("model-*.safetensors"))[0]
    whole = first.read_bytes()
    arguments = ["to-dat", str(tmp_path / "hf"), str(tmp_path / "w.dat")]
    first.write_bytes(whole[:100])
    assert main(arguments) == 2 and first.name in capsys.readouterr().err
    first.unlink()
    assert main(arguments) == 2 and first.name in capsys.readouterr().err
    first.write_bytes(whole)
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    index["weight_map"]["ghost"] = first.name
    (tmp_path / "hf" / INDEX).write_text(json.dumps(index))
    assert main(arguments) == 2 and "ghost is said to be in" in capsys.readouterr().err
    (tmp_path / "hf" / INDEX).write_text("{}")
    assert main(arguments) == 2 and "no index" in capsys.readouterr().err
    (tmp_path / "hf" / INDEX).unlink()
    assert main(arguments) == 2 and "model.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(("shard_bytes", "files"), [(1 << 20, 1), (400, 2), (1, 3)])
def test_shards_hold_what_was_given_and_are_read_by_rows(
    tmp_path: Path, shard_bytes: int, files: int
) -> None:
    values = {name: torch.randn(10, 8).bfloat16() for name in "abc"}
    tensors = [
        TensorToWrite(name, (10, 8), torch.bfloat16, lambda v=value: map(tensor_bytes, v.split(3)))
        for name, value in values.items()
    ]
    write_shards(tmp_path, tensors, shard_bytes)
    assert len(list(tmp_path.glob("*.safetensors"))) == files
    assert (tmp_path / INDEX).exists() == (files > 1) != (tmp_path / SINGLE).exists()
    found = read_index(tmp_path)
    for name, value in values.items():
        assert torch.equal(load_file(found[name].file)[name], value)
        assert found[name].nbytes == value.nbytes
        rows = read_rows(found[name], name, [slice(0, 4), slice(4, 10)])
        assert torch.equal(torch.cat(list(rows)), value)


def test_a_tensor_that_is_not_as_long_as_announced_leaves_no_file(tmp_path: Path) -> None:
    short = TensorToWrite("a", (4,), torch.float32, lambda: [b"12"])
    with pytest.raises(ValueError, match="2 bytes, 16 were announced"):
        write_shards(tmp_path, [short], 1 << 20)
    assert list(tmp_path.iterdir()) == []
