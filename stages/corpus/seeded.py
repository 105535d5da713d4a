"""Choices that a text key alone decides, by SHA-256 instead of a random state: the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def seeded_int(key: str, below: int) -> int:
    """An integer in [0, below). The bias of the remainder is under 2**-40 for every `below` used here."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % below


def seeded_choice(items: Sequence[T], key: str) -> T:
    """One of `items`."""
    return items[seeded_int(key, len(items))]


def seeded_shuffle(items: Sequence[T], key: str) -> list[T]:
    """All `items` in another order."""
    order = sorted(range(len(items)), key=lambda i: hashlib.sha256(f"{key}#{i}".encode()).digest())
    return [items[i] for i in order]


def seeded_sample(items: Sequence[T], count: int, key: str) -> list[T]:
    """`count` of the `items` without replacement, in shuffled order; all of them if there are fewer."""
    return seeded_shuffle(items, key)[:count]
