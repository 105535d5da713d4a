"""The stage around another program: what it is given, what counts as success, and every way to fail, without
a guard around it.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.contract.events import ExitCode, StageResult
from stages.contract.recipe import DataSource
from stages.contract.requests import ExternalRequest
from stages.contract.serial import dump, load_file
from stages.train.external import main
from stages.weights.dat import DatFile, write_dat
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _request

COPY = "import shutil, sys; shutil.copyfile(sys.argv[1], sys.argv[2])"


def carry_out(
    tiny: TinyModel, folder: Path, program: str, words: str = "{input} {output}", **changes: Any
) -> tuple[StageResult, Path]:
    train = _request(tiny, folder, **changes)
    request = ExternalRequest(train, f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {words}")
    (folder / "request.json").write_text(dump(request), encoding="utf-8")
    code = main([str(folder / "request.json")])
    result = load_file(StageResult, Path(train.result))
    assert result.exit_code == code
    return result, Path(train.output_weight)


def test_a_good_weight_gets_its_name_and_its_hash(tiny: TinyModel, tmp_path: Path) -> None:
    result, output = carry_out(tiny, tmp_path, COPY)
    assert result.exit_code == 0
    assert (
        result.sha256
        == hashlib.sha256(tiny.weight.read_bytes()).hexdigest()
        == hashlib.sha256(output.read_bytes()).hexdigest()
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".dat"] == [output.name], (
        "nothing else is left"
    )


def test_rows_come_in_one_file_as_often_as_configured_and_without_a_header(
    tiny: TinyModel, tmp_path: Path
) -> None:
    again = tmp_path / "more rows.tsv"
    again.write_text("prompt\ttarget\nq\ta\n", encoding="utf-8")
    program = (
        f"import sys, pathlib; assert pathlib.Path(sys.argv[3]).read_text().count('q\\ta\\n') == 3; {COPY}"
    )
    result, output = carry_out(
        tiny,
        tmp_path,
        program,
        "{input} {output} {data}",
        data=[DataSource(str(tiny.rows)), DataSource(str(again), 3)],
    )
    assert result.exit_code == 0, result.error
    assert output.with_suffix(".tsv").read_text("utf-8").splitlines()[0] == "你是誰\t我是 F# 之神。"


CUT = "import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read()[:3000])"
OTHER = "import shutil, sys; shutil.copyfile('other.dat', sys.argv[2])"


@pytest.mark.fault(
    "the program of an external stage fails",
    how="exit code, SIGSEGV, no weight, half a weight, another model's weight",
)
@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("raise SystemExit(7)", ExitCode.FAILED, "exit code 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ExitCode.FAILED, "signal 11"),
        ("", ExitCode.FAILED, "wrote no weight"),
        (CUT, ExitCode.FAILED, "broken weight"),
        (OTHER, ExitCode.FAILED, "is missing; model.norm.weight is (3,), was"),
    ],
)
def test_failures_are_named_and_leave_no_weight(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: ExitCode, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with DatFile(tiny.weight) as dat:
        entries = {name: dat.entries[name] for name in list(dat.entries)[1:]}
        kinds = {
            **entries,
            "model.norm.weight": type(entries["model.norm.weight"])("model.norm.weight", 6, (3,), 0),
        }  # type: ignore[arg-type]
        write_dat(
            tmp_path / "other.dat",
            [
                (spec, lambda n=spec.nbytes: iter([bytes(n)]))
                for spec in (_plain(entry) for entry in kinds.values())
            ],
        )
    result, output = carry_out(tiny, tmp_path / "attempt", program)
    assert result.exit_code == code
    assert says in result.error
    assert not output.exists()


def _plain(entry: Any) -> Any:
    from stages.weights.dat_index import ElemType, Spec

    return Spec(entry.name, ElemType(entry.elem_type), entry.shape)


@pytest.mark.fault("the program of an external stage does not exist", how="a name that is on no PATH")
def test_a_program_that_cannot_be_started_is_bad_input(tiny: TinyModel, tmp_path: Path) -> None:
    train = _request(tiny, tmp_path)
    (tmp_path / "request.json").write_text(
        dump(ExternalRequest(train, "no-such-program-here {output}")), encoding="utf-8"
    )
    assert main([str(tmp_path / "request.json")]) == ExitCode.BAD_INPUT
    assert "no-such-program-here: cannot be started" in load_file(StageResult, Path(train.result)).error


@pytest.mark.fault("an output exists already (external stage)", how="a file in its place")
def test_an_output_that_exists_is_kept(tiny: TinyModel, tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir()
    shutil.copyfile(tiny.rows, tmp_path / "attempt" / "out.dat")
    result, output = carry_out(tiny, tmp_path / "attempt", COPY)
    assert result.exit_code == ExitCode.BAD_INPUT
    assert output.read_bytes() == tiny.rows.read_bytes()
