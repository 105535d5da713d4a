"""Attempts, verdicts and events for the tests of the ledger, and an MLflow database made once and copied."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from pipeline.core.hashing import sha256_file
from pipeline.core.types import Attempt, AttemptEnd, Change, Check, Outcome, ProbeRow, StartFrom, Verdict
from pipeline.ledger.mlflow.client import Backend, Target
from stages.contract.events import Event, EventKind

RUN = "20260301-101500-stageG-ab12"


def attempt(
    number: int = 1, run_id: str = RUN, key: str = "k1", stage: str = "G", **recipe: object
) -> Attempt:
    """An attempt; from the second on with a reason and a change."""
    return Attempt(
        run_id=run_id,
        experiment="stageG",
        stage=stage,
        number=number,
        content_key=key,
        folder=f"artifacts/runs/{run_id}/{stage}-{number}",
        command="python -m pipeline.guard --gpu-limit-gb 4 -- python -m stages.train 'a b.json'",
        recipe={
            "lr": 2e-4,
            "steps": 60,
            "seq_len": 96,
            "lr_groups": {"lm_head": 10.0},
            "data": [{"path": "d.tsv"}],
        }
        | recipe,
        start_from=StartFrom.BASE,
        input_weight="artifacts/base/qwen3-nano/qwen3-nano-nvfp4.dat",
        input_sha256="a" * 64,
        data={"datasets/身份.tsv": "b" * 64, "datasets/../x y.tsv": "c" * 64},
        changes=(Change("lr", 2e-4, 1e-4),) if number > 1 else (),
        why="崩壞之後降低 lr" if number > 1 else "",
    )


def verdict(outcome: Outcome = Outcome.PASSED) -> Verdict:
    """A verdict with a probe table and every kind of field."""
    return Verdict(
        outcome,
        {"identity_heldout": 0.97, "leak": 0.0},
        () if outcome is Outcome.PASSED else ("repetition 0.8 > 0.1: 我是F#之神之神之神",),
        (
            ProbeRow(
                "identity",
                "whoami",
                "heldout",
                "你是誰",
                "我是 F# 之神",
                True,
                "我是通義千問",
                False,
                ("repetition", "leak"),
            ),
        ),
        (Check("leak", 0.0, 0.02, False, Outcome.COLLAPSED, True),),
    )


def end(outcome: Outcome = Outcome.PASSED, weight: str = "", sha256: str = "") -> AttemptEnd:
    """An end with a verdict."""
    return AttemptEnd(
        outcome,
        0,
        verdict(outcome),
        "",
        weight,
        sha256,
        1234.5,
        12.25,
        {"last_loss": 0.25, "update_ratio": 0.99},
    )


def step(number: int, loss: float = 1.0) -> Event:
    """A step event; each has a time of its own."""
    time_utc = f"2026-03-01T10:{number // 60 % 60:02d}:{number % 60:02d}.000000Z"
    values = {"loss": loss, "lr": 1e-4, "grad_norm": 0.5, "update_ratio": 0.98}
    return Event(time_utc, EventKind.STEP, step=number, total=100, values=values)


def write_weight(root: Path, path: str, content: bytes = b"weight") -> str:
    """A small file in place of a weight; returns its SHA-256."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return sha256_file(root / path)


def write_folder(root: Path, item: Attempt) -> None:
    """What the runner leaves in an attempt's folder."""
    folder = root / item.folder
    folder.mkdir(parents=True)
    (folder / "request.json").write_text("{}\n")
    (folder / "command.txt").write_text(item.command)
    (folder / "trace.png").write_bytes(b"\x89PNG")
    rows = [f"2026-03-01T10:{i // 60:02d}:{i % 60:02d}.000000Z,{i}.0,{i + 1}.0,99.0" for i in range(1000)]
    (folder / "trace.csv").write_text("time_utc,pid_mib,total_mib,available_mib\n" + "\n".join(rows) + "\n")


@functools.cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="mlflow-template-"))
    Backend(Target(f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri(), folder)).connect()
    return folder / "mlflow.db"


def with_database(root: Path) -> Path:
    """Puts a migrated, empty MLflow database where a ledger of `root` looks for it: the first migration takes
    seconds.
    """
    folder = root / "artifacts" / "mlflow"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), folder / "mlflow.db")
    return folder / "mlflow.db"
