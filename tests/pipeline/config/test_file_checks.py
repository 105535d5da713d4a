"""Files that settings name: what is missing or broken is found before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config.file_checks import check_files, model_problems, probe_file_problems, weight_problems
from pipeline.config.reader import merged, read
from pipeline.core.settings import ModelSettings
from tests.pipeline.project import PROBES, project, raw_settings

__all__ = ["project"]

STAGES: dict[str, Any] = {"A": {"data": ["data/two.tsv"]}, "G": {"data": ["data/one.tsv"]}}


def problems_of(root: Path, change: dict[str, Any]) -> list[str]:
    settings, problems = read(merged(raw_settings(STAGES), change))
    assert settings is not None and not problems
    return check_files(settings, root)


def rung(*data: Any) -> dict[str, Any]:
    return {"rungs": [{"after": "collapsed", "change": {"data": list(data)}, "why": "w"}]}


def test_a_whole_project_has_no_problems(project: Path) -> None:
    assert problems_of(project, {}) == []
    init = {"kind": "init", "config": "model/config.json", "data": ["data/one.tsv"]}
    settings, _ = read(raw_settings({"init": init, **STAGES}, model={"weight": "none yet"}))
    assert settings is not None and check_files(settings, project) == []


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        ({"name": "a b"}, ["name: 'a b': names folders"]),
        ({"model": {"dir": "model/nothing"}}, ["model.dir: model/nothing: no such file"]),
        (
            {"stages": {"G": {"kind": "init", "config": "model/config.json"}}},
            ["stages.G.kind: init: only the first"],
        ),
        ({"stages": {"A": {"stop_after": "start"}}}, ["stages.A.stop_after: start: set it in G only"]),
        ({"stages": {"A": {"kind": "init"}}}, ["stages.A.config: empty: name the config.json"]),
        ({"stages": {"G": {"probes": {"files": []}}}}, ["stages.G.probes.files: empty: name a probe file"]),
        (
            {"stages": {"G": {"ladder": rung("data/gone.tsv", "data/tow.tsv")}}},
            [
                "stages.G.ladder.rungs[0].change.data: data/gone.tsv: no such file",
                "stages.G.ladder.rungs[0].change.data: data/tow.tsv: no such file; did you mean 'two.tsv'?",
            ],
        ),
    ],
)
def test_each_kind_of_problem_is_named(project: Path, change: dict[str, Any], starts: list[str]) -> None:
    problems = problems_of(project, change)
    assert len(problems) == len(starts), problems
    assert all(problem.startswith(start) for problem, start in zip(problems, starts, strict=True)), problems


def test_a_file_that_several_stages_use_is_reported_once(project: Path) -> None:
    (project / "data" / "one.tsv").write_text("no tab\n", encoding="utf-8")
    (project / "data" / "probes-ufo.tsv").unlink()
    assert problems_of(project, {"stages": {"A": {"data": ["data/one.tsv"]}}}) == [
        "data/one.tsv:1: no tab in 'no tab': write prompt<TAB>target",
        "stages.A.probes.files[3]: data/probes-ufo.tsv: no such file: name an existing TSV; "
        "nothing is put in its place",
    ]


def test_bad_lines_of_probe_files_are_all_named(project: Path) -> None:
    files = {f"data/probes-{name}.tsv": f"files[{i}]" for i, name in enumerate(PROBES)}
    assert probe_file_problems(files, project) == []
    with (project / "data" / "probes-ufo.tsv").open("a", encoding="utf-8") as file:
        file.write("ability\tufo\n")
    assert probe_file_problems(files, project) == [
        "data/probes-ufo.tsv:3: 2 cells, not 6, in 'ability\\tufo'"
    ]


def test_a_weight_is_a_file_of_some_size(project: Path) -> None:
    (project / "model" / "empty.dat").touch()
    for path, says in (
        ("model/base.dat", ""),
        ("", "key: empty: name a weight, a .dat file"),
        ("model", "key: model: is a folder: name the .dat file in it"),
        ("model/empty.dat", "key: model/empty.dat: 0 bytes are no weight: fetch the file again"),
        ("modle/base.dat", "key: modle/base.dat: no such file ("),
    ):
        problems = weight_problems("key", path, project)
        assert len(problems) == bool(says)
        assert all(problem.startswith(says) for problem in problems), problems


def test_a_path_is_explained_from_the_deepest_folder_that_exists(project: Path) -> None:
    (problem,) = weight_problems("key", "modle/deep/base.dat", project)
    assert problem == "key: modle/deep/base.dat: no such file (. has no modle); did you mean 'model'?"
    (problem,) = weight_problems("key", "/nowhere/else/base.dat", project)
    assert (
        problem == "key: /nowhere/else/base.dat: no such file (/ has no nowhere): name a weight, a .dat file"
    )


def test_a_model_needs_its_files(project: Path) -> None:
    (project / "model" / "tokenizer.json").unlink()
    (problem,) = model_problems(ModelSettings("m", "model", "model/base.dat"), project)
    assert problem.startswith("model.dir: model/tokenizer.json: no such file")


def test_a_disk_too_small_is_found_before_training(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": (project / "model" / "base.dat").stat().st_size * 2 - 1})
    monkeypatch.setattr("pipeline.config.file_checks.shutil.disk_usage", lambda path: usage)
    (problem,) = problems_of(project, {})
    assert problem.startswith("artifacts: artifacts: 0.0 GiB free, 0.0 needed: free some")
