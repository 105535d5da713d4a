"""A disk that is really full: the artifacts folder on a small disk of its own (tmpfs in a mount namespace),
filled up during a training.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config.compose import ROOT
from tests.pipeline.project import project
from tests.pipeline.run.test_resume import go, place

__all__ = ["place", "project"]

SIZE_MIB = 6
MOUNTED = [
    "unshare",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    f'mount -t tmpfs -o size={SIZE_MIB}m small "$0" && exec "$@"',
]
"""Runs a command with a small disk in place of a folder. The disk goes with the command."""

ON_A_SMALL_DISK = """
import json, re, sys, threading, time
from pathlib import Path
from pipeline.ledger.journal import Journal
from pipeline.ledger.schema import Destination
from pipeline.run.session import SessionError
from tests.pipeline.run.test_resume import go
root = Path(sys.argv[1])
artifacts, filler = root / "artifacts", root / "artifacts" / "filler"
def fill():
    def steps(path): return path.read_bytes().count(b'"kind":"step"')
    while not any(steps(path) >= 3 for path in artifacts.glob("runs/*/01-G-attempt1/events.jsonl")):
        time.sleep(0.01)
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
threading.Thread(target=fill, daemon=True).start()
seen = {}
try:
    first = go(root)
    seen["first"] = [first.exit_code, *first.end.summary]
except SessionError as error:
    seen["first"] = [-1, str(error)]
seen["half"] = [str(path) for path in artifacts.rglob("[!.]*.dat") if not path.name.startswith("step-")]
filler.unlink()
again = go(root)
seen["again"], seen["sha256"] = again.exit_code, again.end.final_sha256
with Journal(artifacts / "journal.db") as book:
    seen["states"] = [row.state for run in book.runs() for row in book.attempts(run.run_id)]
    seen["pending"] = len(book.pending(Destination.DEVLOG))
seen["marks"] = re.findall(r"<!-- ledger:(\\S+) -->", (root / "DevLog.md").read_text("utf-8"))
print(json.dumps(seen))
"""


def can_mount() -> bool:
    """Whether this machine lets a user make a mount namespace of his own: some distributions and containers
    do not.
    """
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*MOUNTED, "/mnt", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.fault(
    "the disk is full during a training",
    how=f"artifacts on a disk of {SIZE_MIB} MiB, filled to the last block at step 3",
)
@pytest.mark.parametrize("disk", ["tmpfs"] if can_mount() else [])
def test_a_full_disk_ends_the_run_with_the_remedy_and_the_same_command_goes_on(
    place: Path, tmp_path_factory: pytest.TempPathFactory, disk: str
) -> None:
    """Everything fails at once: events, saved states, result, journal. Then space is made, and the same
    command is given.
    """
    (place / "artifacts").mkdir()
    words = [*MOUNTED, str(place / "artifacts"), sys.executable, "-c", ON_A_SMALL_DISK, str(place)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    assert seen["first"][0] != 0
    assert "space" in " ".join(map(str, seen["first"])), seen["first"]
    assert seen["half"] == [], "no half file under a final name"
    assert (seen["again"], seen["pending"]) == (0, 0)
    assert seen["states"].count("closed") >= 1 and "open" not in seen["states"]
    assert len(seen["marks"]) == len(set(seen["marks"]))
    other = tmp_path_factory.mktemp("through")
    for name in ("model", "data"):
        shutil.copytree(place / name, other / name)
    assert go(other, checkpoint_every=0).end.final_sha256 == seen["sha256"]
