"""The tokenizer of a model folder against its config: what does not belong together is refused before
anything is computed.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from stages.contract.recipe import Template
from stages.qwen3.config import ConfigError, Qwen3Config, read_config
from stages.qwen3.template import load_tokenizer, prompt_text
from tests.conftest import TinyModel


@pytest.fixture
def config(tiny: TinyModel) -> Qwen3Config:
    return read_config(tiny.folder / "config.json")


def _problems(folder: Path, config: Qwen3Config) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_tokenizer(folder, config, Template.QWEN)
    return error.value.problems


def test_ids_that_the_config_leaves_out_are_no_problem(tiny: TinyModel, config: Qwen3Config) -> None:
    bare = dataclasses.replace(config, eos_token_id=-1, bos_token_id=-1)
    tokenizer = load_tokenizer(tiny.folder, bare, Template.QWEN)
    assert len(tokenizer.stop_ids) == 2 and tokenizer.end_of_turn in tokenizer.stop_ids


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"eos_token_id": 5}, ["config.json says eos_token_id 5; here <|im_end|> is"]),
        ({"bos_token_id": 299}, ["config.json says bos_token_id 299; here <|endoftext|> is"]),
        ({"eos_token_id": 5, "bos_token_id": 6}, ["eos_token_id 5", "bos_token_id 6"]),
        (
            {"vocab_size": 298},
            [
                "has 300 tokens, config.json says vocab_size 298",
                "past config.json's vocab_size",
                "past config",
            ],
        ),
    ],
)
def test_every_disagreement_with_the_config_is_listed(
    tiny: TinyModel, config: Qwen3Config, change: dict[str, int], says: list[str]
) -> None:
    problems = _problems(tiny.folder, dataclasses.replace(config, **change))
    assert len(problems) == len(says) and all(
        text in fault for text, fault in zip(says, problems, strict=True)
    )


def test_a_tokenizer_without_turn_markers_is_refused(
    tiny: TinyModel, config: Qwen3Config, tmp_path: Path
) -> None:
    shutil.copy(tiny.folder / "tokenizer.json", tmp_path / "tokenizer.json")
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8").replace("<|im_end|>", "<|other|>")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    assert _problems(tmp_path, config) == ["has no token <|im_end|>: chat needs it"]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    assert "not a tokenizer" in _problems(tmp_path, config)[0]
    (tmp_path / "tokenizer.json").unlink()
    assert "no such file" in _problems(tmp_path, config)[0]


def test_templates_differ_by_the_newline_of_the_fsharp_runners() -> None:
    assert prompt_text("x", Template.QWEN) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text("x", Template.FSHARP) == "<|im_start|>user\nx\n<|im_end|>\n<|im_start|>assistant\n"
