"""A project root with a journal, attempts' folders and an MLflow of its own, for the tests of this room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Outcome
from pipeline.ledger.journal import Journal
from pipeline.ledger.mlflow.client import KEY_TAG, Client
from pipeline.ledger.mlflow.sync import Sync
from pipeline.ledger.mlflow.target import resolve
from pipeline.ledger.schema import Destination
from tests.pipeline.ledger.samples import RUN, attempt, end, step, with_database, write_events

DEAD = "http://127.0.0.1:9"
ATTEMPT = f"{RUN}/G/1"


def mlflow_runs(client: Client) -> dict[str, Any]:
    """Key → run of all that MLflow has; fails if a key stands twice."""
    inner = client.connect()
    found = inner.search_runs([e.experiment_id for e in inner.search_experiments()], max_results=1000)
    keyed = {run.data.tags[KEY_TAG]: run for run in found}
    assert len(keyed) == len(found)
    return keyed


class SyncContext:
    """What a run has around its `Sync`."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.artifacts = root, root / "artifacts"
        with_database(root)
        self.settings = TrackingSettings(experiment_prefix="pre/", **settings)
        self.client = Client(resolve(self.settings, root, self.artifacts))
        self.journal = Journal(self.artifacts / "journal.db", root)

    def sync(self, client: Any = None) -> Sync:
        """A new one, as a process that starts has it."""
        return Sync(self.journal, self.root, self.artifacts, client or self.client, self.settings)

    def runs(self) -> dict[str, Any]:
        """Key → run of all that MLflow has."""
        return mlflow_runs(self.client)

    def history(self, name: str, key: str = ATTEMPT) -> list[tuple[int, float]]:
        """Step and value of all points of a metric, in order of their steps."""
        found = self.client.connect().get_metric_history(self.runs()[key].info.run_id, name)
        return sorted((metric.step, metric.value) for metric in found)

    def waiting(self) -> int:
        """How many notices MLflow does not have."""
        return len(self.journal.pending(Destination.MLFLOW))

    def open(self, steps: int = 0, **recipe: Any) -> None:
        """A run with an open attempt that has done some steps."""
        self.journal.open_run(RUN, "stageG", "make run", "seed: 0\n")
        self.journal.open_attempt(attempt(**recipe))
        self.steps(1, steps)

    def steps(self, first: int, last: int) -> None:
        """Events of further steps."""
        write_events(self.root, attempt(), (step(number, 1 / number) for number in range(first, last + 1)))

    def close(self, outcome: Outcome = Outcome.PASSED) -> None:
        """Ends the attempt and interrupts the run."""
        self.journal.close_attempt(attempt(), end(outcome))
        self.journal.interrupt_run(RUN, "test")
