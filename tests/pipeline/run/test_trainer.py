"""Another program as the trainer, under the same roof: guard, judge, ladder and ledger, its successes and all
its ways to fail.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.settings import Settings, SettingsError
from pipeline.core.types import Outcome
from pipeline.guard.machine import Machine
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import State
from pipeline.processes.stage_process import StageCommands
from pipeline.run.content_key import content_key
from pipeline.run.plan import base_weight, describe
from pipeline.run.runner import RunResult
from pipeline.run.session import run
from stages.contract.events import ExitCode
from stages.weights.dat import DatFile
from tests.conftest import TinyModel
from tests.pipeline.project import project, settings_of

__all__ = ["project"]

OUTSIDER = Path(__file__).parents[1] / "outsider.py"
COMMANDS = StageCommands(probe=(sys.executable, str(OUTSIDER), "answer"))
TEMPLATE = (
    f"{shlex.quote(sys.executable)} {shlex.quote(str(OUTSIDER))} train --train-data {{data}} "
    "--input-dat {input} --output-dat {output} --model-dir {model_dir} --steps {steps} --lr {lr} "
    "--seq-len {seq_len} --step-chunk-rows {step_chunk_rows}"
)


@pytest.fixture
def place(project: Path, tiny: TinyModel) -> Path:
    """The project with a real model, and with rows that make the outsider fail."""
    shutil.rmtree(project / "model")
    shutil.copytree(tiny.folder, project / "model")
    (project / "model" / "tiny.dat").rename(project / "model" / "base.dat")
    for word in ("exit", "memory", "nothing", "broken", "copy", "slow"):
        (project / "data" / f"{word}.tsv").write_text(f"prompt\ttarget\n@{word}\tx\n", encoding="utf-8")
    return project


def settings(root: Path, data: str, rungs: Any = (), **top: Any) -> Settings:
    trainer = {"kind": "external", "command": TEMPLATE} | top.pop("trainer", {})
    guard = {"gpu_limit_gb": 1.0, "gpu_poll_secs": 0.02, "reader": "resident"}
    stage = {
        "data": [f"data/{data}.tsv"],
        "steps": 3,
        "warmup_steps": 0,
        "lr": 1e-3,
        "ladder": {"rungs": list(rungs)},
    }
    return settings_of(root, {"G": stage}, trainer=trainer, guard=guard, **top)


def go(root: Path, data: str, rungs: Any = (), **top: Any) -> RunResult:
    return run(settings(root, data, rungs, **top), root, "python -m pipeline trainer=external", "", COMMANDS)


def test_an_outsider_that_trains_passes_and_is_recorded_like_any_other(place: Path) -> None:
    result = go(place, "one")
    done = result.attempts[0]
    assert (result.exit_code, done.end.outcome) == (0, Outcome.PASSED), done.end.error
    weight = place / result.end.final_weight
    assert hashlib.sha256(weight.read_bytes()).hexdigest() == result.end.final_sha256
    with DatFile(weight) as made, DatFile(place / "model" / "base.dat") as base:
        assert list(made.entries) == list(base.entries)
    assert weight.read_bytes() != (place / "model" / "base.dat").read_bytes(), "it really trained"
    folder = place / done.attempt.folder
    assert (folder / "stdout.log").read_text(encoding="utf-8").startswith("1 rows"), (
        "no header among its rows"
    )
    assert {"trace.csv", "guard.json", "verdict.json", "command.txt"} <= {
        path.name for path in folder.iterdir()
    }
    assert not list(folder.glob("*.dat")) + list(folder.glob(".*.dat"))
    assert result.end.final_weight in (place / "artifacts" / "檔案說明清單.md").read_text(encoding="utf-8")
    assert "## " in (place / "DevLog.md").read_text(encoding="utf-8")
    assert go(place, "one").attempts[0].reused, "found again by its key"


@pytest.mark.fault("the user's own trainer fails", how="exit code 3; no weight; a weight cut short")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "says"),
    [("exit", "exit code 3"), ("nothing", "wrote no weight"), ("broken", "broken weight")],
)
def test_an_outsider_that_fails_is_broken_with_its_reason(place: Path, data: str, says: str) -> None:
    result = go(place, data)
    end = result.attempts[0].end
    assert (result.exit_code, end.outcome, end.exit_code) == (1, Outcome.BROKEN, ExitCode.FAILED)
    assert says in end.error
    assert not list((place / "artifacts").rglob("[!.]*.dat")), "no half file under a final name"
    with Journal(place / "artifacts" / "journal.db") as book:
        assert [row.state for row in book.attempts(result.attempts[0].attempt.run_id)] == [State.CLOSED]


@pytest.mark.fault("the user's own trainer takes too much memory", how="900 MiB of 1 GB beside its start")
def test_an_outsider_over_the_limit_climbs_the_ladder(place: Path) -> None:
    rungs = [
        {"after": "over_limit", "change": {"batch_size": "*0.5"}, "why": "it would not see this"},
        {"after": "over_limit", "change": {"data": ["data/copy.tsv"]}, "why": "less"},
    ]
    result = go(place, "memory", rungs)
    assert [done.end.outcome for done in result.attempts] == [Outcome.OVER_LIMIT, Outcome.PASSED]
    assert result.attempts[0].end.exit_code == ExitCode.GUARD_KILLED
    assert result.attempts[0].end.peak_mib > 900
    assert [change.key for change in result.attempts[1].attempt.changes] == ["data"], (
        "the rung without effect was passed over"
    )


@pytest.mark.slow
def test_a_shell_only_where_the_template_asks_for_one(place: Path) -> None:
    text = f"cat {{data}} > /dev/null && {TEMPLATE}"
    assert go(place, "copy", trainer={"command": text, "shell": True}).exit_code == 0
    refused = go(place, "copy", trainer={"command": f"nonesuch; {TEMPLATE}"})
    assert refused.attempts[0].end.exit_code == ExitCode.BAD_INPUT
    assert "nonesuch;: cannot be started" in refused.attempts[0].end.error


@pytest.mark.fault("SIGTERM during the user's own trainer", how="to the control process")
@pytest.mark.slow
def test_asked_to_stop_the_outsider_ends_too(place: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.pipeline.run.test_trainer import go\n"
        "sys.exit(go(Path(sys.argv[1]), 'slow').exit_code)"
    )
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(place)], cwd=root, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while (
        time.monotonic() < deadline
        and process.poll() is None
        and not any(
            "rows" in path.read_text(encoding="utf-8") or path.with_name("weight.tsv").exists()
            for path in (place / "artifacts" / "runs").glob("*/01-G-attempt1/stdout.log")
        )
    ):
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == ExitCode.INTERRUPTED
    assert not [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, str(place / "artifacts"))
    ]


def _mentions(cmdline: Path, text: str) -> bool:
    try:
        return text.encode() in cmdline.read_bytes()
    except OSError:
        return False


def test_the_key_follows_the_command_and_its_files(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = place / "train.fsx"
    script.write_text("one", encoding="utf-8")

    def key(command: str) -> str:
        made = settings(place, "one", trainer={"command": command})
        return content_key(made.stages[0], made.stages[0].recipe, base_weight(made, place), place, Machine())

    first = key("dotnet fsi train.fsx --out {output}")
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.run.content_key.code_key", lambda entry: "other code of stages")
        assert key("dotnet fsi train.fsx --out {output}") == first
    assert key("dotnet fsi train.fsx --out {output} --fast") != first
    script.write_text("another", encoding="utf-8")
    from pipeline.core import hashing

    hashing._known.clear()
    assert key("dotnet fsi train.fsx --out {output}") != first


def test_the_users_own_line_is_a_choice_of_the_configuration(place: Path) -> None:
    from pipeline.config.compose import composed, plain

    raw = plain(composed(["trainer=external"]))["trainer"]
    assert raw["command"].split()[:3] == ["dotnet", "fsi", "train.fsx"]
    text = describe(settings(place, "one", trainer=raw), place, StageCommands())
    assert "-m stages.external" in text


def test_templates_that_cannot_work_are_problems_of_the_settings(place: Path) -> None:
    for command, says in (
        ("x {ouput}", "did you mean 'output'"),
        ("x", "has no {output}"),
        ("x '{output}", "quotation"),
        (" ", "empty"),
    ):
        with pytest.raises(SettingsError, match=says.replace("{", r"\{")):
            settings(place, "one", trainer={"command": command})
