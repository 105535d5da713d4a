"""The only place that speaks to MLflow: explicit client calls that may be repeated without harm, quietly,
with two errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.lock import FolderLock

if TYPE_CHECKING:
    from mlflow import MlflowClient

KEY_TAG = "ledger.key"
"""Holds the ledger's own name of a run; by it a run is found again."""
PARENT_TAG = "mlflow.parentRunId"
MAX_METRICS = 1000
MAX_PARAMS_TAGS = 100
MAX_TAG_CHARS = 8000
INIT_WAIT_SECS = 120.0
_PERMANENT = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # MLflow would try for about four minutes; the spool is patient enough.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class UnreachableError(RuntimeError):
    """MLflow did not take it now: the same may succeed later."""


class RejectedError(RuntimeError):
    """MLflow will never take it: a run that was deleted there, a value it does not allow."""


@dataclass(frozen=True)
class Target:
    """Where to send to. Both are absolute, and nothing of MLflow's own defaults is used."""

    uri: str
    artifact_root: str
    """URI of a folder; empty if a server decides."""
    lock_folder: Path
    """Holds the lock of the first use."""


@dataclass(frozen=True)
class Batch:
    """Figures and words of one run, sent in one call."""

    metrics: tuple[tuple[str, float, int, int], ...] = ()
    """Name, value, time in milliseconds, step."""
    params: tuple[tuple[str, str], ...] = ()
    tags: tuple[tuple[str, str], ...] = ()


class Backend:
    """MLflow at one target. The import (1.5 to 2 s here) and the first use of the database happen in
    `connect`.

    Every method raises `UnreachableError` or `RejectedError`.
    """

    def __init__(self, target: Target) -> None:
        """Does nothing yet."""
        self._target = target
        self._client: MlflowClient | None = None
        self._experiments: dict[str, str] = {}

    def connect(self) -> MlflowClient:
        """The client, made on first use. Processes that come at once wait for each other: the tables are made
        only once.
        """
        if self._client is not None:
            return self._client
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise UnreachableError(f"mlflow cannot be imported: {error}") from error
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        with _errors():
            self._target.lock_folder.mkdir(parents=True, exist_ok=True)
            with FolderLock(self._target.lock_folder, "MLflow first use", INIT_WAIT_SECS, name=".init.lock"):
                client = MlflowClient(tracking_uri=self._target.uri, registry_uri=self._target.uri)
                client.search_experiments(max_results=1)
        self._client = client
        return client

    def create_run(self, key: str, experiment: str, name: str, parent_id: str, start_ms: int) -> str:
        """MLflow's id of the run of that key, which is made if there is none yet."""
        client = self.connect()
        with _errors():
            experiment_id = self._experiment(client, experiment)
            found = client.search_runs(
                [experiment_id], f"tags.`{KEY_TAG}` = '{quotable(key)}'", max_results=1
            )
            if found:
                return str(found[0].info.run_id)
            tags = {KEY_TAG: quotable(key)} | ({PARENT_TAG: parent_id} if parent_id else {})
            return str(
                client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=name).info.run_id
            )

    def log(self, run_id: str, batch: Batch) -> None:
        """At most `MAX_METRICS` metrics and `MAX_PARAMS_TAGS` of parameters and tags each. Repetition changes
        nothing.
        """
        client = self.connect()
        from mlflow.entities import Metric, Param, RunTag

        with _errors():
            metrics = [Metric(*row) for row in batch.metrics]
            params = [Param(key, value) for key, value in batch.params]
            tags = [RunTag(key, value[:MAX_TAG_CHARS]) for key, value in batch.tags]
            client.log_batch(run_id, metrics=metrics, params=params, tags=tags, synchronous=True)

    def text(self, run_id: str, path: str, text: str) -> None:
        """A text as an artifact."""
        client = self.connect()
        with _errors():
            client.log_text(run_id, text, path)

    def file(self, run_id: str, source: Path, folder: str) -> None:
        """A file as an artifact. One that is gone is rejected."""
        if not source.is_file():
            raise RejectedError(f"{source}: no such file")
        client = self.connect()
        with _errors():
            client.log_artifact(run_id, str(source), folder or None)

    def end(self, run_id: str, status: str, end_ms: int) -> None:
        """Ends a run as `FINISHED`, `FAILED` or `KILLED`."""
        client = self.connect()
        with _errors():
            client.set_terminated(run_id, status, end_ms)

    def running(self) -> list[tuple[str, str]]:
        """Key and MLflow id of every run of a ledger that is still marked as running."""
        client = self.connect()
        with _errors():
            found: list[tuple[str, str]] = []
            experiments = [experiment.experiment_id for experiment in client.search_experiments()]
            token: Any = None
            while True:
                page = client.search_runs(
                    experiments, "attributes.status = 'RUNNING'", max_results=1000, page_token=token
                )
                found += [
                    (run.data.tags[KEY_TAG], run.info.run_id) for run in page if KEY_TAG in run.data.tags
                ]
                token = page.token
                if not token:
                    return found

    def _experiment(self, client: MlflowClient, name: str) -> str:
        if name not in self._experiments:
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                self._experiments[name] = self._make_experiment(client, name)
            else:
                if experiment.lifecycle_stage == "deleted":
                    client.restore_experiment(experiment.experiment_id)
                self._experiments[name] = experiment.experiment_id
        return self._experiments[name]

    def _make_experiment(self, client: MlflowClient, name: str) -> str:
        from mlflow.exceptions import MlflowException

        try:
            return str(client.create_experiment(name, artifact_location=self._target.artifact_root or None))
        except MlflowException as error:
            experiment = client.get_experiment_by_name(name)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
                raise
            return str(experiment.experiment_id)  # another process made it just now


def quotable(key: str) -> str:
    """A key as it can stand in a filter."""
    return key.replace("'", "_")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        kind = RejectedError if error.error_code in _PERMANENT else UnreachableError
        raise kind(f"{error.error_code}: {_first_line(error)}") from error
    except (SQLAlchemyError, OSError, RuntimeError) as error:
        raise UnreachableError(f"{type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:300]
