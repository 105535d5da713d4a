"""The KV cache: it grows, its rows leave and come, forks share nothing that is written."""

from __future__ import annotations

import torch

from stages.qwen3.kv_cache import KVCache, LayerCache


def _values(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 2, length, 4, generator=torch.Generator().manual_seed(seed))


def test_what_is_appended_comes_back_in_order_while_buffers_grow() -> None:
    cache, whole = LayerCache(), _values(3, 100)
    for start, end in ((0, 7), (7, 8), (8, 40), (40, 100)):
        keys, values = cache.append(whole[:, :, start:end], -whole[:, :, start:end])
        assert cache.length == end
        assert torch.equal(keys, whole[:, :, :end]) and torch.equal(values, -whole[:, :, :end])


def test_rows_leave_and_come_aligned_at_their_ends() -> None:
    first, second = LayerCache(), LayerCache()
    a, b = _values(3, 6, 1), _values(1, 4, 2)
    first.append(a, a)
    second.append(b, b)
    first.keep_rows(torch.tensor([2, 0]))
    first.append_rows(second, unused=1)
    keys, _ = first.append(_values(3, 1, 3), _values(3, 1, 3))
    assert first.length == 6
    assert torch.equal(keys[:2, :, :5], a[[2, 0], :, 1:])
    assert torch.equal(keys[2:, :, 1:5], b) and keys[2:, :, 0].eq(0).all(), "padding is zero"


def test_forks_begin_with_the_same_tokens_and_go_on_alone() -> None:
    cache, prefix = KVCache(1), _values(1, 5)
    cache.layers[0].append(prefix, prefix)
    one, many = cache.fork(), cache.fork()
    one.layers[0].append(_values(1, 1, 1), _values(1, 1, 1))
    keys, _ = many.layers[0].append(_values(3, 2, 2), _values(3, 2, 2))
    assert (cache.length, one.length, many.length) == (5, 6, 7)
    assert torch.equal(keys, torch.cat((prefix.expand(3, -1, -1, -1), _values(3, 2, 2)), dim=2))
