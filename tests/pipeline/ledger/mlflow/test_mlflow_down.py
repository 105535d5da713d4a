"""MLflow not there, killed or locked during a run: training goes on, and `python -m pipeline.tracking sync`
sends all of it later.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.config.compose import ROOT
from pipeline.core.settings import TrackingSettings
from pipeline.core.types import Outcome
from pipeline.ledger.mlflow.client import Client
from pipeline.ledger.mlflow.sync import waiting_runs
from pipeline.ledger.mlflow.target import resolve
from pipeline.tracking import ui_command
from tests.pipeline.guard.guarded import wait_for
from tests.pipeline.ledger.mlflow.context import mlflow_runs
from tests.pipeline.ledger.samples import with_database
from tests.pipeline.project import project
from tests.pipeline.run.test_runner import go, stage

__all__ = ["project"]

SLOW = {"G": stage("slow", steps=100)}


def sync(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command, as a user gives it."""
    words = [
        sys.executable,
        "-m",
        "pipeline.tracking",
        "--artifacts",
        str(root / "artifacts"),
        *options,
        "sync",
    ]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def check_arrived(root: Path, steps: int, uri: str = "") -> None:
    """Run and attempt are there once, ended, with every step, and nothing waits."""
    client = Client(resolve(TrackingSettings(uri=uri), root, root / "artifacts"))
    runs = mlflow_runs(client)
    assert len(runs) == 2 and {run.info.status for run in runs.values()} == {"FINISHED"}
    attempt = next(run for key, run in runs.items() if key.endswith("/G/1"))
    history = client.connect().get_metric_history(attempt.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == list(range(1, steps + 1))
    files = {item.path for item in client.connect().list_artifacts(attempt.info.run_id)}
    assert files >= {"trace.png", "steps.png", "trace.json", "request.json", "command.txt", "probes.json"}
    assert waiting_runs(root / "artifacts") == 0


@pytest.mark.slow
@pytest.mark.fault(
    "MLflow not reachable",
    how="its address is a port where nobody listens, for a whole run; then `sync` by command",
)
def test_a_run_without_mlflow_passes_and_is_sent_later(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with_database(project)
    dead = "http://127.0.0.1:9"
    result = go(project, {"G": stage()}, tracking={"enabled": True, "uri": dead, "close_wait_secs": 3})
    assert (result.exit_code, result.end.outcome) == (0, Outcome.PASSED)
    assert [record for record in caplog.records if "sync" in record.message], "the way to send it is said"
    assert waiting_runs(project / "artifacts") == 1
    refused = sync(project)
    assert refused.returncode == 1 and "1 run(s) wait" in refused.stderr, (
        "still not there, and nothing is lost by asking"
    )
    sent = sync(project, "--uri", f"sqlite:///{project / 'artifacts' / 'mlflow' / 'mlflow.db'}")
    assert sent.returncode == 0, sent.stderr
    check_arrived(project, 12)


@pytest.mark.slow
@pytest.mark.fault(
    "MLflow's database locked",
    how="another connection holds an exclusive transaction for a whole run; then `sync`",
)
def test_a_locked_mlflow_database_stops_nothing(project: Path) -> None:
    database = with_database(project)
    with sqlite3.connect(database, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        result = go(project, {"G": stage()}, tracking={"enabled": True, "close_wait_secs": 3})
        assert result.exit_code == 0
        other.execute("ROLLBACK")
    sent = sync(project)
    assert sent.returncode == 0, sent.stderr
    check_arrived(project, 12)


class Server:
    """MLflow's own server as `make ui` starts it, on a free port."""

    def __init__(self, root: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._command = ui_command(resolve(TrackingSettings(), root, root / "artifacts"), self.port)
        self._log = root / "server.log"

    def start(self) -> None:
        """Returns once it listens."""
        environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        wait_for(self.addresses, f"a server: {self._log.read_text('utf-8')[-2000:]}", 60)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def addresses(self) -> set[str]:
        """The addresses on which this machine listens on that port, as the kernel writes them (proc(5),
        /proc/net/tcp).
        """
        rows = [
            line.split()
            for name in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{name}").read_text("ascii").splitlines()[1:]
        ]
        local = [row[1].split(":") for row in rows if row[3] == "0A"]
        return {address for address, port in local if int(port, 16) == self.port}


@pytest.mark.slow
@pytest.mark.fault(
    "MLflow's server dies during a run",
    how="SIGKILL to a real server after the first figures; started again, then `sync`",
)
def test_a_server_that_dies_in_the_middle_loses_nothing_and_listens_on_loopback_only(project: Path) -> None:
    with_database(project)
    server = Server(project)
    server.start()
    try:
        assert server.addresses() == {"0100007F"}, "127.0.0.1 and nothing else"

        def kill_after_first_figures() -> None:
            deadline = time.monotonic() + 60
            with sqlite3.connect(project / "artifacts" / "mlflow" / "mlflow.db") as database:
                while (
                    not database.execute("SELECT count(*) FROM metrics").fetchone()[0]
                    and time.monotonic() < deadline
                ):
                    time.sleep(0.05)
            server.kill()

        killer = threading.Thread(target=kill_after_first_figures)
        killer.start()
        result = go(project, SLOW, tracking={"enabled": True, "uri": server.uri, "close_wait_secs": 3})
        killer.join()
        assert result.exit_code == 0
        assert waiting_runs(project / "artifacts") == 1
        server.start()
        sent = sync(project)
        assert sent.returncode == 0, sent.stderr
        check_arrived(project, 100, server.uri)
    finally:
        server.kill()
