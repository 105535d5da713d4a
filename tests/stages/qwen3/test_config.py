"""`config.json`: what this code would compute otherwise is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stages.qwen3.config import ConfigError, read_config
from tests.conftest import CONFIG


def _read(folder: Path, **change: object):
    (folder / "config.json").write_text(json.dumps(CONFIG | change))
    return read_config(folder / "config.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_key_value_heads": 3}, "not divisible by num_key_value_heads"),
        ({"hidden_size": 40}, "hidden_size: 40: not a multiple of 16"),
        ({"head_dim": 15}, "head_dim: 15"),
        ({"vocab_size": None}, "vocab_size: None"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling"),
        ({"model_type": "llama"}, "model_type: 'llama'"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(ConfigError, match=says):
        read_config(tmp_path / "config.json")


def test_all_problems_come_together_and_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        _read(tmp_path, hidden_act="gelu", vocab_size=0, num_hidden_layers="2")
    assert len(error.value.problems) == 3 and str(error.value).count("\n  - ") == 3
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_config(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "none.json")


def test_values_that_older_and_newer_files_write_differently(tmp_path: Path) -> None:
    config = _read(
        tmp_path, head_dim=None, rope_theta=None, rope_parameters={"rope_theta": 5e5}, eos_token_id=[7, 8]
    )
    assert (config.head_dim, config.rope_theta, config.eos_token_id) == (8, 5e5, 7)
    config = _read(tmp_path, bos_token_id=0, eos_token_id=None)
    assert (config.bos_token_id, config.eos_token_id) == (0, -1)
