"""Seeded choices: the key alone decides, and evenly."""

from __future__ import annotations

from collections import Counter

from stages.corpus.seeded import seeded_choice, seeded_int, seeded_sample, seeded_shuffle


def test_the_key_alone_decides() -> None:
    assert seeded_shuffle(range(50), "x") == seeded_shuffle(range(50), "x")
    assert seeded_shuffle(range(50), "x") != seeded_shuffle(range(50), "y")
    assert sorted(seeded_shuffle(range(50), "x")) == list(range(50))
    counts = Counter(seeded_int(f"{i}", 3) for i in range(3000))
    assert all(900 < n < 1100 for n in counts.values())


def test_samples_differ_and_values_never_change() -> None:
    found = seeded_sample("abcdefgh", 5, "x")
    assert len(set(found)) == 5 and sorted(seeded_sample("abc", 9, "x")) == ["a", "b", "c"]
    assert (seeded_int("x", 100), seeded_choice("abcdefgh", "x"), "".join(found)) == (76, "e", "ehfcb")
