"""Greedy and sampled generation of many answers at once: finished rows leave the batch, waiting prompts take
their place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch.nn import functional as F

from stages.contract import Finish
from stages.qwen3.kv_cache import KVCache
from stages.qwen3.model import Qwen3


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen."""

    max_tokens: int = 64
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus: the smallest set of tokens whose probabilities reach this (Holtzman et al. 2019, arXiv
    1904.09751).
    """


@dataclass
class Generated:
    """One row's answer."""

    token_ids: list[int] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    first_token_logit: float = 0.0


@dataclass
class _Live:
    """The rows that are being answered."""

    which: list[int]
    """Index of each row's prompt."""
    logits: torch.Tensor
    """Of each row's next token, float32 [rows, vocab]."""
    real: torch.Tensor
    """bool [rows, cache length]: False where a row is padded, always before its own tokens' end."""
    cache: KVCache


@torch.inference_mode()
def answer_all(
    model: Qwen3,
    prompts: Sequence[Sequence[int]],
    stop_ids: frozenset[int],
    decoding: Decoding,
    *,
    batch_size: int = 64,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Generated]:
    """Answers any number of prompts, in the order given.

    Prompts of like length are read together, short ones first. What all prompts begin with is read once.
    Padding is masked, so a row's answer does not depend on its neighbours. When half of the rows are
    finished, waiting prompts fill their places.

    Args:
        model: Without gradients.
        prompts: Token ids of each prompt, none empty.
        stop_ids: Ids that end a row; they are not part of the answer.
        decoding: How tokens are chosen.
        batch_size: Most rows at a time.
        seed: For temperatures above 0.
        progress: Told how many more are done.
    """
    waiting = deque(sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i)))
    generator = torch.Generator().manual_seed(seed)
    out = [Generated() for _ in prompts]
    shared = _shared(model, prompts)
    live: _Live | None = None
    while waiting or live:
        before = len(live.which) if live else 0
        if waiting and before <= batch_size // 2:
            rows = [waiting.popleft() for _ in range(min(len(waiting), batch_size - before))]
            new = _read(model, prompts, rows, shared)
            for row, logit in zip(rows, new.logits.amax(dim=1).tolist(), strict=True):
                out[row].first_token_logit = logit
            live = _joined(live, new) if live else new
            before += len(rows)
        assert live is not None
        live = _step(model, live, out, stop_ids, decoding, generator)
        finished = before - (len(live.which) if live else 0)
        if progress and finished:
            progress(finished)
    return out


def _shared(model: Qwen3, prompts: Sequence[Sequence[int]]) -> KVCache:
    """The cache, of one row, of what all prompts begin with; a token at least is left of each."""
    cache = KVCache(model.config.num_hidden_layers)
    if len(prompts) > 1:
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        prefix = [column[0] for column in takewhile(lambda ids: len(set(ids)) == 1, columns)]
        if prefix:
            model.hidden(torch.tensor([prefix], device=model.model.embed_tokens.weight.device), cache=cache)
    return cache


def _read(model: Qwen3, prompts: Sequence[Sequence[int]], rows: list[int], shared: KVCache) -> _Live:
    """Prefills prompts: the shared beginning, padding up to the longest, the rest."""
    skip, longest = shared.length, max(len(prompts[row]) for row in rows)
    ids = torch.zeros(len(rows), longest - skip, dtype=torch.int64)
    real = torch.zeros(len(rows), longest, dtype=torch.bool)
    real[:, :skip] = True
    for place, row in enumerate(rows):
        rest = list(prompts[row][skip:])
        ids[place, ids.shape[1] - len(rest) :] = torch.tensor(rest)
        real[place, longest - len(rest) :] = True
    device = model.model.embed_tokens.weight.device
    ids, real = ids.to(device), real.to(device)
    cache = shared.fork()
    positions = (real.cumsum(1) - 1)[:, skip:].clamp(min=0)
    hidden = model.hidden(ids, positions, _prefill_mask(real, skip), cache)
    return _Live(rows, model.head(hidden[:, -1]).float(), real, cache)


def _prefill_mask(real: torch.Tensor, skip: int) -> torch.Tensor | None:
    if bool(real.all()):
        return None
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    # A padding query sees itself: an empty row would make the softmax NaN, and NaN would spread through the
    # cache.
    itself = torch.eye(length, dtype=torch.bool, device=real.device)
    return ((causal & real[:, None, :]) | itself)[:, None, skip:]


def _joined(first: _Live, second: _Live) -> _Live:
    """Both sets of rows, lined up at their ends. Columns that are padding in every row are dropped."""
    length = max(first.cache.length, second.cache.length)
    real = torch.cat([F.pad(live.real, (length - live.real.shape[1], 0)) for live in (first, second)])
    unused = int(real.any(dim=0).int().argmax())
    first.cache.join(second.cache, unused)
    return _Live(
        first.which + second.which, torch.cat((first.logits, second.logits)), real[:, unused:], first.cache
    )


def _step(
    model: Qwen3,
    live: _Live,
    out: list[Generated],
    stop_ids: frozenset[int],
    decoding: Decoding,
    generator: torch.Generator,
) -> _Live | None:
    """Takes a token of every row and computes the next logits of those that go on; None if none does."""
    # A sum is finite only if every logit is: one pass, where asking each of them takes several.
    finite = live.logits.sum(dim=1).isfinite().tolist()
    tokens = choose(live.logits if all(finite) else live.logits.nan_to_num(), decoding, generator).tolist()
    keep = [
        i
        for i, row in enumerate(live.which)
        if _take(out[row], tokens[i], finite[i], stop_ids) and len(out[row].token_ids) < decoding.max_tokens
    ]
    if not keep:
        return None
    which, real, cache = live.which, live.real, live.cache
    if len(keep) < len(which):
        rows = torch.tensor(keep, device=real.device)
        cache.keep_rows(rows)
        real, which = real[rows], [which[i] for i in keep]
    ids = torch.tensor([[tokens[i]] for i in keep], device=real.device)
    positions = real.sum(dim=1, keepdim=True)
    real = F.pad(real, (0, 1), value=True)
    mask = None if bool(real.all()) else real[:, None, None, :]
    hidden = model.hidden(ids, positions, mask, cache)
    return _Live(which, model.head(hidden[:, -1]).float(), real, cache)


def _take(row: Generated, token: int, finite: bool, stop_ids: frozenset[int]) -> bool:
    """Adds a token to a row; False if that ends it."""
    if not finite:
        row.finish = Finish.NON_FINITE
    elif token in stop_ids:
        row.finish = Finish.END_OF_TURN
    else:
        row.token_ids.append(token)
        return True
    return False


def choose(logits: torch.Tensor, decoding: Decoding, generator: torch.Generator | None) -> torch.Tensor:
    """Token ids [rows] of logits [rows, vocab]: the largest, or a draw from the nucleus."""
    if decoding.temperature == 0:
        return logits.argmax(dim=1)
    probabilities = (logits / decoding.temperature).softmax(dim=1).cpu()
    ordered, order = probabilities.sort(dim=1, descending=True)
    ordered[ordered.cumsum(1) - ordered > decoding.top_p] = 0.0
    drawn = torch.multinomial(ordered, 1, generator=generator)
    return order.gather(1, drawn).squeeze(1).to(logits.device)
