"""A new model: three files from rows and a seed, the same bytes each time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stages.contract.events import ExitCode, StageResult
from stages.contract.recipe import DataSource
from stages.contract.requests import InitRequest
from stages.contract.rows import RowFileError
from stages.contract.serial import dump, load_file
from stages.process.files import OutputExistsError
from stages.train.init import init, main
from stages.weights.dat import DatFile
from tests.conftest import CONFIG, TinyModel


@pytest.fixture
def request_in(tiny: TinyModel, tmp_path: Path) -> InitRequest:
    """A request for the tiny model, in a folder of its own."""
    config = tmp_path / "wanted.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    return InitRequest(
        config=str(config),
        data=[DataSource(str(tiny.rows))],
        output_dir=str(tmp_path / "model"),
        output_weight=str(tmp_path / "model" / "first.dat"),
        events=str(tmp_path / "events.jsonl"),
        result=str(tmp_path / "result.json"),
    )


def test_config_tokenizer_and_weight_are_made(request_in: InitRequest, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(dump(request_in), encoding="utf-8")
    assert main([str(path)]) == 0
    result = load_file(StageResult, Path(request_in.result))
    weight = Path(request_in.output_weight)
    assert (result.output, result.output_bytes) == (str(weight), weight.stat().st_size)
    names = {path.name for path in weight.parent.iterdir()}
    assert names == {"config.json", "tokenizer.json", "first.dat"}
    assert json.loads((weight.parent / "config.json").read_text("utf-8")) == CONFIG
    with DatFile(weight) as dat:
        assert torch.equal(dat.tensor("model.norm.weight").float(), torch.ones(CONFIG["hidden_size"]))
        assert 0.015 < dat.tensor("model.embed_tokens.weight").float().std() < 0.025
        assert "lm_head.weight.qdata" in dat.entries, "the head is stored apart from the embedding"
    assert main([str(path)]) == ExitCode.BAD_INPUT, "nothing is overwritten"


def test_the_seed_decides_the_bytes(request_in: InitRequest, tmp_path: Path) -> None:
    hashes = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        outputs = {"output_dir": str(folder), "output_weight": str(folder / "first.dat")}
        hashes.append(init(replace(request_in, seed=seed, **outputs)).sha256)
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "first.dat"])
def test_no_file_is_overwritten(request_in: InitRequest, name: str) -> None:
    folder = Path(request_in.output_dir)
    folder.mkdir()
    (folder / name).write_text("mine", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=name):
        init(request_in)
    assert [path.name for path in folder.iterdir()] == [name]
    assert (folder / name).read_text("utf-8") == "mine"


def test_bad_rows_of_all_files_are_listed(request_in: InitRequest, tmp_path: Path) -> None:
    sources = []
    for number in (1, 2):
        path = tmp_path / f"bad{number}.tsv"
        path.write_text("no tab here\n", encoding="utf-8")
        sources.append(DataSource(str(path)))
    with pytest.raises(RowFileError) as caught:
        init(replace(request_in, data=sources))
    assert ["bad1" in caught.value.problems[0], "bad2" in caught.value.problems[1]] == [True, True]
    assert not Path(request_in.output_dir).exists()
