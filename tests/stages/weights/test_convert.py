"""The conversion command: there and back is the same model, errors and exit codes, progress."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stages.contract.events import ExitCode
from stages.process.files import NoSpaceError
from stages.weights import dat_to_hf
from stages.weights.convert import main
from stages.weights.hf_folder import INDEX
from tests.stages.weights.checkpoints import our_logits, peer_logits, save_checkpoint


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", ["5GB", "40KB"])
def test_float16_there_and_back_is_the_same_model(tmp_path: Path, tied: bool, shards: str) -> None:
    save_checkpoint(tmp_path / "hf", tied=tied, shards=shards)
    assert (tmp_path / "hf" / INDEX).exists() == (shards == "40KB")
    assert main(["to-dat", str(tmp_path / "hf"), str(tmp_path / "w.dat"), "--format", "float16"]) == 0
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back"), "--shard-gb", "0.00004"]) == 0
    assert (tmp_path / "back" / INDEX).exists()
    expected = peer_logits(tmp_path / "hf")
    assert torch.equal(peer_logits(tmp_path / "back"), expected)
    assert (our_logits(tmp_path / "w.dat", tmp_path / "config.json") - expected).abs().max() < 1e-4


def test_nothing_is_overwritten_and_nothing_half_made_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_checkpoint(tmp_path / "hf", tied=True)
    hf, dat = str(tmp_path / "hf"), str(tmp_path / "w.dat")
    assert main(["to-dat", hf, dat]) == ExitCode.OK
    assert main(["to-dat", hf, dat]) == main(["to-hf", dat, hf]) == ExitCode.BAD_INPUT
    assert capsys.readouterr().err.count("never overwritten") == 2
    before = sorted(tmp_path.iterdir())

    def full(path: Path, needed: int) -> None:
        raise NoSpaceError(path, needed, 0)

    monkeypatch.setattr("stages.process.files.require_space", full)
    assert main(["to-dat", str(tmp_path / "hf"), str(tmp_path / "x.dat")]) == ExitCode.NO_SPACE
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back")]) == ExitCode.NO_SPACE
    monkeypatch.setattr(dat_to_hf, "require_space", full)
    assert main(["to-hf", str(tmp_path / "w.dat"), str(tmp_path / "back")]) == ExitCode.NO_SPACE
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_shows_its_progress(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "hf", tied=True)
    command = [
        sys.executable,
        "-m",
        "stages.convert",
        "to-dat",
        str(tmp_path / "hf"),
        str(tmp_path / "w.dat"),
        "--format",
        "nvfp4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "100%" in done.stderr and "MB/s" in done.stderr and "SHA-256" in done.stdout
