"""The content key: what decides the bytes changes it, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import Settings
from pipeline.guard.machine import Machine
from pipeline.run import content_key as module
from pipeline.run.content_key import content_key
from pipeline.run.plan import base_weight
from stages.contract.recipe import ComputeDtype, DataSource
from tests.pipeline.project import make_project, project, settings_of

__all__ = ["project"]

STAGES = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"]}}
CPU, GPU = Machine(), Machine((80.0,), 90.0)


def key_of(settings: Settings, root: Path, machine: Machine = CPU, **recipe: Any) -> str:
    stage = settings.stages[0]
    return content_key(stage, replace(stage.recipe, **recipe), base_weight(settings, root), root, machine)


def test_what_decides_the_result_changes_the_key(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(project, STAGES)
    keys = [key_of(settings, project)]
    for changes in (
        {"lr": 1e-5},
        {"seed": 1},
        {"threads": 3},
        {"compute_dtype": ComputeDtype.BF16},
        {"data": [DataSource("data/two.tsv", 2)]},
    ):
        keys.append(key_of(settings, project, **changes))
    for path in ("data/two.tsv", "model/base.dat", "model/tokenizer.json", "model/config.json"):
        file = project / path
        before = file.read_text(encoding="utf-8")
        file.write_text(before + "x\ty\n", encoding="utf-8")
        keys.append(key_of(settings, project))
        file.write_text(before, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(module, "code_key", lambda entry: f"other {entry}")
        keys.append(key_of(settings, project))
    assert len(set(keys)) == len(keys)
    assert key_of(settings, project) == keys[0]


def test_a_cpu_and_a_gpu_have_keys_of_their_own_and_auto_is_what_it_stands_for(project: Path) -> None:
    settings = settings_of(project, STAGES)
    cpu, gpu = key_of(settings, project), key_of(settings, project, GPU)
    assert cpu != gpu
    assert cpu == key_of(settings, project, GPU, device="cpu")
    assert cpu == key_of(settings, project, compute_dtype=ComputeDtype.FP32)
    assert gpu == key_of(settings, project, GPU, device="cuda:0", compute_dtype=ComputeDtype.BF16)
    assert gpu != key_of(settings, project, GPU, compute_dtype=ComputeDtype.FP32)


def test_what_is_only_reported_or_bounded_does_not_change_the_key(project: Path) -> None:
    settings = settings_of(project, STAGES)
    for changes in ({"log_every": 5}, {"checkpoint_every": 2}, {"memory_limit_gb": 3.0}):
        assert key_of(settings, project, **changes) == key_of(settings, project)


def test_names_and_places_do_not_change_the_key(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = settings_of(project, STAGES)
    other = make_project(tmp_path_factory.mktemp("elsewhere"))
    (other / "data" / "two.tsv").rename(other / "data" / "renamed.tsv")
    moved = settings_of(other, {"Z": {"data": ["data/renamed.tsv"]}}, name="other", artifacts="elsewhere")
    assert key_of(settings, project) == key_of(moved, other)


def test_a_longer_ladder_or_other_limits_do_not_change_the_key(project: Path) -> None:
    one, two = (
        settings_of(project, STAGES),
        settings_of(project, STAGES, guard={"gpu_limit_gb": 3}, ladder={"max_attempts": 1}),
    )
    assert key_of(one, project) == key_of(two, project)


def test_the_input_weight_is_part_of_the_key(project: Path) -> None:
    settings = settings_of(project, STAGES)
    stage, base = settings.stages[0], base_weight(settings, project)
    keys = {content_key(stage, stage.recipe, replace(base, sha256=sha), project, CPU) for sha in ("a", "b")}
    assert len(keys) == 2
    renamed = replace(base, path="elsewhere.dat")
    assert content_key(stage, stage.recipe, renamed, project, CPU) == key_of(settings, project)
