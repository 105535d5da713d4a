"""The probe command: answers in the order of the files, bad files and long prompts named together."""

from __future__ import annotations

import json
from pathlib import Path

from stages.contract.events import ExitCode, StageResult
from stages.contract.requests import ProbeRequest
from stages.contract.serial import dump, load_file
from stages.inference.probe import main
from tests.conftest import TinyModel

HEADER = "kind\tgroup\tsplit\tprompt\texpect\tforbid\n"


def _run(tiny: TinyModel, folder: Path, *files: str) -> tuple[int, StageResult]:
    paths = []
    for number, text in enumerate(files):
        paths.append(folder / f"{number}.tsv")
        paths[-1].write_text(HEADER + text, encoding="utf-8")
    request = ProbeRequest(
        model_dir=str(tiny.folder),
        weight=str(tiny.weight),
        probes=[str(path) for path in paths],
        answers=str(folder / "answers.jsonl"),
        events=str(folder / "events.jsonl"),
        result=str(folder / "result.json"),
        max_tokens=4,
        device="cpu",
    )
    (folder / "request.json").write_text(dump(request), encoding="utf-8")
    return main([str(folder / "request.json")]), load_file(StageResult, folder / "result.json")


def test_answers_come_in_the_order_of_the_files(tiny: TinyModel, tmp_path: Path) -> None:
    first = "identity\ta\ttrain\t你是誰\tF#\t\nidentity\ta\ttrain\twho are you\tF#\t\n"
    code, result = _run(tiny, tmp_path, first, "ability\tb\theldout\t1+1\t=2\t\n")
    assert code == ExitCode.OK and result.figures["answers"] == 3
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert [(a["file"], a["line"], a["prompt"]) for a in answers] == [
        ("0.tsv", 2, "你是誰"),
        ("0.tsv", 3, "who are you"),
        ("1.tsv", 2, "1+1"),
    ]
    assert result.figures["tokens"] == sum(len(a["token_ids"]) for a in answers) > 0


def test_all_bad_lines_are_named_and_nothing_is_answered(tiny: TinyModel, tmp_path: Path) -> None:
    code, result = _run(tiny, tmp_path, "nonsense\ta\ttrain\tx\ty\t\n", "identity\ta\ttrain\tx\t\t\n")
    assert code == ExitCode.BAD_INPUT and "0.tsv:2" in result.error and "1.tsv:2" in result.error
    assert not (tmp_path / "answers.jsonl").exists()


def test_a_prompt_that_fills_the_context_is_named(tiny: TinyModel, tmp_path: Path) -> None:
    code, result = _run(tiny, tmp_path, f"identity\ta\ttrain\t{'z9' * 600}\tx\t\n")
    assert code == ExitCode.BAD_INPUT and "0.tsv:2" in result.error and "context of 512" in result.error
