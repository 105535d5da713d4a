"""Kills a run's processes with SIGKILL at random moments, starts the same command again until it ends, and
checks what is left.

    python benchmarks/chaos.py --trials 100 --seed 0 [--workers 2] [--json FILE]        (make chaos)

Each trial is a project of its own: the sources, the settings and the base weight in a temporary folder, the
smoke experiment with few probes, MLflow on. In a trial 1 to 4 processes are killed, each a kill point: the
control process, the guard, the supervisor or the stage (training or probing), at a random moment of the run's
usual length. Then the command runs undisturbed to its end. A trial depends on its own number alone, so
`--trials 50 --seed 0` and `--trials 50 --seed 50` are the two halves of `--trials 100 --seed 0`.
"""

from __future__ import annotations

import argparse
import collections
import compileall
import concurrent.futures
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TARGETS = ("control", "guard", "supervisor", "stage")
MODEL = "artifacts/base/qwen3-nano"
OVERRIDES = (
    "+experiment=smoke",
    "stages.smoke.steps=6",
    "train.checkpoint_every=2",
    "train.threads=1",
    "probes.files=[probes.tsv]",
    "probes.max_tokens=8",
    "stages.smoke.data=[rows.tsv]",
    *(
        f"probes.thresholds.{key}=null"
        for key in ("leak_max", "contrast_ratio_min", "ability_ratio_min", "no_end_of_turn_max")
    ),
    *(
        f"probes.thresholds.{key}=1"
        for key in ("repetition_max", "collapse_repetition", "collapse_no_end_of_turn", "collapse_empty")
    ),
    *(f"probes.thresholds.{key}=1" for key in ("collapse_same_answer", "collapse_leak")),
    "guard.min_available_gb=0",
    "guard.grace_secs=20",
)
LONGEST_SECS = 600.0
STARTS = 12


@dataclass
class Kill:
    """One kill point."""

    target: str
    """Who was to be killed."""
    hit: str
    """Who was: the process may not have lived at that moment; then nobody."""
    after: float
    """Seconds after the start of the command."""
    phase: str
    """How far the run was: start, training, exported, probing, judged, ended."""


