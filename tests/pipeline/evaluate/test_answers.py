"""Answers: asked once for the same query, never cached when they fail, and read line by line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.hashing import sha256_file
from pipeline.core.types import WeightRef
from pipeline.evaluate.answers import AnswerCache, ProbeQuery, ProbingError, load_probes, read_answers
from pipeline.guard.machine import Machine
from pipeline.processes.stage_process import Job, ProcessCallbacks
from stages.contract.events import Answer, ExitCode, Finish
from stages.contract.recipe import ComputeDtype, Template
from stages.contract.requests import InferencePath
from stages.contract.serial import RequestError, dump_line
from tests.pipeline.project import COMMANDS, project, settings_of

__all__ = ["project"]


def query_of(root: Path) -> ProbeQuery:
    """The base weight, with the probes of the test project."""
    stage = settings_of(root, {"G": {"data": ["data/one.tsv"]}}).stages[0]
    weight = WeightRef("model", "model/base.dat", sha256_file(root / "model" / "base.dat"))
    return ProbeQuery(weight, stage.probes, stage.recipe)


def cache_of(root: Path, machine: Machine | None = None) -> AnswerCache:
    settings = settings_of(root, {"G": {"data": ["data/one.tsv"]}})
    return AnswerCache(root, settings.artifacts, settings.guard, COMMANDS, machine or Machine())


def test_answers_are_asked_once_for_the_same_query(project: Path) -> None:
    started: list[int] = []
    callbacks = ProcessCallbacks(on_start=started.append)
    cache, query = cache_of(project), query_of(project)
    first = cache.ask(query, "one", "answers", callbacks)
    assert cache.ask(query, "two", "answers", callbacks) == first
    assert len(started) == 1
    one, two = (project / name / "answers.jsonl" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    shorter = replace(query, probes=replace(query.probes, max_tokens=3))
    cache.ask(shorter, "three", "answers", callbacks)
    cache_of(project, Machine((80.0,))).ask(query, "four", "answers", callbacks)
    assert len(started) == 3


def test_answers_that_fail_are_not_cached(project: Path) -> None:
    query = query_of(project)
    gone = replace(query, weight=replace(query.weight, path="gone.dat"))
    with pytest.raises(ProbingError, match=r"gone\.dat") as caught:
        cache_of(project).ask(gone, "one", "answers", ProcessCallbacks())
    assert caught.value.ended.exit_code == ExitCode.BAD_INPUT
    assert not (project / "artifacts" / "cache").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"path": InferencePath.FP2},
        {"weight": WeightRef("model", "model/base.dat", "f" * 64)},
        {"probes": {"batch_size": 3}},
        {"probes": {"files": ["data/probes-ufo.tsv"]}},
        {"recipe": {"template": Template.FSHARP}},
        {"recipe": {"compute_dtype": ComputeDtype.BF16}},
        {"recipe": {"threads": 3}},
    ],
    ids=str,
)
def test_the_key_follows_what_decides_the_answers(project: Path, changes: dict[str, Any]) -> None:
    query = query_of(project)
    values = {
        name: replace(getattr(query, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    assert replace(query, **values).key(project, Machine()) != query.key(project, Machine())


def test_the_key_does_not_follow_paths_or_the_training(project: Path) -> None:
    query = query_of(project)
    (project / "model" / "base.dat").rename(project / "moved.dat")
    moved = replace(
        query,
        weight=replace(query.weight, path="moved.dat"),
        recipe=replace(query.recipe, lr=0.5, steps=3, seed=8),
    )
    assert moved.key(project, Machine()) == query.key(project, Machine())


def test_the_key_follows_the_content_of_model_and_probe_files(project: Path) -> None:
    query, keys = query_of(project), set()
    for name in ("model/config.json", "model/tokenizer.json", "data/probes-ufo.tsv"):
        keys.add(query.key(project, Machine()))
        with (project / name).open("a", encoding="utf-8") as file:
            file.write(" ")
    assert len(keys | {query.key(project, Machine())}) == 4


def test_the_request_has_the_numerics_of_the_training(project: Path) -> None:
    query = query_of(project)
    query = replace(query, recipe=replace(query.recipe, threads=3, template=Template.FSHARP))
    request = query.request(Job((), "folder", "base-"), "folder/base.jsonl")
    assert (request.threads, request.template) == (3, Template.FSHARP)
    assert (request.weight, request.probes) == ("model/base.dat", query.probes.files)
    assert (request.answers, request.result) == ("folder/base.jsonl", "folder/base-result.json")
    assert request.check() == []


def test_answers_are_read_in_order(tmp_path: Path) -> None:
    answers = [Answer("p.tsv", i + 2, f"q{i}", "答\u2028案", [1], Finish.END_OF_TURN) for i in range(3)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(dump_line(answer) + "\n" for answer in answers), encoding="utf-8")
    assert read_answers(file) == answers


@pytest.mark.parametrize("line", ["{not json", '{"file": 3}', ""])
def test_a_bad_answers_file_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "answers.jsonl"
    good = dump_line(Answer("p.tsv", 2, "q", "a", [1], Finish.LENGTH))
    file.write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"answers\.jsonl:2"):
        read_answers(file)


def test_the_probes_of_several_files_come_in_order(project: Path) -> None:
    probes = load_probes(["data/probes-ufo.tsv", "data/probes-contrast.tsv"], project)
    assert [probe.prompt for probe in probes] == ["談談UFO", "我是誰"]
