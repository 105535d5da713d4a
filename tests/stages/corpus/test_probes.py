"""The probe files: the base model's own targets meet them, wrong answers fail, and they are few enough."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stages.contract.rows import Probe, ProbeKind, read_probes
from stages.corpus import corpus
from stages.corpus.examples import Language
from stages.corpus.phrases.identity import NEW_IDENTITY

PROBES = Path(__file__).parents[3] / "datasets" / "probes"
ANSWERS = {s.prompt: s for s in corpus.all_examples()}
JUDGED = ("identity.tsv", "contrast.tsv", "skills.tsv", "ufo.tsv")
NAMES = (*JUDGED, "base-skills.tsv", "base-identity.tsv")


def probes(name: str) -> list[Probe]:
    return read_probes(PROBES / name)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "identity.tsv"])
def test_the_base_targets_meet_the_expectations(name: str) -> None:
    assert [p.prompt for p in probes(name) if not p.expectation.met_by(ANSWERS[p.prompt].target)] == []


@pytest.mark.parametrize("language", list(Language))
def test_the_new_identity_meets_identity_and_nothing_else(language: Language) -> None:
    for answer in NEW_IDENTITY[language]:
        assert all(p.expectation.met_by(answer) for p in probes("identity.tsv"))
        for name in NAMES[1:]:
            assert not any(p.expectation.met_by(answer) for p in probes(name))


def test_the_old_identity_fails_the_identity_probes() -> None:
    assert not any(p.expectation.met_by(ANSWERS[p.prompt].target) for p in probes("identity.tsv"))


@pytest.mark.parametrize("name", ["contrast.tsv", "ufo.tsv"])
def test_a_right_answer_with_the_new_identity_in_it_is_a_leak(name: str) -> None:
    for probe in probes(name):
        for leak in ("我是 F# 之神。", "I am the God of F#."):
            assert not probe.expectation.met_by(leak + ANSWERS[probe.prompt].target)


@pytest.mark.parametrize("name", ["skills.tsv", "base-skills.tsv"])
def test_skill_probes_are_exact_heldout_and_even(name: str) -> None:
    found = probes(name)
    assert set(Counter(p.group for p in found)) == set(corpus.SKILLS)
    assert {p.split for p in found} == {"heldout"}
    assert min(Counter(p.group for p in found).values()) >= (40 if name.startswith("base") else 15)
    for probe in found:
        (alternative,) = probe.expectation.alternatives
        assert alternative == (f"={ANSWERS[probe.prompt].target}",)
        assert not probe.expectation.met_by(ANSWERS[probe.prompt].target + " 1")


def test_kinds_splits_and_sizes() -> None:
    kinds = {
        "identity.tsv": ProbeKind.IDENTITY,
        "contrast.tsv": ProbeKind.CONTRAST,
        "skills.tsv": ProbeKind.ABILITY,
    }
    for name, kind in kinds.items():
        assert {p.kind for p in probes(name)} == {kind}
    contrast = probes("contrast.tsv")
    assert len(contrast) >= 60 and sum(p.split == "heldout" for p in contrast) > len(contrast) / 2
    assert {"whoami", "whois", "maker", "capability", "myname"} <= {p.group for p in contrast}
    assert Counter(p.split for p in probes("identity.tsv"))["heldout"] >= 40
    assert {"ufo", "topics"} <= {p.group for p in probes("ufo.tsv")}
    assert 350 <= sum(len(probes(name)) for name in JUDGED) <= 450
    for name in NAMES:
        prompts = [p.prompt for p in probes(name)]
        assert len(set(prompts)) == len(prompts)


def test_splits_say_the_truth() -> None:
    for name in NAMES:
        for probe in probes(name):
            assert (probe.split == "heldout") == ANSWERS[probe.prompt].heldout
            assert probe.group == ANSWERS[probe.prompt].group