@dataclass
class Trial:
    """One trial: its kills, how often the command was started, and what was wrong at the end."""

    number: int
    kills: list[Kill] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    """Of each start of the command; the last must be 0."""
    states: dict[str, int] = field(default_factory=dict)
    """State of attempts → count, from the journal."""
    resumed: int = 0
    """Attempts that went on from a saved state."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns 0 if no trial found a fault."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials", type=int, default=100, help="how many (default 100, about 250 kill points)"
    )
    parser.add_argument("--seed", type=int, default=0, help="number of the first trial (default 0)")
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="trials at once"
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="where the figures go (default benchmarks/results/chaos-<seed>-<trials>.json)",
    )
    parser.add_argument("--keep", type=Path, help="folder that keeps the projects of trials with faults")
    options = parser.parse_args(argv)
    path = options.json or RESULTS / f"chaos-{options.seed}-{options.trials}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        template = make_project(Path(place) / "template")
        usual = warm_up(template)
        numbers = range(options.seed, options.seed + options.trials)
        trials: list[Trial] = []
        with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
            for done in pool.map(
                lambda number: run_trial(template, Path(place), number, usual, options.keep), numbers
            ):
                trials.append(done)
                path.write_text(
                    json.dumps(report(trials, usual), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
                )
                hits = " ".join(kill.hit or "-" for kill in done.kills)
                sys.stdout.write(
                    f"trial {done.number}: killed {hits}; exits {done.exit_codes}; "
                    f"{done.faults or 'no fault'}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(table(trials) + f"\n{path}\n")
    return 1 if any(trial.faults for trial in trials) else 0


def make_project(root: Path) -> Path:
    """A project folder with the sources as they are now, few rows, few probes, and answers of the base weight
    still to be asked.
    """
    for name in ("pipeline", "stages", "conf"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", "local"))
    shutil.copytree(ROOT / MODEL, root / MODEL)
    rows = (ROOT / "datasets" / "stageA" / "mixed.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (root / "rows.tsv").write_text("".join(rows[:40]), encoding="utf-8")
    probes = (ROOT / "datasets" / "probes" / "ufo.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (root / "probes.tsv").write_text("".join(probes[:5]), encoding="utf-8")
    for name in ("pipeline", "stages"):
        compileall.compile_dir(root / name, quiet=1)
    return root


def copy_project(template: Path, root: Path) -> Path:
    """A fresh copy. Files that are only read are links."""
    shutil.copytree(template, root, copy_function=os.link, symlinks=True)
    return root


def command(root: Path) -> subprocess.Popen[bytes]:
    """Starts the run in a session of its own."""
    environment = {**os.environ, "PYTHONPATH": str(root), "MLFLOW_DISABLE_TELEMETRY": "true"}
    words = [sys.executable, "-m", "pipeline", *OVERRIDES]
    log = (root / "terminal.log").open("ab")
    with log:
        return subprocess.Popen(
            words,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def warm_up(template: Path) -> float:
    """One undisturbed run; returns its seconds. Raises RuntimeError if it does not pass."""
    root = copy_project(template, template.parent / "warm-up")
    began = time.monotonic()
    process = command(root)
    code = process.wait(LONGEST_SECS)
    if code != 0:
        raise RuntimeError(
            f"the undisturbed run ended with {code}:\n{(root / 'terminal.log').read_text(encoding='utf-8')}"
        )
    shutil.rmtree(root)
    return time.monotonic() - began


def run_trial(template: Path, place: Path, number: int, usual: float, keep: Path | None) -> Trial:
    """One trial from its own copy to the checks."""
    chance, began = random.Random(number), time.monotonic()
    root = copy_project(template, place / f"trial-{number}")
    trial = Trial(number)
    for _ in range(chance.randint(1, 4)):
        # Once the run has passed, a start only finds that out, and is short.
        longest = usual if 0 not in trial.exit_codes else usual / 4
        target, after = chance.choice(TARGETS), chance.uniform(0.02, 1.0) * longest
        process = command(root)
        trial.kills.append(strike(root, process, target, after))
        trial.exit_codes.append(wait(process, trial))
    while len(trial.exit_codes) < STARTS and trial.exit_codes[-1] != 0 and not trial.faults:
        trial.exit_codes.append(wait(command(root), trial))
    check(root, trial)
    trial.seconds = round(time.monotonic() - began, 1)
    if trial.faults and keep:
        shutil.copytree(root, keep / f"trial-{number}", symlinks=True)
    shutil.rmtree(root)
    return trial


def wait(process: subprocess.Popen[bytes], trial: Trial) -> int:
    """The exit code of a start of the command."""
    try:
        return process.wait(LONGEST_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        trial.faults.append(f"the command did not end within {LONGEST_SECS:g} s")
        return process.wait()


def strike(root: Path, process: subprocess.Popen[bytes], target: str, after: float) -> Kill:
    """Kills the target at its moment, or as soon after it as it lives; nobody if the run ends before."""
    began = time.monotonic()
    while process.poll() is None:
        seconds = time.monotonic() - began
        pid = victim(process.pid, target) if seconds >= after else 0
        if pid:
            phase = how_far(root)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            return Kill(target, target, round(seconds, 2), phase)
        time.sleep(0.01)
    return Kill(target, "", round(time.monotonic() - began, 2), "ended")


def victim(control: int, target: str) -> int:
    """The process that plays the part now; 0 if there is none. control ─ guard ─ supervisor ─ stage."""
    chain = [control]
    for _ in range(TARGETS.index(target)):
        children = [
            pid for pid in children_of(chain[-1]) if len(chain) > 1 or b"pipeline.guard" in command_of(pid)
        ]
        if not children:
            return 0
        chain.append(children[0])
    return chain[-1]


def children_of(pid: int) -> list[int]:
    """Child processes, of all its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return found


def command_of(pid: int) -> bytes:
    """Its command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def how_far(root: Path) -> str:
    """What the newest attempt's folder shows."""
    folders = sorted(
        (root / "artifacts" / "runs").glob("*/*-attempt1"), key=lambda path: path.stat().st_mtime_ns
    )
    if not folders:
        return "base probes" if list((root / "artifacts" / "runs").glob("*/base-*")) else "start"
    names = {path.name for path in folders[-1].iterdir()}
    order = {
        "verdict.json": "judged",
        "answers-request.json": "probing",
        "result.json": "trained",
        "checkpoints": "training, state saved",
    }
    return next(
        (word for name, word in order.items() if name in names),
        "training" if "events.jsonl" in names else "attempt opened",
    )


# --- what must hold in the end ---


def check(root: Path, trial: Trial) -> None:
    """Everything that a run killed and started again must leave behind; what does not hold goes to
    `trial.faults`.
    """
    say = trial.faults.append
    if trial.exit_codes[-1] != 0:
        say(f"the last start ended with {trial.exit_codes[-1]}")
        return
    artifacts = root / "artifacts"
    with sqlite3.connect(artifacts / "journal.db") as database:
        attempts = database.execute(
            "SELECT id, content_key, state, end_json, attempt_json FROM attempts"
        ).fetchall()
        runs = dict(database.execute("SELECT run_id, state FROM runs"))
        weights = [row[0] for row in database.execute("SELECT path FROM weights")]
    trial.states = dict(collections.Counter(row[2] for row in attempts))
    trial.resumed = sum(
        1
        for path in artifacts.glob("runs/*/*/request.json")
        if json.loads(path.read_text("utf-8")).get("resume")
    )
    closed = [row[1] for row in attempts if row[2] == "closed"]
    if len(closed) != 1:
        say(f"{len(closed)} finished attempts of one content key: repeated, or none")
    for identity, state in [*((row[0], row[2]) for row in attempts), *runs.items()]:
        if state not in ("closed", "interrupted"):
            say(f"{identity} is {state}")
    check_weights(root, attempts, weights, say)
    check_texts(root, attempts, runs, say)
    check_mlflow(artifacts, say)
    left = [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if str(root).encode() in environment_of(int(path.name))
    ]
    if left:
        say(f"processes left running: {left}")


