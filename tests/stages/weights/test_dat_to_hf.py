"""A weight file to a Hugging Face folder, judged by transformers' own logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from stages.contract.recipe import ScaleRule
from stages.nvfp4.fake_quantize import fake_quantize
from stages.process.files import OutputExistsError
from stages.weights.dat_to_hf import to_hf
from stages.weights.hf_to_dat import Format, to_dat
from tests.stages.weights.checkpoints import our_logits, peer_logits, save_checkpoint


@pytest.mark.parametrize("two_level", [False, True])
def test_transformers_computes_the_same_from_what_was_nvfp4(tmp_path: Path, two_level: bool) -> None:
    model = save_checkpoint(tmp_path / "hf", tied=True)
    to_dat(tmp_path / "hf", tmp_path / "w.dat", Format.NVFP4, two_level=two_level)
    to_hf(tmp_path / "w.dat", tmp_path / "back", tmp_path)
    ours = our_logits(tmp_path / "w.dat", tmp_path / "config.json")
    assert (peer_logits(tmp_path / "back") - ours).abs().max() < 1e-4
    if not two_level:
        back = Qwen3ForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32)
        assert back.lm_head.weight is not back.model.embed_tokens.weight
        assert not back.config.tie_word_embeddings
        name = "model.layers.1.mlp.down_proj.weight"
        expected = fake_quantize(model.get_parameter(name).detach(), ScaleRule.SEARCH, torch.float32)
        assert torch.equal(back.get_parameter(name), expected)
    with pytest.raises(OutputExistsError):
        to_hf(tmp_path / "w.dat", tmp_path / "hf", tmp_path)
