"""Choices that depend on a text key alone: SHA-256 in place of a random state, so that rows never change
between machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def number(key: str, below: int) -> int:
    """A number in [0, below) that `key` decides. The bias of the remainder is under 2**-40 for any `below`
    used here.
    """
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % below


def pick(items: Sequence[T], key: str) -> T:
    """One of `items`, decided by `key` and the number of items."""
    return items[number(key, len(items))]


def shuffled(items: Sequence[T], key: str) -> list[T]:
    """All `items` in an order decided by `key`."""
    order = sorted(range(len(items)), key=lambda i: hashlib.sha256(f"{key}#{i}".encode()).digest())
    return [items[i] for i in order]


def sample(items: Sequence[T], count: int, key: str) -> list[T]:
    """`count` different positions of `items`, in an order decided by `key`; all of them if there are fewer."""
    return shuffled(items, key)[:count]
