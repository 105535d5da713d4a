"""A small project folder for tests: the real configuration over a stand-in model, data and stages."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.compose import ROOT, checked, composed, plain
from pipeline.config.reader import merged
from pipeline.core.settings import Settings
from pipeline.processes.stage_process import StageCommands

STANDIN = Path(__file__).parent / "standin.py"
COMMANDS = StageCommands(*((sys.executable, str(STANDIN), kind) for kind in ("train", "probe", "init")))
PROBES = {
    "identity": ["identity\twhoami\ttrain\t你是誰\tF#\t", "identity\twhoami\theldout\t請問你是誰\tF#\t"],
    "contrast": ["contrast\tself\theldout\t我是誰\t\tF# 之神"],
    "skills": [f"ability\tadd\theldout\t{i}+1=?\t={i + 1}\t" for i in range(1, 7)],
    "ufo": ["ability\tufo\theldout\t談談UFO\t不明飛行物\t"],
}
ROWS = {
    "one": "你是誰\t我是 F# 之神。\n",
    "two": "1+1=?\t2\n",
    "crash": "@crash\tx\n",
    "memory": "@memory\tx\n",
}
ROWS |= {"non_finite": "@non_finite\tx\n", "slow": "@slow\tx\n"}


def make_project(root: Path) -> Path:
    """Model, data and probes below `root`."""
    model = root / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "tokenizer.json").write_text("{}", encoding="utf-8")
    base = {"identity": False, "collapsed": False, "history": []}
    (model / "base.dat").write_text(json.dumps(base), encoding="utf-8")
    (root / "data").mkdir()
    for name, text in ROWS.items():
        (root / "data" / f"{name}.tsv").write_text(text, encoding="utf-8")
    for name, lines in PROBES.items():
        head = "kind\tgroup\tsplit\tprompt\texpect\tforbid\n"
        (root / "data" / f"probes-{name}.tsv").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    return root


def raw_settings(stages: dict[str, Any], **top: Any) -> dict[str, Any]:
    """The real configuration with the project's model and probes, the given stages and other top-level
    values.
    """
    raw = plain(composed([]))
    raw["name"] = "test"
    raw["model"] = {"name": "stand-in", "dir": "model", "weight": "model/base.dat", "template": "qwen"}
    raw["probes"]["files"] = [f"data/probes-{name}.tsv" for name in PROBES]
    raw["tracking"]["enabled"] = False
    raw["guard"]["min_available_gb"] = 0
    return merged(raw, copy.deepcopy({"stages": stages, **top}))


def settings_of(root: Path, stages: dict[str, Any], **top: Any) -> Settings:
    """Checked settings of the project."""
    return checked(raw_settings(stages, **top), root)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder. Its stage processes find `pipeline` and `stages` where this test found them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return make_project(tmp_path)
