"""The client: MLflow's limits, two kinds of error, and calls that may be repeated. Real MLflow on SQLite."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from pipeline.core.settings import TrackingSettings
from pipeline.ledger.mlflow.client import KEY_TAG, Client, RejectedError, UnreachableError, clean, finite
from pipeline.ledger.mlflow.content import Content
from pipeline.ledger.mlflow.target import resolve
from tests.pipeline.ledger.mlflow.context import DEAD, SyncContext, mlflow_runs
from tests.pipeline.ledger.samples import script

WHOLE = Content(
    {"tag": "a", "empty": ""}, {"p": "1"}, [("m", 1.0, 5, 1), ("m", math.nan, 6, 2)], {"a/b.txt": "text"}
)


def test_what_is_sent_twice_is_there_once(context: SyncContext) -> None:
    """The whole design rests on this: nothing but the journal notes what was sent."""
    client = context.client
    run_id = client.create_run("k", "e", "name", "", 1000)
    source = context.root / "file.txt"
    source.write_text("content")
    content = Content(WHOLE.tags, WHOLE.params, WHOLE.metrics, WHOLE.texts, [source], "FINISHED", 2000)
    assert [client.send(run_id, content) for _ in range(3)] == [[], [], []]
    assert client.create_run("k", "e", "name", "", 1000) == run_id == client.find_run("k")
    run = mlflow_runs(client)["k"]
    assert (run.info.status, run.info.end_time, run.data.params) == ("FINISHED", 2000, {"p": "1"})
    assert run.data.tags["tag"] == "a" and "empty" not in run.data.tags
    inner = client.connect()
    assert len(inner.get_metric_history(run_id, "m")) == 2
    assert {item.path for item in inner.list_artifacts(run_id)} == {"a", "file.txt"}


def test_many_and_large_values_fit_mlflows_limits(context: SyncContext) -> None:
    run_id = context.client.create_run("k", "e", "name", "", 0)
    params = {f"k{i}": str(i) for i in range(250)}
    tags = {f"t{i}": "x" * 9000 for i in range(120)}
    metrics = [("m", float(i), 1000 + i, i) for i in range(2500)]
    odd = [("odd", float(text), i, i) for i, text in enumerate(("nan", "inf", "-inf"))]
    assert context.client.send(run_id, Content(tags, params, metrics + odd)) == []
    run = mlflow_runs(context.client)["k"]
    assert run.data.params == params
    assert {name: len(text) for name, text in run.data.tags.items() if name in tags} == dict.fromkeys(
        tags, 8000
    )
    assert len(context.client.connect().get_metric_history(run_id, "m")) == 2500
    assert len(context.client.connect().get_metric_history(run_id, "odd")) == 3


def test_names_are_made_such_that_mlflow_takes_them() -> None:
    assert clean("data.datasets/../x 身份?.tsv") == "data.datasets/x 身份_.tsv"
    assert clean("/..") == "_"
    assert len(clean("a" * 999)) == 250
    assert finite(-math.inf) == -1.7976931348623157e308 and math.isnan(finite(math.nan))


def test_one_refused_call_does_not_hold_up_the_others(context: SyncContext) -> None:
    run_id = context.client.create_run("k", "e", "name", "", 0)
    assert context.client.send(run_id, Content(params={"lr": "1"})) == []
    (reason,) = context.client.send(run_id, Content({"tag": "a"}, {"lr": "changed"}, status="FAILED"))
    assert "INVALID_PARAMETER_VALUE" in reason and "lr" in reason
    run = mlflow_runs(context.client)["k"]
    assert (run.info.status, run.data.tags["tag"], run.data.params["lr"]) == ("FAILED", "a", "1")


def test_file_that_cannot_be_read_is_left_out(context: SyncContext, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = context.client.create_run("k", "e", "name", "", 0)
    secret, fine = context.root / "secret", context.root / "fine"
    secret.touch()
    fine.touch()
    # Root, who may run this, reads everything: so the system's answer is given here.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != secret and access(path, mode))
    assert context.client.send(run_id, Content(files=[secret, context.root / "gone", fine])) == []
    assert [item.path for item in context.client.connect().list_artifacts(run_id)] == ["fine"]


def test_errors_say_later_or_never(context: SyncContext) -> None:
    run_id = context.client.create_run("k", "e", "n", "", 0)
    context.client.connect().delete_run(run_id)
    (reason,) = context.client.send(run_id, Content({"a": "b"}))
    assert "active" in reason
    (reason,) = context.client.send("0" * 32, Content(status="FINISHED"))
    assert "not found" in reason
    with pytest.raises(RejectedError):
        context.client.create_run("k", "", "n", "", 0)
    with pytest.raises(UnreachableError, match="127"):
        Client(resolve(TrackingSettings(uri=DEAD), context.root, context.artifacts)).connect()
    (context.root / "bad.db").write_bytes(b"not a database" * 100)
    with pytest.raises(UnreachableError):
        Client(resolve(TrackingSettings(uri="sqlite:///bad.db"), context.root, context.artifacts)).connect()


def test_run_is_found_by_its_key_wherever_it_is(context: SyncContext) -> None:
    client, inner = context.client, context.client.connect()
    assert client.find_run("k") is None
    first = client.create_run("k", "e", "n", "", 0)
    inner.rename_experiment(inner.get_run(first).info.experiment_id, "renamed")
    assert client.find_run("k") == client.create_run("k", "e", "n", "", 0) == first
    inner.delete_run(first)
    assert client.find_run("k") == first, "what belongs to a deleted run is refused, not made anew"
    second = client.create_run("k", "e", "n", "", 0)
    assert second != first and client.find_run("k") == second


def test_child_has_its_parent_and_running_runs_are_listed(context: SyncContext) -> None:
    parent = context.client.create_run("p", "e", "n", "", 0)
    child = context.client.create_run("c", "e", "n", parent, 0)
    inner = context.client.connect()
    inner.create_run("0")  # of no ledger
    assert inner.get_run(child).data.tags["mlflow.parentRunId"] == parent
    assert sorted(context.client.running()) == [("c", child), ("p", parent)]
    context.client.send(parent, Content(status="KILLED", end_ms=1))
    assert context.client.running() == [("c", child)]


def test_deleted_experiment_is_taken_up_again(context: SyncContext) -> None:
    inner = context.client.connect()
    inner.delete_experiment(inner.create_experiment("e"))
    run_id = context.client.create_run("k", "e", "n", "", 0)
    assert context.client.send(run_id, Content({"a": "b"})) == []


def test_nothing_is_sent_after_a_stop(context: SyncContext) -> None:
    run_id = context.client.create_run("k", "e", "n", "", 0)
    context.client.stop.set()
    with pytest.raises(UnreachableError, match="time"):
        context.client.send(run_id, WHOLE)
    assert "tag" not in mlflow_runs(context.client)["k"].data.tags


FIRST_USE = """
import sys; from pathlib import Path
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.target import resolve
from pipeline.core.settings import TrackingSettings
root = Path(sys.argv[1])
client = Client(resolve(TrackingSettings(), root, root / "artifacts"))
print("ready", flush=True); sys.stdin.readline()
print(client.create_run(sys.argv[2], "same", "name", "", 0))
"""


@pytest.mark.fault("two processes make MLflow's tables at once", how="both released in the same moment")
def test_two_processes_race_on_first_use_quietly(tmp_path: Path) -> None:
    both = [script(FIRST_USE, str(tmp_path), key) for key in ("a", "b")]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    ends = [one.communicate() for one in both]
    assert [(one.returncode, error) for one, (_, error) in zip(both, ends, strict=True)] == [(0, ""), (0, "")]
    client = Client(resolve(TrackingSettings(), tmp_path, tmp_path / "artifacts"))
    assert set(mlflow_runs(client)) == {"a", "b"}
    assert all(KEY_TAG in run.data.tags for run in mlflow_runs(client).values())
    assert len([e for e in client.connect().search_experiments() if e.name == "same"]) == 1
