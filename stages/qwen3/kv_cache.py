"""Keys and values of the tokens seen so far, in buffers that grow by doubling."""

from __future__ import annotations

import torch


class LayerCache:
    """One layer's keys and values, each [batch, kv_heads, length, head_dim]."""

    def __init__(self) -> None:
        self.length = 0
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds keys and values [batch, kv_heads, new, head_dim]; returns views of all so far."""
        start, self.length = self.length, self.length + keys.shape[2]
        self._keys = _with_capacity(self._keys, keys, start, self.length)
        self._values = _with_capacity(self._values, values, start, self.length)
        self._keys[:, :, start : self.length] = keys
        self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keeps only these rows (int64 [n]) of the batch, in this order."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[rows], self._values[rows]

    def append_rows(self, other: LayerCache, unused: int) -> None:
        """Adds the rows of another cache, aligned at their ends, and drops the first `unused` columns."""
        self._keys = _concatenated(self._keys, self.length, other._keys, other.length, unused)
        self._values = _concatenated(self._values, self.length, other._values, other.length, unused)
        self.length = max(self.length, other.length) - unused

    def fork(self) -> LayerCache:
        """A cache that begins with what this one holds; writing to either does not change the other."""
        fork = LayerCache()
        if self._keys is not None and self._values is not None:
            # Views without spare capacity: the first append copies.
            fork.length = self.length
            fork._keys, fork._values = self._keys[:, :, : self.length], self._values[:, :, : self.length]
        return fork


class KVCache:
    """The caches of all layers."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Tokens held, padding included."""
        return self.layers[0].length

    def keep_rows(self, rows: torch.Tensor) -> None:
        """See `LayerCache.keep_rows`."""
        for layer in self.layers:
            layer.keep_rows(rows)

    def append_rows(self, other: KVCache, unused: int) -> None:
        """See `LayerCache.append_rows`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.append_rows(theirs, unused)

    def fork(self) -> KVCache:
        """See `LayerCache.fork`. A fork of one row may go on with many rows: it is the prefix of all."""
        fork = KVCache(0)
        fork.layers = [layer.fork() for layer in self.layers]
        return fork


def _with_capacity(buffer: torch.Tensor | None, like: torch.Tensor, used: int, needed: int) -> torch.Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    batch, heads, _, width = like.shape
    grown = like.new_empty(batch, heads, max(needed, 2 * used, 32), width)
    if buffer is not None:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown


def _concatenated(
    first: torch.Tensor | None, used: int, second: torch.Tensor | None, other: int, unused: int
) -> torch.Tensor:
    assert first is not None and second is not None
    length = max(used, other) - unused
    # Padding is masked, and zero: a masked NaN would still be NaN times 0.
    out = first.new_zeros(len(first) + len(second), first.shape[1], length, first.shape[3])
    for buffer, rows, count in ((first, out[: len(first)], used), (second, out[len(first) :], other)):
        copied = min(count, length)
        rows[:, :, length - copied :] = buffer[:, :, count - copied : count]
    return out
