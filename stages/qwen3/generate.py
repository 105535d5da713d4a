"""Greedy and sampled generation in batches with a KV cache; finished rows leave the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

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
    """Nucleus: the smallest set of tokens whose probabilities reach this (Holtzman et al. 2019, arXiv 1904.09751)."""


@dataclass
class Generated:
    """One row's answer."""

    token_ids: list[int] = field(default_factory=list)
    finish: Finish = Finish.LENGTH
    first_token_logit: float = 0.0


@torch.inference_mode()
def generate(
    model: Qwen3,
    prompts: Sequence[Sequence[int]],
    stop_ids: frozenset[int],
    decoding: Decoding,
    generator: torch.Generator | None = None,
) -> list[Generated]:
    """Answers a batch of prompts.

    Prompts are padded on the left, and padding is masked, so a row's answer does not depend on its neighbours.

    Args:
        prompts: Token ids of each prompt, none empty.
        stop_ids: Ids that end a row; they are not part of the answer.
        generator: For temperatures above 0, on the CPU.
    """
    device = model.model.embed_tokens.weight.device
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    real = torch.zeros(len(prompts), longest, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(list(prompt))
        real[row, longest - len(prompt) :] = True
    ids, real = ids.to(device), real.to(device)
    cache = KVCache(model.config.num_hidden_layers)
    positions = (real.cumsum(1) - 1).clamp(min=0)
    hidden = model.hidden(ids, positions, _prefill_mask(real), cache)
    logits = model.head(hidden[:, -1]).float()
    return _decode(model, logits, real, cache, stop_ids, decoding, generator)


def _prefill_mask(real: torch.Tensor) -> torch.Tensor | None:
    if bool(real.all()):
        return None
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=real.device).tril()
    # A padding query sees itself: an empty row would make the softmax NaN, and NaN would spread through the cache.
    itself = torch.eye(length, dtype=torch.bool, device=real.device)
    return ((causal & real[:, None, :]) | itself)[:, None]


def _decode(
    model: Qwen3,
    logits: torch.Tensor,
    real: torch.Tensor,
    cache: KVCache,
    stop_ids: frozenset[int],
    decoding: Decoding,
    generator: torch.Generator | None,
) -> list[Generated]:
    out = [Generated(first_token_logit=value) for value in logits.amax(dim=1).tolist()]
    live = list(range(len(out)))
    next_position = real.sum(dim=1)
    padded = not bool(real.all())
    for _ in range(decoding.max_tokens):
        finite = torch.isfinite(logits).all(dim=1).tolist()
        tokens = choose(torch.nan_to_num(logits), decoding, generator).tolist()
        keep = [i for i, row in enumerate(live) if _take(out[row], tokens[i], finite[i], stop_ids)]
        if not keep or len(out[live[keep[0]]].token_ids) >= decoding.max_tokens:
            break
        if len(keep) < len(live):
            rows = torch.tensor(keep, device=logits.device)
            cache.keep_rows(rows)
            real, next_position = real[rows], next_position[rows]
            live = [live[i] for i in keep]
        ids = torch.tensor([[tokens[i]] for i in keep], device=logits.device)
        real = torch.cat((real, real.new_ones(len(live), 1)), dim=1)
        mask = real[:, None, None, :] if padded else None
        hidden = model.hidden(ids, next_position[:, None], mask, cache)
        logits = model.head(hidden[:, -1]).float()
        next_position = next_position + 1
    return out


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


def answer_all(
    model: Qwen3,
    prompts: Sequence[Sequence[int]],
    stop_ids: frozenset[int],
    decoding: Decoding,
    *,
    batch_size: int,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Generated]:
    """Answers any number of prompts, batched by length, in the order given.

    Args:
        batch_size: Most prompts in one batch.
        progress: Told how many more are done, after each batch.
    """
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    generator = torch.Generator().manual_seed(seed)
    out: list[Generated] = [Generated() for _ in prompts]
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for index, answer in zip(batch, generate(model, [prompts[i] for i in batch], stop_ids, decoding, generator), strict=True):
            out[index] = answer
        if progress:
            progress(len(batch))
    return out
