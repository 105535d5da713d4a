"""Generation: the cache changes nothing, neighbours change nothing, finished rows leave."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from stages.contract import ComputeDtype, Finish, InferencePath, ScaleRule, Template
from stages.inference.generate import Decoding, answer_all, choose
from stages.inference.session import ChatSession, ContextError
from stages.qwen3.config import read_config
from stages.qwen3.model import Qwen3
from stages.qwen3.template import ChatTokenizer, load_tokenizer, prompt_text
from stages.weights.dat import DatFile
from stages.weights.model_weights import load_model
from tests.conftest import TinyModel

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20]]


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> Qwen3:
    with DatFile(tiny.weight) as dat:
        model, _ = load_model(
            dat,
            read_config(tiny.folder / "config.json"),
            path=InferencePath.BRIDGE,
            rule=ScaleRule.SEARCH,
            compute_dtype=ComputeDtype.FP32,
            device=torch.device("cpu"),
        )
    # Random weights of std 0.02 say one token for ever: larger ones make an answer depend on everything
    # before it.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(12)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def tokenizer(tiny: TinyModel) -> ChatTokenizer:
    return load_tokenizer(tiny.folder, read_config(tiny.folder / "config.json"), Template.QWEN)


def _without_cache(model: Qwen3, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_batches_of_unequal_prompts_answer_as_each_alone_without_a_cache(model: Qwen3) -> None:
    together = answer_all(model, PROMPTS, frozenset(), Decoding(max_tokens=40))
    for prompt, answer in zip(PROMPTS, together, strict=True):
        assert answer.token_ids == _without_cache(model, prompt, 40) and answer.finish is Finish.LENGTH
    assert len({tuple(a.token_ids) for a in together}) == len(PROMPTS)


def test_a_stop_token_ends_its_row_only(model: Qwen3) -> None:
    free = answer_all(model, PROMPTS, frozenset(), Decoding(max_tokens=30))
    stop = free[2].token_ids[4]
    stopped = answer_all(model, PROMPTS, frozenset((stop,)), Decoding(max_tokens=30))
    for before, after in zip(free, stopped, strict=True):
        cut = before.token_ids.index(stop) if stop in before.token_ids else None
        assert after.token_ids == before.token_ids[:cut]
        assert after.finish is (Finish.LENGTH if cut is None else Finish.END_OF_TURN)


def test_rows_that_leave_and_join_change_no_answer(model: Qwen3) -> None:
    """Lengths from 3 to 30, a shared beginning, stops that free places early: every batch size answers as one
    at a time.
    """
    draw = torch.Generator().manual_seed(4)
    prompts = [[3, 4, *torch.randint(5, 290, (1 + i * 7 % 28,), generator=draw).tolist()] for i in range(24)]
    free = answer_all(model, prompts, frozenset(), Decoding(24), batch_size=24)
    stops = frozenset(answer.token_ids[i % 20] for i, answer in enumerate(free) if i % 2)
    told: list[int] = []
    alone = answer_all(model, prompts, stops, Decoding(24), batch_size=1)
    assert len({len(a.token_ids) for a in alone}) > 5
    assert alone[5].token_ids == _until(_without_cache(model, prompts[5], 24), stops)
    for batch_size in (2, 3, 7, 24):
        told.clear()
        together = answer_all(
            model, prompts, stops, Decoding(24), batch_size=batch_size, progress=told.append
        )
        assert [a.token_ids for a in together] == [a.token_ids for a in alone]
        assert [a.finish for a in together] == [a.finish for a in alone]
        for a, b in zip(together, alone, strict=True):
            assert a.first_token_logit == pytest.approx(b.first_token_logit, rel=1e-4)
        assert sum(told) == len(prompts) and min(told) > 0


def test_never_more_rows_than_asked_for(model: Qwen3, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    whole = model.hidden
    monkeypatch.setattr(
        model, "hidden", lambda ids, *rest, **named: (rows.append(len(ids)), whole(ids, *rest, **named))[1]
    )
    answer_all(model, PROMPTS * 4, frozenset(), Decoding(9), batch_size=6)
    assert max(rows) == 6


def _until(ids: list[int], stops: frozenset[int]) -> list[int]:
    return ids[: next((i for i, token in enumerate(ids) if token in stops), len(ids))]


def test_non_finite_logits_are_a_finish_of_their_own(model: Qwen3) -> None:
    kept = model.model.norm.weight.clone()
    try:
        model.model.norm.weight.fill_(float("nan"))
        answers = answer_all(model, PROMPTS[:2], frozenset(), Decoding(5))
    finally:
        model.model.norm.weight.copy_(kept)
    assert [(a.finish, a.token_ids) for a in answers] == [(Finish.NON_FINITE, [])] * 2


def test_sampling_is_seeded_and_keeps_to_the_nucleus() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -5.0]]).repeat(2000, 1)
    draw = choose(logits, Decoding(temperature=1.0, top_p=0.8), torch.Generator().manual_seed(1))
    again = choose(logits, Decoding(temperature=1.0, top_p=0.8), torch.Generator().manual_seed(1))
    assert torch.equal(draw, again) and set(draw.tolist()) == {0, 1}
    share = (draw == 0).float().mean().item()
    assert share == pytest.approx(torch.tensor([3.0, 2.0]).softmax(0)[0].item(), abs=0.05)


def test_a_second_turn_prefills_only_what_is_new(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    session = ChatSession(model, tokenizer, Decoding(max_tokens=6))
    first, second = session.turn("你是誰"), session.turn("談談UFO")
    whole = [
        *tokenizer.prompt_ids("你是誰"),
        *first.token_ids,
        tokenizer.end_of_turn,
        *tokenizer.prompt_ids("談談UFO", first=False),
    ]
    assert second.cached_tokens + second.new_prompt_tokens == len(whole)
    assert second.new_prompt_tokens <= len(tokenizer.prompt_ids("談談UFO", first=False)) + 2
    expected = _without_cache(model, whole, 6)
    stop = next((i for i, t in enumerate(expected) if t in tokenizer.stop_ids), len(expected))
    assert second.token_ids == expected[:stop]


def test_an_interrupted_answer_is_part_of_the_conversation(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    asked = itertools.count()
    session = ChatSession(model, tokenizer, Decoding(max_tokens=9))
    first = session.turn("你是誰", stop=lambda: next(asked) >= 3)
    assert first.finish is Finish.INTERRUPTED and 0 < len(first.token_ids) < 9
    second = session.turn("談談UFO")
    whole = [
        *tokenizer.prompt_ids("你是誰"),
        *first.token_ids,
        tokenizer.end_of_turn,
        *tokenizer.prompt_ids("談談UFO", first=False),
    ]
    assert second.token_ids == _until(_without_cache(model, whole, 9), tokenizer.stop_ids)


@pytest.mark.parametrize("marker", ["<|im_end|>", "<|endoftext|>"])
def test_both_end_markers_end_an_answer(
    model: Qwen3, tokenizer: ChatTokenizer, marker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, end = model.head, tokenizer.tokenizer.token_to_id(marker)
    monkeypatch.setattr(model, "head", lambda hidden: whole(hidden) + 1e4 * (torch.arange(300) == end))
    turn = ChatSession(model, tokenizer, Decoding(max_tokens=9)).turn("你好")
    assert (turn.token_ids, turn.finish) == ([], Finish.END_OF_TURN)


def test_a_full_context_ends_an_answer_and_refuses_the_next_turn(
    model: Qwen3, tokenizer: ChatTokenizer
) -> None:
    context, endless = model.config.max_position_embeddings, replace(tokenizer, stop_ids=frozenset())
    session = ChatSession(model, endless, Decoding(max_tokens=10 * context))
    first = session.turn("你是誰")
    assert first.finish is Finish.LENGTH and first.new_prompt_tokens + len(first.token_ids) == context
    with pytest.raises(ContextError, match=f"context of {context}"):
        session.turn("談談UFO")
    fresh = ChatSession(model, tokenizer, Decoding(max_tokens=5))
    with pytest.raises(ContextError, match="0 tokens so far"):
        fresh.turn("z9" * context)
    assert fresh.turn("你是誰").cached_tokens == 0, "a refused turn leaves nothing behind"


def test_templates_differ_by_the_newline_of_the_fsharp_runners() -> None:
    assert prompt_text("x", Template.QWEN) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text("x", Template.FSHARP) == "<|im_start|>user\nx\n<|im_end|>\n<|im_start|>assistant\n"


def test_streamed_pieces_join_to_the_text(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    pieces: list[str] = []
    turn = ChatSession(model, tokenizer, Decoding(max_tokens=20)).turn("你好", pieces.append)
    assert turn.text == "".join(pieces)
