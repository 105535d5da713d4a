"""Greedy and sampled generation of many answers at once: finished rows leave the batch, waiting prompts take
their slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch.nn import functional as F

from stages.contract.events import Finish
from stages.qwen3.kv_cache import KVCache
from stages.qwen3.model import Qwen3


@dataclass(frozen=True)
class GenerationConfig:
    """How tokens are chosen, and how many."""

    max_tokens: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens whose probabilities reach this (Holtzman et al. 2019,
    arXiv 1904.09751).
    """


@dataclass
class Completion:
    """The answer to one prompt."""

    token_ids: list[int] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    first_token_logit: float = 0.0


@dataclass
class _ActiveRows:
    """The rows of the batch that is being answered."""

    prompts: list[int]
    """Index of each row's prompt."""
    logits: torch.Tensor
    """For each row's next token, float32 [rows, vocab]."""
    mask: torch.Tensor
    """bool [rows, cache length]: False where a row is padded, always before its first token."""
    cache: KVCache


@torch.inference_mode()
def generate(
    model: Qwen3,
    prompts: Sequence[Sequence[int]],
    stop_ids: frozenset[int],
    config: GenerationConfig,
    *,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Completion]:
    """Answers any number of prompts; completions come in the order of the prompts.

    Prompts of similar length are prefilled together, short ones first; their common prefix is prefilled once.
    Padding is masked, so a row's answer does not depend on the others. When half of the rows are finished,
    waiting prompts take their slots.

    Args:
        model: Without gradients.
        prompts: Token ids of each prompt, none empty.
        stop_ids: Ids that end a row; they are not part of the answer.
        config: How tokens are chosen, and how many.
        batch_size: Most rows at a time.
        seed: For temperatures above 0.
        progress: Called with the number of prompts that were finished since the last call.
    """
    waiting = deque(sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i)))
    generator = torch.Generator().manual_seed(seed)
    completions = [Completion() for _ in prompts]
    prefix = _prefill_common_prefix(model, prompts)
    active: _ActiveRows | None = None
    while waiting or active:
        count = len(active.prompts) if active else 0
        if waiting and count <= batch_size // 2:
            chosen = [waiting.popleft() for _ in range(min(len(waiting), batch_size - count))]
            new = _prefill(model, prompts, chosen, prefix)
            for index, logit in zip(chosen, new.logits.amax(dim=1).tolist(), strict=True):
                completions[index].first_token_logit = logit
            active = _concatenated(active, new) if active else new
            count += len(chosen)
        assert active is not None
        active = _decode_step(model, active, completions, stop_ids, config, generator)
        finished = count - (len(active.prompts) if active else 0)
        if progress and finished:
            progress(finished)
    return completions


def _prefill_common_prefix(model: Qwen3, prompts: Sequence[Sequence[int]]) -> KVCache:
    """A cache of one row with the common prefix of all prompts; at least the last token of each stays out."""
    cache = KVCache(model.config.num_hidden_layers)
    if len(prompts) > 1:
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        prefix = [column[0] for column in takewhile(lambda ids: len(set(ids)) == 1, columns)]
        if prefix:
            model.hidden(torch.tensor([prefix], device=model.model.embed_tokens.weight.device), cache=cache)
    return cache


def _prefill(
    model: Qwen3, prompts: Sequence[Sequence[int]], chosen: list[int], prefix: KVCache
) -> _ActiveRows:
    """Prefills prompts: the common prefix, padding up to the longest, the rest."""
    skip, longest = prefix.length, max(len(prompts[index]) for index in chosen)
    ids = torch.zeros(len(chosen), longest - skip, dtype=torch.int64)
    mask = torch.zeros(len(chosen), longest, dtype=torch.bool)
    mask[:, :skip] = True
    for row, index in enumerate(chosen):
        rest = list(prompts[index][skip:])
        ids[row, ids.shape[1] - len(rest) :] = torch.tensor(rest)
        mask[row, longest - len(rest) :] = True
    device = model.model.embed_tokens.weight.device
    ids, mask = ids.to(device), mask.to(device)
    cache = prefix.fork()
    positions = (mask.cumsum(1) - 1)[:, skip:].clamp(min=0)
    hidden = model.hidden(ids, positions, _prefill_attention_mask(mask, skip), cache)
    return _ActiveRows(chosen, model.head(hidden[:, -1]).float(), mask, cache)


