"""Plans and content keys: what changes a key and what must not, and a plan that is quick and leaves nothing
behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.hashing import sha256_data, sha256_file, sha256_sources
from pipeline.core.settings import Settings
from pipeline.run.plan import WeightRef, base_model, code_key, content_key, describe
from tests.pipeline.project import COMMANDS, make_project, project, settings_of

__all__ = ["project"]

STAGES = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"]}}


def key_of(settings: Settings, root: Path, code: str = "code", **recipe: Any) -> str:
    stage = settings.stages[0]
    return content_key(stage, {**stage.recipe, **recipe}, base_model(settings, root), root, code)


def test_what_computes_the_result_changes_the_key(project: Path) -> None:
    settings = settings_of(project, STAGES)
    keys = [key_of(settings, project)]
    keys += [
        key_of(settings, project, lr=1e-5),
        key_of(settings, project, seed=1),
        key_of(settings, project, code="other"),
    ]
    keys.append(key_of(settings, project, data=[{"path": "data/two.tsv", "repeat": 2}]))
    for path in ("data/two.tsv", "model/base.dat", "model/tokenizer.json", "model/config.json"):
        file = project / path
        before = file.read_text(encoding="utf-8")
        file.write_text(before + "x\ty\n", encoding="utf-8")
        keys.append(key_of(settings, project))
        file.write_text(before, encoding="utf-8")
    assert len(set(keys)) == len(keys)
    assert key_of(settings, project) == keys[0]


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
    stage, base = settings.stages[0], base_model(settings, project)
    keys = {
        content_key(stage, stage.recipe, replace(base, sha256=sha), project, "code") for sha in ("a", "b")
    }
    assert len(keys) == 2
    renamed = WeightRef(base.dir, "elsewhere.dat", base.sha256)
    assert content_key(stage, stage.recipe, renamed, project, "code") == key_of(settings, project)


def test_plan_names_files_hashes_and_commands(project: Path) -> None:
    text = describe(settings_of(project, STAGES, seed=7), project, COMMANDS)
    for path in ("model/base.dat", "data/two.tsv", "data/one.tsv", "data/probes-identity.tsv"):
        line = next(line for line in text.splitlines() if path in line)
        assert hashlib.sha256((project / path).read_bytes()).hexdigest()[:12] in line
    commands = [line for line in text.splitlines() if "-m pipeline.guard" in line]
    assert len(commands) == text.count("memory 記憶體") == 2
    assert all(
        "--gpu-limit-gb 6 --gpu-over-secs 0 --gpu-poll-secs 0.05" in line and "/request.json" in line
        for line in commands
    )
    assert not (project / "artifacts").exists()


def test_the_commands_of_the_real_plan_are_relative(project: Path) -> None:
    """From the command line, in under two seconds of processor time, without what the plan does not need, and
    from another folder too.
    """
    overrides = [
        f"model.dir={project / 'model'}",
        f"model.weight={project / 'model' / 'base.dat'}",
        f"artifacts={project / 'made'}",
    ]
    line = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "pipeline",
        "+experiment=stageG",
        "plan=true",
        *overrides,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    before = os.times()
    done = subprocess.run(line, cwd=project, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 2.0
    imported = {
        entry.split("|")[-1].strip().split(".")[0] for entry in done.stderr.splitlines() if "|" in entry
    }
    assert not imported & {"mlflow", "matplotlib", "torch", "pandas", "numpy"}
    assert "datasets/stageG/balanced.tsv" in done.stdout
    assert "-m stages.train" in done.stdout
    assert str(ROOT / "datasets") not in done.stdout


def test_hashes_follow_the_content(tmp_path: Path) -> None:
    file = tmp_path / "big"
    file.write_bytes(os.urandom(3 << 20))
    assert sha256_file(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    before = sha256_file(file)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))
    assert sha256_file(file) != before
    assert sha256_data({"a": 1, "b": [2]}) == sha256_data({"b": [2], "a": 1})
    assert sha256_data({"a": 1}) != sha256_data({"a": 1.5})


def test_code_key_covers_every_source_of_stages(tmp_path: Path) -> None:
    copy = tmp_path / "stages"
    shutil.copytree(ROOT / "stages", copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert sha256_sources(copy) == code_key()
    deepest = max(copy.rglob("*.py"), key=lambda path: len(path.parts))
    deepest.write_text(deepest.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert sha256_sources(copy) != code_key()
