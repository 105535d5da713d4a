"""Computed skills: answers recomputed by other code than the generator's, held-out values never trained."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from stages.corpus import corpus
from tests.stages.corpus.conftest import of


def numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


@pytest.mark.parametrize("group", ["addition", "subtraction"])
def test_arithmetic_is_right(group: str) -> None:
    for sample in of(group):
        a, b = numbers(sample.prompt)
        if group == "addition":
            assert int(sample.target) == a + b
        else:
            assert int(sample.target) == max(a, b) - min(a, b)
            from_second = sample.prompt.startswith(("Subtract", "Please subtract"))
            assert (b >= a) if from_second else (a >= b), sample.prompt


def test_comparison_is_right() -> None:
    for sample in of("comparison"):
        a, b = numbers(sample.prompt)
        larger = any(word in sample.prompt for word in ("大", "larger", "bigger"))
        assert a != b and int(sample.target) == (max(a, b) if larger else min(a, b)), sample


def test_ordering_is_right() -> None:
    descending = ("由大", "從大", "从大", "descending", "large to small", "largest to smallest")
    for sample in of("ordering"):
        expected = sorted(numbers(sample.prompt), reverse=any(word in sample.prompt for word in descending))
        assert numbers(sample.target) == expected, sample


def test_counting_is_right() -> None:
    for sample in of("counting"):
        assert int(sample.target) == sample.prompt.count(",") + 1, sample


def test_copying_is_right() -> None:
    for sample in of("copying"):
        assert sample.prompt.endswith(sample.target)
        assert sample.prompt[: -len(sample.target)].strip()[-1] in "：:"


@pytest.mark.parametrize("group", ["addition", "subtraction", "comparison", "ordering"])
def test_heldout_numbers_are_in_no_training_prompt_in_any_order(group: str) -> None:
    trained = {tuple(sorted(numbers(s.prompt))) for s in of(group, False)}
    heldout = {tuple(sorted(numbers(s.prompt))) for s in of(group, True)}
    assert len(heldout) >= 50
    assert not trained & heldout


def test_heldout_lists_are_in_no_training_prompt() -> None:
    trained = {tuple(sorted(s.target.split())) for s in of("copying", False)}
    assert not trained & {tuple(sorted(s.target.split())) for s in of("copying", True)}
    lists = {s.prompt.split("：")[-1] for s in of("counting", False)}
    assert not lists & {s.prompt.split("：")[-1] for s in of("counting", True)}


@pytest.mark.parametrize("group", corpus.SKILLS)
def test_heldout_has_40_prompts_in_all_languages_and_splits_phrasings(group: str) -> None:
    heldout = of(group, True)
    assert len(heldout) >= 40
    assert min(Counter(s.language for s in heldout).values()) >= 10
