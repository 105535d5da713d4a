"""The program's part of a content key: the sources that an entry imports and the versions that compute."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.code_key import COMPUTING, SOURCES, code_key, computing_versions, import_closure


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of the sources of `stages`."""
    shutil.copytree(SOURCES / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(sources: Path, file: str) -> None:
    path = sources / "stages" / file
    path.write_text(path.read_text(encoding="utf-8") + "\n# edited\n", encoding="utf-8")


@pytest.mark.parametrize(
    "file", ["optim/adamw.py", "optim/__init__.py", "nvfp4/codec.py", "contract/recipe.py"]
)
def test_an_edit_to_what_trains_changes_the_key(sources: Path, file: str) -> None:
    before = code_key("stages.train", sources)
    assert before == code_key("stages.train")
    edit(sources, file)
    assert code_key("stages.train", sources) != before


@pytest.mark.parametrize(
    "file",
    ["inference/chat.py", "chat.py", "corpus/phrases/lexicon.py", "corpus/corpus.py", "weights/convert.py"],
)
def test_an_edit_to_what_does_not_train_changes_no_key(sources: Path, file: str) -> None:
    entries = ("stages.train", "stages.probe", "stages.init")
    before = [code_key(entry, sources) for entry in entries]
    edit(sources, file)
    assert [code_key(entry, sources) for entry in entries] == before


def test_what_only_answers_is_no_part_of_what_trains(sources: Path) -> None:
    train, probe = code_key("stages.train", sources), code_key("stages.probe", sources)
    edit(sources, "inference/generate.py")
    assert code_key("stages.train", sources) == train
    assert code_key("stages.probe", sources) != probe


def test_another_version_of_what_computes_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before, version = code_key("stages.train"), importlib.metadata.version
    assert computing_versions()["torch"] == version("torch")
    for name in COMPUTING:
        with monkeypatch.context() as patch:
            patch.setattr(
                importlib.metadata,
                "version",
                lambda asked, name=name: "0" if asked == name else version(asked),
            )
            assert code_key("stages.train") != before, name


LOADS = """
import importlib, os, sys, torch
for entry in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(f"{entry}.__main__" if entry == "stages.train" else entry)
        print(entry, *(name for name in sys.modules if name.partition(".")[0] == "stages"), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_the_closure_holds_every_module_that_an_entry_loads() -> None:
    entries = ["stages.train", "stages.probe", "stages.init", "stages.external"]
    line = [sys.executable, "-c", LOADS, *entries]
    done = subprocess.run(line, cwd=SOURCES, capture_output=True, text=True, check=True)
    loaded = {entry: set(names) for entry, *names in map(str.split, done.stdout.splitlines())}
    assert list(loaded) == entries
    for entry, names in loaded.items():
        assert len(names) > 10 and names <= set(import_closure(entry)), entry


def test_imports_in_functions_count_and_those_for_types_alone_do_not(tmp_path: Path) -> None:
    package = tmp_path / "p"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "sub" / "__init__.py").write_text("from p import low")
    texts = {
        "entry": (
            "from typing import TYPE_CHECKING\n"
            "if TYPE_CHECKING:\n    from p import types\nelse:\n    import p.real\n"
        ),
        "types": "",
        "real": "def f():\n    try:\n        from p.sub import late\n    except ImportError:\n        pass\n",
        "low": "",
        "apart": "",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    (package / "sub" / "late.py").write_text("")
    assert list(import_closure("p.entry", tmp_path)) == [
        "p",
        "p.entry",
        "p.low",
        "p.real",
        "p.sub",
        "p.sub.late",
    ]
    with pytest.raises(FileNotFoundError, match=r"p\.none"):
        import_closure("p.none", tmp_path)
