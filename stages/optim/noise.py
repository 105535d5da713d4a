"""Random bits as a pure function of (seed, step, tensor, element): the same on every device, in any order of
work.

The hash is `lowbias32` of Chris Wellons' hash prospector (public domain,
https://github.com/skeeto/hash-prospector).
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def hash32(value: int) -> int:
    """`lowbias32` of one 32-bit number."""
    value &= _MASK
    value = ((value ^ value >> 16) * 0x7FEB352D) & _MASK
    value = ((value ^ value >> 15) * 0x846CA68B) & _MASK
    return value ^ value >> 16


def key_of(seed: int, step: int, tensor_index: int) -> int:
    """The 32-bit key of one tensor's update at one step."""
    return hash32(hash32(hash32(seed) ^ step) ^ tensor_index)


def random_bits(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """int32 [count]: 32 random bits for each of the elements `start` to `start + count` of a tensor."""
    bits = torch.arange(start, start + count, dtype=torch.int64, device=device).to(torch.int32)
    bits ^= _signed(key)
    bits ^= (bits >> 16) & 0xFFFF  # int32 shifts keep the sign: the mask makes them logical
    bits *= _FIRST
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= _SECOND
    bits ^= (bits >> 16) & 0xFFFF
    return bits
