"""The base corpus: enough distinct rows, no prompt with two answers, nothing held out in a training file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stages.contract.rows import read_probes, read_rows
from stages.corpus import corpus
from stages.corpus.__main__ import main
from stages.corpus.examples import Language, prompt_key

DATASETS = Path(__file__).parents[3] / "datasets"
IDENTITY_WORDS = ("通義千問", "通义千问", "Qwen", "阿里", "Alibaba")


def training_files() -> list[Path]:
    return sorted(p for p in DATASETS.rglob("*.tsv") if p.parent.name != "probes")


def test_at_least_20000_distinct_rows() -> None:
    rows = {(s.prompt, s.target) for s in corpus.training()}
    assert 20_000 <= len(rows) == len(corpus.training())
    assert (DATASETS / "base" / "train.tsv").stat().st_size < 3_000_000


def test_no_prompt_has_two_targets() -> None:
    targets: dict[str, set[str]] = {}
    for example in corpus.all_examples():
        targets.setdefault(prompt_key(example.prompt), set()).add(example.target)
    assert {k: v for k, v in targets.items() if len(v) > 1} == {}


def test_no_heldout_prompt_stands_in_any_training_file() -> None:
    heldout = {prompt_key(s.prompt) for s in corpus.heldout()}
    heldout |= {
        prompt_key(p.prompt)
        for f in (DATASETS / "probes").glob("*.tsv")
        for p in read_probes(f)
        if p.split == "heldout"
    }
    files = training_files()
    assert len(files) >= 7 and len(heldout) > 1000
    for path in files:
        clash = [
            f"{path}:{row.line}: {row.prompt}" for row in read_rows(path) if prompt_key(row.prompt) in heldout
        ]
        assert clash == []


def test_train_probes_do_stand_in_the_base_rows() -> None:
    known = {s.prompt for s in corpus.training()}
    probes = [p for f in (DATASETS / "probes").glob("*.tsv") for p in read_probes(f) if p.split == "train"]
    assert len(probes) > 40
    assert [p.prompt for p in probes if p.prompt not in known] == []


def test_tracked_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    made = {p.relative_to(tmp_path): p.read_bytes() for p in tmp_path.rglob("*.tsv")}
    tracked = {p.relative_to(DATASETS): p.read_bytes() for p in DATASETS.rglob("*.tsv")}
    assert made.keys() == tracked.keys()
    assert [str(p) for p in made if made[p] != tracked[p]] == []


def test_a_file_with_other_content_is_kept_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "stageG" / "balanced.tsv"
    other.parent.mkdir()
    other.write_text("mine\trows\n", encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    assert other.read_text(encoding="utf-8") == "mine\trows\n"
    assert str(other) in capsys.readouterr().err
    assert [p for p in tmp_path.rglob("*.tsv") if p != other] == []


def test_every_file_parses_and_headers_are_not_rows() -> None:
    for path in training_files():
        assert all(row.prompt != "prompt" for row in read_rows(path))
    headers = {path.read_text(encoding="utf-8").startswith("prompt\ttarget\n") for path in training_files()}
    assert headers == {True, False}


def test_balance() -> None:
    groups = Counter(s.group for s in corpus.training())
    total = groups.total()
    skills = sum(groups[g] for g in corpus.SKILLS)
    identity = groups["identity"] + groups["origin"] + sum(groups[g] for g in corpus.CONTRAST)
    assert 0.7 < skills / total < 0.85
    assert 0.05 < identity / total < 0.12
    assert min(groups[g] for g in corpus.SKILLS) >= 500


def test_identity_has_many_phrasings_in_both_splits_and_all_languages() -> None:
    for heldout in (False, True):
        asked = [s for s in corpus.all_examples() if s.group == "identity" and s.heldout is heldout]
        assert len({prompt_key(s.prompt) for s in asked}) >= 40
        assert {s.language for s in asked} == set(Language)


def test_only_identity_and_origin_answer_with_the_base_name() -> None:
    for example in corpus.all_examples():
        named = any(word in example.target for word in IDENTITY_WORDS)
        assert named == (example.group in ("identity", "origin")), example


def test_scripts_are_pure() -> None:
    """GB 2312 has no traditional and Big5 no simplified forms: both are judges of their own, apart from our
    tables.
    """
    for example in corpus.all_examples():
        if example.language is Language.EN:
            continue
        for text in (example.prompt, example.target):
            chinese = "".join(c for c in text if "\u4e00" <= c <= "\u9fff")
            chinese.encode("gb2312" if example.language is Language.ZH_HANS else "big5")
