"""Qwen3 against transformers' Qwen3ForCausalLM with the same random weights: logits, gradients, greedy
answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F
from transformers import Qwen3Config as PeerConfig
from transformers import Qwen3ForCausalLM

from stages.inference.generate import GenerationConfig, generate
from stages.qwen3.config import Qwen3Config
from stages.qwen3.model import Qwen3

BASE = Qwen3Config(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=5e6,
    rms_norm_eps=1e-6,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    eos_token_id=2,
    bos_token_id=1,
)
SHAPES = [
    BASE,
    dataclasses.replace(BASE, tie_word_embeddings=False, num_key_value_heads=8),
    dataclasses.replace(BASE, num_key_value_heads=1, head_dim=32, rope_theta=1e4),
    dataclasses.replace(
        BASE,
        tie_word_embeddings=False,
        hidden_size=48,
        intermediate_size=176,
        num_attention_heads=6,
        num_key_value_heads=3,
    ),
]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [30], [41, 42, 43], [99, 98, 97, 96, 95]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small lose more by sharing work than they gain."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _pair(config: Qwen3Config, std: float = 0.15) -> tuple[Qwen3, Qwen3ForCausalLM]:
    """Ours and theirs with one set of weights, large enough that every token matters to the answer."""
    theirs = dataclasses.asdict(config) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta}
    }
    theirs |= {"attn_implementation": "eager", "pad_token_id": 0}
    del theirs["rope_theta"]
    peer = Qwen3ForCausalLM(PeerConfig(**theirs)).float().eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.normal_(0, std, generator=generator)
            if parameter.ndim == 1:
                parameter.add_(1)
    ours = Qwen3(config, tied=config.tie_word_embeddings)
    names = {name for name, _ in ours.named_parameters()}
    ours.load_state_dict(
        {name: value.clone() for name, value in peer.state_dict().items() if name in names}, strict=True
    )
    return ours, peer


def _ids(rows: int, length: int, config: Qwen3Config = BASE) -> torch.Tensor:
    return torch.randint(
        3, config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(length)
    )


@pytest.mark.parametrize("config", SHAPES)
def test_logits_and_gradients_are_theirs(config: Qwen3Config) -> None:
    ours, peer = _pair(config)
    ids = _ids(3, 40, config)
    mine, expected = ours(ids), peer(ids).logits
    assert (mine - expected).abs().max() < 1e-4 and expected.std() > 0.5
    for logits in (mine, expected):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in peer.named_parameters()}
    assert set(gradients) == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert gradients[name].norm() > 0, name
        assert (parameter.grad - gradients[name]).norm() <= 1e-4 * gradients[name].norm(), name


def test_logits_at_long_positions() -> None:
    ours, peer = _pair(BASE)
    ids, positions = _ids(1, 64), torch.arange(8128, 8192)[None]
    with torch.no_grad():
        mine, expected = ours.head(ours.hidden(ids, positions)), peer(ids, position_ids=positions).logits
        assert (mine - expected).abs().max() < 1e-4
        whole = _ids(1, 4200)
        assert (ours(whole)[0, -64:] - peer(whole, logits_to_keep=64).logits[0]).abs().max() < 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_padded_batch(side: str) -> None:
    ours, peer = _pair(BASE)
    ids, lengths, width = _ids(3, 24), [24, 9, 17], 24
    real = torch.zeros(3, width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        real[row, slice(width - length, None) if side == "left" else slice(0, length)] = True
    ids[~real] = 0
    positions = (real.cumsum(1) - 1).clamp(min=0)
    mask = (torch.ones(width, width, dtype=torch.bool).tril() & real[:, None, :]) | torch.eye(
        width, dtype=torch.bool
    )
    with torch.no_grad():
        mine = ours.head(ours.hidden(ids, positions, mask[:, None]))
        expected = peer(ids, attention_mask=real.long(), position_ids=positions).logits
    assert (mine - expected)[real].abs().max() < 1e-4


def _greedy_of_peer(peer: Qwen3ForCausalLM, prompts: list[list[int]], use_cache: bool) -> list[list[int]]:
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    real = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    options = {
        "max_new_tokens": 128,
        "do_sample": False,
        "eos_token_id": None,
        "use_cache": use_cache,
        "pad_token_id": 0,
    }
    # The mask is given: without one, transformers takes every pad id inside a prompt for padding.
    return peer.generate(ids, attention_mask=real, **options)[:, width:].tolist()


@pytest.mark.parametrize("config", SHAPES[:2])
def test_greedy_answers_of_128_tokens_are_theirs(config: Qwen3Config) -> None:
    ours, peer = _pair(config)
    batch = [row.token_ids for row in generate(ours, PROMPTS, frozenset(), GenerationConfig(128))]
    assert batch == _greedy_of_peer(peer, PROMPTS, use_cache=True)
    assert len({tuple(row) for row in batch}) == len(PROMPTS) and len(set(batch[0])) > 10, (
        "an answer that says one thing tests nothing"
    )
    for prompt, answer in zip(PROMPTS, batch, strict=True):
        assert generate(ours, [prompt], frozenset(), GenerationConfig(128))[0].token_ids == answer
    assert _greedy_of_peer(peer, PROMPTS[:1], use_cache=False) == batch[:1]
    ids = list(PROMPTS[0])
    with torch.inference_mode():
        for _ in range(128):
            ids.append(int(ours(torch.tensor([ids]))[0, -1].argmax()))
    assert ids[len(PROMPTS[0]) :] == batch[0], "and without a cache"
