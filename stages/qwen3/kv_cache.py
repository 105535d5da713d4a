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
        self._keys = _room(self._keys, keys, start, self.length)
        self._values = _room(self._values, values, start, self.length)
        self._keys[:, :, start : self.length] = keys
        self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Keeps only these rows (int64 [n]) of the batch, in this order."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[rows], self._values[rows]

    def join(self, other: LayerCache, unused: int) -> None:
        """Adds the rows of another, lined up at the end, without the first `unused` columns of what that
        gives.
        """
        self._keys = _lined_up(self._keys, self.length, other._keys, other.length, unused)
        self._values = _lined_up(self._values, self.length, other._values, other.length, unused)
        self.length = max(self.length, other.length) - unused

    def fork(self) -> LayerCache:
        """A cache that begins with what this one holds and shares nothing that either writes to."""
        made = LayerCache()
        if self._keys is not None and self._values is not None:
            # Without room for more: the first append copies.
            made.length, made._keys, made._values = (
                self.length,
                self._keys[:, :, : self.length],
                self._values[:, :, : self.length],
            )
        return made


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

    def join(self, other: KVCache, unused: int) -> None:
        """See `LayerCache.join`."""
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            mine.join(theirs, unused)

    def fork(self) -> KVCache:
        """See `LayerCache.fork`. The fork of a cache of one row may go on with many: all of them begin with
        it.
        """
        made = KVCache(0)
        made.layers = [layer.fork() for layer in self.layers]
        return made


def _room(buffer: torch.Tensor | None, like: torch.Tensor, used: int, needed: int) -> torch.Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    batch, heads, _, width = like.shape
    grown = like.new_empty(batch, heads, max(needed, 2 * used, 32), width)
    if buffer is not None:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown


def _lined_up(
    first: torch.Tensor | None, used: int, second: torch.Tensor | None, other: int, unused: int
) -> torch.Tensor:
    assert first is not None and second is not None
    length = max(used, other) - unused
    # Padding is masked, and zero: a masked NaN would still be NaN times 0.
    out = first.new_zeros(len(first) + len(second), first.shape[1], length, first.shape[3])
    for buffer, rows, count in ((first, out[: len(first)], used), (second, out[len(first) :], other)):
        kept = min(count, length)
        rows[:, :, length - kept :] = buffer[:, :, count - kept : count]
    return out
