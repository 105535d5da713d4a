"""Weight files come from elsewhere: nothing that reads them can execute code, by what the sources say and by
what really happens.
"""

from __future__ import annotations

import ast
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.contract.events import ExitCode
from stages.contract.serial import dump
from stages.train.stage import main
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _request

ROOT = Path(__file__).parents[1]
HOUSES = ("stages", "pipeline", "benchmarks", ".ci")
MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "runpy",
    "code",
    "imp",
}
"""Modules whose use is to turn bytes into code or objects of any class."""
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {
    "torch.load",
    "torch.save",
    "torch.jit.load",
    "numpy.load",
    "np.load",
    "numpy.save",
    "np.save",
    "yaml.load",
    "yaml.unsafe_load",
}
CALLS |= {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "pandas.read_pickle",
    "pd.read_pickle",
}


def dangers(source: str) -> Iterator[str]:
    """Everything in Python source text that can make code out of data, or hands a command to a shell."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        if any(name.split(".")[0] in MODULES or name in CALLS for name in names):
            yield f"line {node.lineno}: import of {', '.join(names)}"  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if called in BUILTINS or called in CALLS or keywords.get("allow_pickle", "False") != "False":
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"
        if called.split(".")[0] == "subprocess" and keywords.get("shell", "False") != "False":
            yield f"line {node.lineno}: a shell: {ast.unparse(node)[:80]}"


def test_no_source_makes_code_out_of_data_or_calls_a_shell() -> None:
    sources = [path for house in HOUSES for path in (ROOT / house).rglob("*.py")]
    assert len(sources) > 100
    assert [
        f"{path.relative_to(ROOT)}: {what}"
        for path in sources
        for what in dangers(path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    import marshal as m",
        "from pickle import loads",
        "import shelve, os",
        "import torch\nx = torch.load('w', weights_only=True)",
        "from torch import load",
        "import numpy as np\nnp.load('w')",
        "numpy.fromfile('w', allow_pickle=True)",
        "eval(text)",
        "exec(compile(text, 'x', 'exec'))",
        "__import__(name)",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.Popen(text, shell=flag)",
    ],
)
def test_the_search_finds_each_of_them(source: str) -> None:
    assert list(dangers(source))
    assert not list(
        dangers("import torch\nmodel.eval()\nre.compile('x')\nsubprocess.run(['ls'], shell=False)")
    )


class Bomb:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.mark),)


def bomb(mark: Path, wrapped: bool, path: Path) -> None:
    """A file whose reading by `pickle` or `torch.load` makes `mark`."""
    data = pickle.dumps(Bomb(mark))
    if not wrapped:
        path.write_bytes(data)
        return
    with zipfile.ZipFile(path, "w") as archive:  # as torch.save lays it out
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")


@pytest.mark.fault(
    "a poisoned file in place of a weight or a saved state",
    how="a pickle, bare or in torch's zip, that makes a folder",
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "zip"])
def test_a_poisoned_file_is_refused_and_does_nothing(tiny: TinyModel, tmp_path: Path, wrapped: bool) -> None:
    """As a weight it is bad input; as a saved state it is told and left aside. A control shows that the
    poison works.
    """
    mark, poison = tmp_path / "executed", tmp_path / "poison.dat"
    bomb(mark, False, poison)
    pickle.loads(poison.read_bytes())  # noqa: S301 - the control
    assert mark.is_dir()
    mark.rmdir()
    bomb(mark, wrapped, poison)
    state = tmp_path / "step-00000002.dat"
    state.write_bytes(poison.read_bytes())
    for name, changes, code in (
        ("weight", {"input_weight": str(poison)}, ExitCode.BAD_INPUT),
        ("state", {"resume": str(state)}, 0),
    ):
        request = _request(tiny, tmp_path / name, steps=3, threads=1, **changes)
        (tmp_path / name / "request.json").write_text(dump(request), encoding="utf-8")
        assert main([str(tmp_path / name / "request.json")]) == code
        assert not mark.exists()


AUDIT = """
import json, sys
from pathlib import Path
import torch
from stages.train.checkpoint import TrainProgress, restore, save
from stages.weights.dat import DatFile
def read():
    with DatFile(Path(sys.argv[1])) as dat:
        for name in dat.entries:
            dat.tensor(name)
    target = {"a": torch.zeros(4)}
    restore(Path(sys.argv[2]), target, "key")
save(Path(sys.argv[2]), {"a": torch.ones(4)}, TrainProgress(1), "key")
read()  # whatever is imported late is imported here
seen = []
WATCHED = ("pickle.find_class", "exec", "compile", "marshal.loads", "import", "os.system")
WATCHED += ("subprocess.Popen", "os.exec", "ctypes.dlopen")
sys.addaudithook(lambda event, arguments: seen.append(event) if event in WATCHED else None)
read()
print(json.dumps(seen))
"""


def test_reading_a_weight_and_a_state_executes_imports_and_unpickles_nothing(
    tiny: TinyModel, tmp_path: Path
) -> None:
    """By the interpreter's own audit events (PEP 578)."""
    words = [sys.executable, "-c", AUDIT, str(tiny.weight), str(tmp_path / "step-00000001.dat")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
