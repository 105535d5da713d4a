"""A conversation: only new text is computed, interrupted answers count, a full context is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from stages.contract.events import Finish
from stages.contract.recipe import Template
from stages.inference.chat_session import ChatSession, ContextError
from stages.inference.generate import GenerationConfig
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import ChatTokenizer, load_tokenizer
from tests.conftest import TinyModel
from tests.stages.inference.conftest import greedy_without_cache, until_stop


@pytest.fixture(scope="module")
def tokenizer(tiny: TinyModel) -> ChatTokenizer:
    return load_tokenizer(tiny.folder, read_config(tiny.folder / "config.json"), Template.QWEN)


def test_a_second_turn_prefills_only_what_is_new(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    session = ChatSession(model, tokenizer, GenerationConfig(max_tokens=6))
    first, second = session.turn("你是誰"), session.turn("談談UFO")
    whole = [
        *tokenizer.prompt_ids("你是誰"),
        *first.token_ids,
        tokenizer.end_of_turn,
        *tokenizer.prompt_ids("談談UFO", first=False),
    ]
    assert second.cached_tokens + second.new_prompt_tokens == len(whole)
    assert second.new_prompt_tokens <= len(tokenizer.prompt_ids("談談UFO", first=False)) + 2
    expected = greedy_without_cache(model, whole, 6)
    assert second.token_ids == until_stop(expected, tokenizer.stop_ids)


def test_an_interrupted_answer_is_part_of_the_conversation(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    asked = itertools.count()
    session = ChatSession(model, tokenizer, GenerationConfig(max_tokens=9))
    first = session.turn("你是誰", stop=lambda: next(asked) >= 3)
    assert first.finish is Finish.INTERRUPTED and 0 < len(first.token_ids) < 9
    second = session.turn("談談UFO")
    whole = [
        *tokenizer.prompt_ids("你是誰"),
        *first.token_ids,
        tokenizer.end_of_turn,
        *tokenizer.prompt_ids("談談UFO", first=False),
    ]
    assert second.token_ids == until_stop(greedy_without_cache(model, whole, 9), tokenizer.stop_ids)


@pytest.mark.parametrize("marker", ["<|im_end|>", "<|endoftext|>"])
def test_both_end_markers_end_an_answer(
    model: Qwen3, tokenizer: ChatTokenizer, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, end = model.head, tokenizer.tokenizer.token_to_id(marker)
    monkeypatch.setattr(model, "head", lambda hidden: whole(hidden) + 1e4 * (torch.arange(300) == end))
    turn = ChatSession(model, tokenizer, GenerationConfig(max_tokens=9)).turn("你好")
    assert (turn.token_ids, turn.finish) == ([], Finish.END_OF_TURN)


def test_a_full_context_ends_an_answer_and_refuses_the_next_turn(
    model: Qwen3, tokenizer: ChatTokenizer
) -> None:
    context, endless = model.config.max_position_embeddings, replace(tokenizer, stop_ids=frozenset())
    session = ChatSession(model, endless, GenerationConfig(max_tokens=10 * context))
    first = session.turn("你是誰")
    assert first.finish is Finish.LENGTH and first.new_prompt_tokens + len(first.token_ids) == context
    with pytest.raises(ContextError, match=f"context of {context}"):
        session.turn("談談UFO")
    fresh = ChatSession(model, tokenizer, GenerationConfig(max_tokens=5))
    with pytest.raises(ContextError, match="0 tokens so far"):
        fresh.turn("z9" * context)
    assert fresh.turn("你是誰").cached_tokens == 0, "a refused turn leaves nothing behind"


def test_streamed_parts_join_to_the_text(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    parts: list[str] = []
    turn = ChatSession(model, tokenizer, GenerationConfig(max_tokens=20)).turn("你好", parts.append)
    assert turn.text == "".join(parts)
