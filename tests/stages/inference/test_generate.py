"""Generation: the cache changes nothing, neighbours change nothing, finished rows leave."""

from __future__ import annotations

import pytest
import torch

from stages.contract.events import Finish
from stages.inference.generate import GenerationConfig, generate, sample_tokens
from stages.qwen3.model import Qwen3
from tests.stages.inference.conftest import greedy_without_cache, until_stop

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [16, 17], [18, 19, 20]]


def test_batches_of_unequal_prompts_answer_as_each_alone_without_a_cache(model: Qwen3) -> None:
    together = generate(model, PROMPTS, frozenset(), GenerationConfig(max_tokens=40))
    for prompt, answer in zip(PROMPTS, together, strict=True):
        assert answer.token_ids == greedy_without_cache(model, prompt, 40) and answer.finish is Finish.LENGTH
    assert len({tuple(a.token_ids) for a in together}) == len(PROMPTS)


def test_a_stop_token_ends_its_row_only(model: Qwen3) -> None:
    free = generate(model, PROMPTS, frozenset(), GenerationConfig(max_tokens=30))
    stop = free[2].token_ids[4]
    stopped = generate(model, PROMPTS, frozenset((stop,)), GenerationConfig(max_tokens=30))
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
    free = generate(model, prompts, frozenset(), GenerationConfig(24), batch_size=24)
    stops = frozenset(answer.token_ids[i % 20] for i, answer in enumerate(free) if i % 2)
    progress: list[int] = []
    alone = generate(model, prompts, stops, GenerationConfig(24), batch_size=1)
    assert len({len(a.token_ids) for a in alone}) > 5
    assert alone[5].token_ids == until_stop(greedy_without_cache(model, prompts[5], 24), stops)
    for batch_size in (2, 3, 7, 24):
        progress.clear()
        together = generate(
            model, prompts, stops, GenerationConfig(24), batch_size=batch_size, progress=progress.append
        )
        assert [a.token_ids for a in together] == [a.token_ids for a in alone]
        assert [a.finish for a in together] == [a.finish for a in alone]
        for a, b in zip(together, alone, strict=True):
            assert a.first_token_logit == pytest.approx(b.first_token_logit, rel=1e-4)
        assert sum(progress) == len(prompts) and min(progress) > 0


def test_never_more_rows_than_asked_for(model: Qwen3, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    whole = model.hidden
    monkeypatch.setattr(
        model, "hidden", lambda ids, *rest, **named: (rows.append(len(ids)), whole(ids, *rest, **named))[1]
    )
    generate(model, PROMPTS * 4, frozenset(), GenerationConfig(9), batch_size=6)
    assert max(rows) == 6


def test_non_finite_logits_are_a_finish_of_their_own(model: Qwen3) -> None:
    saved = model.model.norm.weight.clone()
    try:
        model.model.norm.weight.fill_(float("nan"))
        answers = generate(model, PROMPTS[:2], frozenset(), GenerationConfig(5))
    finally:
        model.model.norm.weight.copy_(saved)
    assert [(a.finish, a.token_ids) for a in answers] == [(Finish.NON_FINITE, [])] * 2


def test_sampling_is_seeded_and_keeps_to_the_nucleus() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, -5.0]]).repeat(2000, 1)
    draw = sample_tokens(
        logits, GenerationConfig(temperature=1.0, top_p=0.8), torch.Generator().manual_seed(1)
    )
    again = sample_tokens(
        logits, GenerationConfig(temperature=1.0, top_p=0.8), torch.Generator().manual_seed(1)
    )
    assert torch.equal(draw, again) and set(draw.tolist()) == {0, 1}
    share = (draw == 0).float().mean().item()
    assert share == pytest.approx(torch.tensor([3.0, 2.0]).softmax(0)[0].item(), abs=0.05)
