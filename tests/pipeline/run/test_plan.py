"""Plans and content keys: what changes a key and what must not, and a plan that is quick and leaves nothing
behind.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from pipeline.config.compose import ROOT
from pipeline.run.plan import describe
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]

STAGES = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"]}}


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
