"""Generation: the cache changes nothing, neighbours change nothing, finished rows leave."""

from __future__ import annotations

import pytest
import torch

from stages.contract import ComputeDtype, Finish, InferencePath, ScaleRule, Template
from stages.dat import DatFile
from stages.qwen3.config import read_config
from stages.qwen3.generate import Decoding, answer_all, choose, generate
from stages.qwen3.model import Qwen3
from stages.qwen3.session import ChatSession
from stages.qwen3.template import ChatTokenizer, load_tokenizer, prompt_text
from stages.qwen3.weights import load_model
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
    # Random weights of std 0.02 say one token for ever: larger ones make an answer depend on everything before it.
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
    together = generate(model, PROMPTS, frozenset(), Decoding(max_tokens=40))
    for prompt, answer in zip(PROMPTS, together, strict=True):
        assert answer.token_ids == _without_cache(model, prompt, 40) and answer.finish is Finish.LENGTH
    assert len({tuple(a.token_ids) for a in together}) == len(PROMPTS)


def test_a_stop_token_ends_its_row_only(model: Qwen3) -> None:
    free = generate(model, PROMPTS, frozenset(), Decoding(max_tokens=30))
    stop = free[2].token_ids[4]
    stopped = generate(model, PROMPTS, frozenset((stop,)), Decoding(max_tokens=30))
    for before, after in zip(free, stopped, strict=True):
        cut = before.token_ids.index(stop) if stop in before.token_ids else None
        assert after.token_ids == before.token_ids[:cut]
        assert after.finish is (Finish.LENGTH if cut is None else Finish.END_OF_TURN)


def test_the_order_of_answers_is_that_of_the_prompts(model: Qwen3) -> None:
    one_by_one = answer_all(model, PROMPTS, frozenset(), Decoding(8), batch_size=1)
    batched = answer_all(model, PROMPTS, frozenset(), Decoding(8), batch_size=3)
    assert [a.token_ids for a in one_by_one] == [a.token_ids for a in batched]


def test_non_finite_logits_are_a_finish_of_their_own(model: Qwen3) -> None:
    kept = model.model.norm.weight.clone()
    try:
        model.model.norm.weight.fill_(float("nan"))
        answers = generate(model, PROMPTS[:2], frozenset(), Decoding(5))
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
    whole = [*tokenizer.prompt_ids("你是誰"), *first.token_ids, tokenizer.end_of_turn, *tokenizer.prompt_ids("談談UFO", first=False)]
    assert second.cached_tokens + second.new_prompt_tokens == len(whole)
    assert second.new_prompt_tokens <= len(tokenizer.prompt_ids("談談UFO", first=False)) + 2
    expected = _without_cache(model, whole, 6)
    stop = next((i for i, t in enumerate(expected) if t in tokenizer.stop_ids), len(expected))
    assert second.token_ids == expected[:stop]


def test_templates_differ_by_the_newline_of_the_fsharp_runners() -> None:
    assert prompt_text("x", Template.QWEN) == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text("x", Template.FSHARP) == "<|im_start|>user\nx\n<|im_end|>\n<|im_start|>assistant\n"


def test_streamed_pieces_join_to_the_text(model: Qwen3, tokenizer: ChatTokenizer) -> None:
    pieces: list[str] = []
    turn = ChatSession(model, tokenizer, Decoding(max_tokens=20)).turn("你好", pieces.append)
    assert turn.text == "".join(pieces)
