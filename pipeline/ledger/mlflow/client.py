"""The only place that imports MLflow: calls that may be repeated without harm, and two kinds of error."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pipeline.core.lock import FolderLock
from pipeline.ledger.mlflow.content import Content
from pipeline.ledger.mlflow.target import Target

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

KEY_TAG = "ledger.key"
"""Holds the ledger's id of a run or attempt; by it MLflow's run is found again."""
PARENT_TAG = "mlflow.parentRunId"
INIT_WAIT_SECS = 120.0
MAX_METRICS = 1000
MAX_PARAMS_TAGS = 100
MAX_TAG_CHARS = 8000
"""MLflow's limits on one call and on one tag."""
_PERMANENT = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false",
    # MLflow would try for about four minutes; here everything is sent again later anyway.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class UnreachableError(RuntimeError):
    """MLflow did not take it now: the same may succeed later."""


class RejectedError(RuntimeError):
    """MLflow will never take it: the run was deleted there, or it does not allow the value."""


class Client:
    """MLflow at one target. Every method raises `UnreachableError` or `RejectedError`."""

    def __init__(self, target: Target) -> None:
        """Does nothing yet."""
        self.stop = threading.Event()
        """Once set, nothing more is sent."""
        self._target = target
        self._client: MlflowClient | None = None

    def connect(self) -> MlflowClient:
        """MLflow's own client. The first call imports MLflow (1.5 to 2 s) and prepares the database.

        Processes that come at the same time wait for each other, so that the tables are made once.
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

    def find_run(self, key: str) -> str | None:
        """MLflow's id of the run with that key, whatever its experiment is called now; None if there is none.

        A run that was deleted in MLflow is found if no other has the key; it rejects what is sent to it.
        """
        self.connect()
        with _errors():
            found = list(self._search(f"tags.`{KEY_TAG}` = '{key}'", deleted=True))
            found.sort(key=lambda run: run.info.lifecycle_stage == "deleted")
            return found[0].info.run_id if found else None

    def create_run(self, key: str, experiment: str, name: str, parent_id: str, start_ms: int) -> str:
        """MLflow's id of the run with that key, which is made if there is none, or only a deleted one."""
        client = self.connect()
        with _errors():
            experiment_id = self._experiment_id(client, experiment)
            for run in self._search(f"tags.`{KEY_TAG}` = '{key}'"):
                return str(run.info.run_id)
            tags = {KEY_TAG: key} | ({PARENT_TAG: parent_id} if parent_id else {})
            made = client.create_run(experiment_id, start_time=start_ms, tags=tags, run_name=name)
            return str(made.info.run_id)

    def send(self, run_id: str, content: Content) -> list[str]:
        """Sends what a run gets, in calls within MLflow's limits. Sending it again changes nothing.

        Returns:
            Why MLflow rejected calls, a line for each; the others were made all the same.
        """
        client, reasons = self.connect(), []
        for call in _calls(client, run_id, content):
            if self.stop.is_set():
                raise UnreachableError("there was no time to send everything")
            try:
                with _errors():
                    call()
            except RejectedError as error:
                reasons.append(str(error))
        return reasons

    def running(self) -> list[tuple[str, str]]:
        """Key and MLflow's id of every run of a ledger that MLflow shows as running."""
        self.connect()
        with _errors():
            found = self._search("attributes.status = 'RUNNING'")
            return [(run.data.tags[KEY_TAG], run.info.run_id) for run in found if KEY_TAG in run.data.tags]

    def _search(self, condition: str, deleted: bool = False) -> Iterator[Run]:
        """The runs of all experiments for which a condition holds; deleted ones too if wanted."""
        from mlflow.entities import ViewType

        client, view = self.connect(), ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
        experiments, token = [], None
        while token != "":
            page = client.search_experiments(view_type=view, page_token=token)
            experiments += [experiment.experiment_id for experiment in page]
            token = page.token or ""
        token = None
        while token != "":
            runs = client.search_runs(experiments, condition, view, max_results=1000, page_token=token)
            yield from runs
            token = runs.token or ""

    def _experiment_id(self, client: MlflowClient, name: str) -> str:
        """The experiment of that name, which is made, or restored if it was deleted."""
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return client.create_experiment(name, artifact_location=self._target.artifact_root or None)
            except MlflowException as error:
                experiment = client.get_experiment_by_name(name)
                if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
                    raise  # otherwise another process made it just now
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)


def _calls(client: MlflowClient, run_id: str, content: Content) -> Iterator[Callable[[], object]]:
    """The calls that send a content, the end of the run last."""
    from mlflow.entities import Metric, Param, RunTag

    log = partial(client.log_batch, run_id, synchronous=True)
    tags = [RunTag(clean(name), text[:MAX_TAG_CHARS]) for name, text in content.tags.items() if text]
    yield from (partial(log, tags=some) for some in _chunks(tags, MAX_PARAMS_TAGS))
    params = [Param(clean(name), text) for name, text in content.params.items()]
    yield from (partial(log, params=some) for some in _chunks(params, MAX_PARAMS_TAGS))
    metrics = [Metric(clean(name), finite(value), time, step) for name, value, time, step in content.metrics]
    yield from (partial(log, metrics=some) for some in _chunks(metrics, MAX_METRICS))
    yield from (partial(client.log_text, run_id, text, clean(path)) for path, text in content.texts.items())
    yield from (
        partial(client.log_artifact, run_id, path) for path in content.files if os.access(path, os.R_OK)
    )
    if content.status:
        yield partial(client.set_terminated, run_id, content.status, content.end_ms)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


@cache
def clean(name: str) -> str:
    """A name as MLflow takes it: a relative path of letters, digits, `_`, `.`, `-` and spaces."""
    parts = [re.sub(r"[^\w.\- ]", "_", part) for part in name.split("/")]
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:250] or "_"


def finite(value: float) -> float:
    """The largest finite value for an infinite one, which not every database takes; NaN stays."""
    return math.copysign(1.7976931348623157e308, value) if math.isinf(value) else value


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