def _prefill_attention_mask(mask: torch.Tensor, skip: int) -> torch.Tensor | None:
    """bool [rows, 1, length - skip, length]; None if no row is padded."""
    if bool(mask.all()):
        return None
    length = mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    # A padding query sees itself: a row without keys would make the softmax NaN, and NaN would spread through
    # the cache.
    diagonal = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((causal & mask[:, None, :]) | diagonal)[:, None, skip:]


def _concatenated(first: _ActiveRows, second: _ActiveRows) -> _ActiveRows:
    """Both sets of rows, aligned at their ends. Columns that are padding in every row are dropped."""
    length = max(first.cache.length, second.cache.length)
    mask = torch.cat([F.pad(rows.mask, (length - rows.mask.shape[1], 0)) for rows in (first, second)])
    unused = int(mask.any(dim=0).int().argmax())
    first.cache.append_rows(second.cache, unused)
    logits = torch.cat((first.logits, second.logits))
    return _ActiveRows(first.prompts + second.prompts, logits, mask[:, unused:], first.cache)


def _decode_step(
    model: Qwen3,
    active: _ActiveRows,
    completions: list[Completion],
    stop_ids: frozenset[int],
    config: GenerationConfig,
    generator: torch.Generator,
) -> _ActiveRows | None:
    """Adds a token to every row and computes the next logits of those that go on; None if none does."""
    # A sum is finite only if every logit is: one pass instead of several.
    finite = active.logits.sum(dim=1).isfinite().tolist()
    logits = active.logits if all(finite) else active.logits.nan_to_num()
    tokens = sample_tokens(logits, config, generator).tolist()
    going_on = [
        row
        for row, index in enumerate(active.prompts)
        if _append(completions[index], tokens[row], finite[row], stop_ids)
        and len(completions[index].token_ids) < config.max_tokens
    ]
    if not going_on:
        return None
    prompts, mask, cache = active.prompts, active.mask, active.cache
    if len(going_on) < len(prompts):
        rows = torch.tensor(going_on, device=mask.device)
        cache.keep_rows(rows)
        mask, prompts = mask[rows], [prompts[row] for row in going_on]
    ids = torch.tensor([[tokens[row]] for row in going_on], device=mask.device)
    positions = mask.sum(dim=1, keepdim=True)
    mask = F.pad(mask, (0, 1), value=True)
    hidden = model.hidden(ids, positions, None if bool(mask.all()) else mask[:, None, None, :], cache)
    return _ActiveRows(prompts, model.head(hidden[:, -1]).float(), mask, cache)


def _append(completion: Completion, token: int, finite: bool, stop_ids: frozenset[int]) -> bool:
    """Adds a token; False if the completion ends instead."""
    if not finite:
        completion.finish = Finish.NON_FINITE
    elif token in stop_ids:
        completion.finish = Finish.END_OF_TURN
    else:
        completion.token_ids.append(token)
        return True
    return False


def sample_tokens(
    logits: torch.Tensor, config: GenerationConfig, generator: torch.Generator | None
) -> torch.Tensor:
    """Token ids int64 [rows] for logits [rows, vocab]: the largest, or drawn from the nucleus."""
    if config.temperature == 0:
        return logits.argmax(dim=1)
    probabilities = (logits / config.temperature).softmax(dim=1).cpu()
    ordered, order = probabilities.sort(dim=1, descending=True)
    ordered[ordered.cumsum(1) - ordered > config.top_p] = 0.0
    drawn = torch.multinomial(ordered, 1, generator=generator)
    return order.gather(1, drawn).squeeze(1).to(logits.device)
