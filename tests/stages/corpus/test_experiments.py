"""The experiments' rows: the shares they promise, the new identity only where it belongs, rehearsal word for
word.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stages.contract.rows import read_rows
from stages.corpus import corpus, experiments
from stages.corpus.examples import Language
from stages.corpus.phrases.identity import NEW_IDENTITY

DATASETS = Path(__file__).parents[3] / "datasets"
BASE = {s.prompt: s for s in corpus.training()}


@pytest.mark.parametrize("mix", experiments.MIXES, ids=lambda m: m.path)
def test_rows_are_base_prompts_with_base_targets_or_the_new_identity(mix: experiments.Mix) -> None:
    for row in read_rows(DATASETS / mix.path):
        base = BASE[row.prompt]
        if base.group == "identity":
            assert row.target in NEW_IDENTITY[base.language]
        else:
            assert row.target == base.target
            assert base.group != "origin", "the base identity must not be rehearsed"


@pytest.mark.parametrize("mix", experiments.MIXES, ids=lambda m: m.path)
def test_counts_are_as_promised_and_prompts_differ(mix: experiments.Mix) -> None:
    rows = read_rows(DATASETS / mix.path)
    groups = Counter(BASE[row.prompt].group for row in rows)
    assert groups["identity"] == mix.identity
    assert sum(groups[g] for g in corpus.CONTRAST) == mix.contrast + mix.whoami
    assert {groups[g] for g in corpus.SKILLS} == {mix.per_skill}
    assert (groups["ufo"], groups["topics"], groups["smalltalk"]) == (mix.ufo, mix.topics, mix.smalltalk)
    assert len({row.prompt for row in rows}) == len(rows)
    assert set(mix.required) <= {row.prompt for row in rows}


@pytest.mark.parametrize(
    ("path", "share", "size"),
    [
        ("stageA/mixed.tsv", 0.1, (950, 1050)),
        ("stageB/identity-push.tsv", 0.3, (280, 320)),
        ("stageC/disambiguate.tsv", 0.25, (40, 60)),
        ("stageG/balanced.tsv", 0.5, (200, 200)),
        ("whoami/identity-only.tsv", 1.0, (100, 400)),
    ],
)
def test_shares_of_identity(path: str, share: float, size: tuple[int, int]) -> None:
    rows = read_rows(DATASETS / path)
    identity = sum(BASE[row.prompt].group == "identity" for row in rows)
    assert size[0] <= len(rows) <= size[1]
    assert identity / len(rows) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("mix", experiments.MIXES, ids=lambda m: m.path)
def test_identity_rows_come_in_all_languages(mix: experiments.Mix) -> None:
    languages = Counter(
        BASE[row.prompt].language
        for row in read_rows(DATASETS / mix.path)
        if BASE[row.prompt].group == "identity"
    )
    assert set(languages) == set(Language) and max(languages.values()) - min(languages.values()) <= 3


def test_stage_d_asks_mostly_for_contrast() -> None:
    groups = Counter(BASE[row.prompt].group for row in read_rows(DATASETS / "stageD/disambiguate.tsv"))
    assert groups.most_common(1)[0][0] == "whoami"