def check_weights(root: Path, attempts: list[Any], weights: list[str], say: Any) -> None:
    """The passed weight lies where the journal says, every other file is known, and nothing is half written
    under its own name.
    """
    sizes = {
        path: path.stat().st_size
        for path in root.glob("artifacts/**/*.dat")
        if not path.name.startswith((".", "step-"))
    }
    whole = (root / MODEL / "qwen3-nano-nvfp4.dat").stat().st_size
    for path, size in sizes.items():
        if size != whole:
            say(f"{path.relative_to(root)}: {size} bytes, a whole weight has {whole}")
        place = str(path.relative_to(root))
        if place not in weights and "/runs/" not in place and MODEL not in place:
            say(f"{place}: not in the journal")
    for identity, _, _, end, _ in attempts:
        told = json.loads(end) if end else {}
        if told.get("output_weight"):
            file = root / told["output_weight"]
            if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != told["output_sha256"]:
                say(f"{identity}: its weight {told['output_weight']} is lost or changed")
    hidden = list(root.glob("artifacts/weights/**/.*"))
    if hidden:
        say(f"unfinished files beside the weights: {hidden}")
    for path in root.glob("artifacts/runs/*/*/*.json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            if path.name not in ("trace.json",):
                say(f"{path.relative_to(root)}: half a file under its final name")


def check_texts(root: Path, attempts: list[Any], runs: dict[str, str], say: Any) -> None:
    """DevLog has one entry for each end, and the file list one line for each weight."""
    text = (root / "DevLog.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- ledger:(\S+?) -->", text)
    doubled = [mark for mark, count in collections.Counter(marks).items() if count > 1]
    if doubled:
        say(f"DevLog: twice: {doubled}")
    for identity, state in [
        *((row[0], f"attempt_{row[2]}") for row in attempts),
        *((k, f"run_{v}") for k, v in runs.items()),
    ]:
        if not any(f"{identity}:{state}" in mark for mark in marks):
            say(f"DevLog: no entry for {identity} ({state})")
    table = (root / "artifacts" / "檔案說明清單.md").read_text(encoding="utf-8")
    paths = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| artifacts")]
    if len(paths) != len(set(paths)):
        say("file list: a file stands twice")
    missing = [
        str(path.relative_to(root))
        for path in root.glob("artifacts/weights/**/*.dat")
        if str(path.relative_to(root)) not in paths
    ]
    if missing:
        say(f"file list: without {missing}")


def check_mlflow(artifacts: Path, say: Any) -> None:
    """No run is left RUNNING, and none stands twice."""
    path = artifacts / "mlflow" / "mlflow.db"
    if not path.exists():
        say("MLflow: no database")
        return
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT run_uuid, name, status FROM runs").fetchall()
        keys = database.execute("SELECT value FROM tags WHERE key = 'ledger.key'").fetchall()
    for identity, name, status in rows:
        if status == "RUNNING":
            say(f"MLflow: {name} ({identity}) is RUNNING")
    doubled = [key for key, count in collections.Counter(keys).items() if count > 1]
    if doubled:
        say(f"MLflow: twice: {doubled}")


def environment_of(pid: int) -> bytes:
    """Its environment; empty if it is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


# --- what is told ---


def report(trials: list[Trial], usual: float) -> dict[str, Any]:
    """All trials with their totals, for the JSON file."""
    return {
        "undisturbed_seconds": round(usual, 1),
        "totals": totals(trials),
        "trials": [asdict(trial) for trial in trials],
    }


def totals(trials: list[Trial]) -> dict[str, Any]:
    """Counts over all trials."""
    kills = [kill for trial in trials for kill in trial.kills if kill.hit]
    codes = collections.Counter(code for trial in trials for code in trial.exit_codes)
    return {
        "trials": len(trials),
        "kill_points": len(kills),
        "missed": sum(1 for trial in trials for kill in trial.kills if not kill.hit),
        "by_target": dict(collections.Counter(kill.hit for kill in kills)),
        "by_phase": dict(collections.Counter(kill.phase for kill in kills)),
        "starts": sum(len(trial.exit_codes) for trial in trials),
        "exit_codes": {str(code): count for code, count in sorted(codes.items())},
        "attempts_interrupted": sum(trial.states.get("interrupted", 0) for trial in trials),
        "attempts_finished": sum(trial.states.get("closed", 0) for trial in trials),
        "attempts_resumed_from_a_saved_state": sum(trial.resumed for trial in trials),
        "trials_without_fault": sum(1 for trial in trials if not trial.faults),
        "faults": dict(collections.Counter(fault for trial in trials for fault in trial.faults)),
    }


def table(trials: list[Trial]) -> str:
    """The totals as text."""
    return "\n".join(f"{key:<36} {value}" for key, value in totals(trials).items())


if __name__ == "__main__":
    sys.exit(main())
