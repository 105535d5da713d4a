"""Shared by all stages: paths outside of the folder and full disks; and what a stage does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stages.contract.events import ExitCode, StageResult
from stages.contract.requests import WRITE_ROOT, ExternalRequest, ProbeRequest
from stages.contract.serial import dump, load_file
from stages.process.process import write_root_problems
from stages.train.stage import main
from tests.conftest import TinyModel
from tests.stages.train.test_stage import _request, train_with_room


@pytest.mark.fault(
    "a request names a place outside of its folder",
    how="absolute, by .., by a link, by a longer name; for each path it writes",
)
def test_a_request_cannot_write_outside_of_its_folder(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "attempt"
    good = _request(tiny, folder, steps=0, checkpoints=str(folder / "checkpoints"))
    (folder / "link").symlink_to(tmp_path)
    assert write_root_problems(good, str(folder)) == []
    for path in (
        "/etc/weight.dat",
        str(folder / ".." / "weight.dat"),
        str(folder / "link" / "weight.dat"),
        f"{folder}-other/weight.dat",
    ):
        for key in ("events", "result", "output_weight", "checkpoints"):
            changed = type(good)(**{**vars(good), key: path})
            assert write_root_problems(changed, str(folder)) == write_root_problems(
                ExternalRequest(changed, "x {output}"), str(folder)
            )
            assert write_root_problems(changed, str(folder))[0].startswith(f"{key}: {path}: lies outside")
    monkeypatch.setenv(WRITE_ROOT, str(folder))
    outside = _request(tiny, folder, output_weight=str(tmp_path / "stolen.dat"))
    (folder / "request.json").write_text(dump(outside), encoding="utf-8")
    assert main([str(folder / "request.json")]) == ExitCode.BAD_INPUT
    assert not Path(outside.events).exists()
    assert not Path(outside.output_weight).exists()


@pytest.mark.fault("the disk fills up during an export", how="RLIMIT_FSIZE at half of the weight")
def test_a_disk_that_fills_up_during_the_export_leaves_the_old_state(tiny: TinyModel, tmp_path: Path) -> None:
    request = _request(tiny, tmp_path, steps=1)
    done = train_with_room(request, tiny.weight.stat().st_size // 2)
    result = load_file(StageResult, Path(request.result))
    assert (done.returncode, result.exit_code) == (ExitCode.NO_SPACE, ExitCode.NO_SPACE)
    assert "free some space" in result.error
    assert not [path for path in tmp_path.iterdir() if ".dat" in path.name], "no weight, and no half of one"


def test_a_stage_leaves_torchs_compiler_alone(tiny: TinyModel, tmp_path: Path) -> None:
    """It takes longer to import than a small stage takes to run."""
    probes, request = tmp_path / "probes.tsv", _request(tiny, tmp_path, steps=1)
    probes.write_text(
        "kind\tgroup\tsplit\tprompt\texpect\tforbid\nhealth\tx\ttrain\t你好\t=x\t\n", encoding="utf-8"
    )
    outputs = (str(tmp_path / name) for name in ("answers", "events", "result"))
    answers = ProbeRequest(str(tiny.folder), str(tiny.weight), [str(probes)], *outputs, device="cpu")
    for module, what in (("train.stage", request), ("inference.probe", answers)):
        (tmp_path / module).write_text(dump(what), encoding="utf-8")
        seen = "100 * ('torch._dynamo' in sys.modules)"
        code = f"import sys; from stages.{module} import main; code = main(sys.argv[1:])"
        code += f"; sys.exit(code or {seen})"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / module)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (module, done.returncode, done.stderr)
