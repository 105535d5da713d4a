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

    def truncate(self, length: int) -> None:
        """Forgets everything after the first `length` tokens."""
        self.length = min(self.length, length)


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

    def truncate(self, length: int) -> None:
        """See `LayerCache.truncate`."""
        for layer in self.layers:
            layer.truncate(length)


def _room(buffer: torch.Tensor | None, like: torch.Tensor, used: int, needed: int) -> torch.Tensor:
    if buffer is not None and buffer.shape[2] >= needed:
        return buffer
    batch, heads, _, width = like.shape
    grown = like.new_empty(batch, heads, max(needed, 2 * used, 32), width)
    if buffer is not None:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown
