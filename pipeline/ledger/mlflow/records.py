"""What of runs and attempts is told to MLflow, as records for the spool: names, tags, figures, tables, files."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.core.types import Attempt, AttemptEnd, Outcome, ProbeRow
from pipeline.guard.trace import MemorySample, TraceError, load_samples
from pipeline.ledger.devlog import changes_text
from pipeline.ledger.mlflow.spool import Record
from pipeline.ledger.schema import AttemptRow, RunRow, State
from stages.contract.clock import utc_seconds
from stages.contract.events import Event, EventKind

MAX_PARAM_CHARS = 6000
"""MLflow's limit on the value of a parameter."""
PROBES_FILE = "probes.json"
ARTIFACTS = ("request.json", "command.txt", "trace.png", "trace.json", "trace.csv", "steps.png")
"""Files of an attempt's folder that go to MLflow where they exist."""


def run_opened(row: RunRow, prefix: str) -> list[Record]:
    """The parent run of an experiment run."""
    tags = {"experiment": row.experiment, "command": row.command, "kind": "run"}
    return [
        _run(row.run_id, "", prefix + row.experiment, row.run_id, row.opened_utc),
        {"op": "batch", "run": row.run_id, "tags": _tags(tags)},
        _text(row.run_id, "command.txt", row.command + "\n"),
        _text(row.run_id, "settings.yaml", row.settings_yaml),
    ]


def run_ended(row: RunRow, devlog: str) -> list[Record]:
    """The end of the parent run."""
    tags = {"outcome": row.end.outcome if row.end else State.INTERRUPTED, "reason": row.reason}
    if row.end:
        tags |= {"weight": row.end.final_weight, "weight_sha256": row.end.final_sha256}
        tags |= {"mlflow.note.content": "\n".join(f"- {line}" for line in row.end.summary)}
    return [
        {"op": "batch", "run": row.run_id, "tags": _tags(tags)},
        _text(row.run_id, "DevLog.md", devlog + "\n"),
        _end(row.run_id, row.end.outcome if row.end else None, row.closed_utc),
    ]


def attempt_opened(row: AttemptRow, prefix: str) -> list[Record]:
    """The child run of an attempt, with its parameters and where it came from."""
    attempt, key = row.attempt, row.id
    whole = flat(attempt.recipe) | {
        "stage": attempt.stage,
        "attempt": str(attempt.number),
        "start_from": attempt.start_from,
    }
    tags = {
        "kind": "attempt",
        "stage": attempt.stage,
        "content_key": attempt.content_key,
        "input_weight": attempt.input_weight,
        "input_sha256": attempt.input_sha256,
        "folder": attempt.folder,
        "command": attempt.command,
        "why": attempt.why,
        "changes": changes_text(attempt.changes),
    }
    tags |= {f"data.{path}": sha for path, sha in attempt.data.items()}
    long = [
        _text(key, f"params/{_key(name)}.txt", value)
        for name, value in whole.items()
        if len(value) > MAX_PARAM_CHARS
    ]
    name = f"{attempt.stage} #{attempt.number}"
    return [
        _run(key, attempt.run_id, prefix + attempt.experiment, name, row.opened_utc),
        {
            "op": "batch",
            "run": key,
            "tags": _tags(tags),
            "params": {_key(k): _cut(v) for k, v in whole.items()},
        },
        *long,
    ]


def event(attempt: Attempt, item: Event) -> list[Record]:
    """The figures of a step, or the memory at a phase; nothing for other events."""
    names = {EventKind.STEP: "", EventKind.PHASE: f"phase/{item.phase}/"}
    if item.kind not in names or not item.values:
        return []
    when = milliseconds(item.time_utc)
    rows = [[_key(names[item.kind] + name), value, when, item.step] for name, value in item.values.items()]
    return [{"op": "batch", "run": attempt.id, "metrics": rows}]


def attempt_ended(row: AttemptRow, root: Path, devlog: str, trace_points: int) -> list[Record]:
    """Verdict, memory, probe table and files of an attempt, and the end of its run."""
    attempt, end, key = row.attempt, row.end, row.id
    when = milliseconds(row.closed_utc)
    tags = {"outcome": end.outcome if end else State.INTERRUPTED, "reason": row.reason}
    figures: dict[str, float] = {}
    records: list[Record] = []
    if end:
        evidence = end.verdict.evidence if end.verdict else ()
        tags |= {"error": end.error, "exit_code": str(end.exit_code), "weight": end.output_weight}
        tags |= {"weight_sha256": end.output_sha256, "evidence": "\n".join(evidence)}
        tags |= {
            "mlflow.note.content": "\n".join(
                f"- {line}" for line in (attempt.why, *evidence, end.error) if line
            )
        }
        figures = _figures(end)
        if end.verdict and end.verdict.rows:
            records.append(_text(key, PROBES_FILE, probe_table(end.verdict.rows)))
            tags["mlflow.loggedArtifacts"] = json.dumps([{"path": PROBES_FILE, "type": "table"}])
    metrics = [[_key(name), value, when, 0] for name, value in figures.items()]
    metrics += _memory(root / attempt.folder / "trace.csv", trace_points)
    records.insert(0, {"op": "batch", "run": key, "tags": _tags(tags), "metrics": metrics})
    for name in ARTIFACTS:
        if (root / attempt.folder / name).is_file():
            records.append(
                {"op": "file", "run": key, "source": str(Path(attempt.folder) / name), "folder": ""}
            )
    return [
        *records,
        _text(key, "DevLog.md", devlog + "\n"),
        _end(key, end.outcome if end else None, row.closed_utc),
    ]


def attempt_reused(row: AttemptRow, run_id: str) -> list[Record]:
    """On the parent run: which finished attempt took the place of a new one."""
    tags = {f"reused.{row.attempt.stage}.{row.attempt.number}": row.id}
    return [{"op": "batch", "run": run_id, "tags": _tags(tags)}]


def probe_table(rows: Sequence[ProbeRow]) -> str:
    """The probe rows in the form of MLflow's own tables, which its page shows as one."""
    columns = [name for name in asdict(rows[0]) if name != "flags"] + ["flags"]
    data = [
        [", ".join(row.flags) if name == "flags" else getattr(row, name) for name in columns] for row in rows
    ]
    return json.dumps({"columns": columns, "data": data}, ensure_ascii=False)


def thinned(samples: Sequence[MemorySample], most: int) -> list[MemorySample]:
    """At most that many samples: of each stretch of time the one with the most memory, so that no peak is
    lost.
    """
    if len(samples) <= most:
        return list(samples)
    edges = [round(i * len(samples) / most) for i in range(most + 1)]
    stretches = (samples[a:b] for a, b in itertools.pairwise(edges))
    return [max(stretch, key=lambda sample: sample.pid_mib) for stretch in stretches]


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A recipe as dotted names and texts; empty mappings are kept as `{}`."""
    out: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = (
                json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else str(value)
            )
    return out


def _figures(end: AttemptEnd) -> dict[str, float]:
    figures = {"peak_mib": end.peak_mib, "seconds": end.seconds}
    figures |= {f"stage/{name}": value for name, value in end.figures.items()}
    return figures | {
        f"verdict/{name}": value for name, value in (end.verdict.figures if end.verdict else {}).items()
    }


def _memory(path: Path, points: int) -> list[list[Any]]:
    """Memory as metrics; their step is the time since the first sample in milliseconds."""
    try:
        samples = thinned(load_samples(path), points) if path.is_file() else []
    except TraceError:
        return []  # the file itself goes along as an artifact
    times = [milliseconds(sample.time_utc) for sample in samples]
    return [
        [name, value, when, when - times[0]]
        for sample, when in zip(samples, times, strict=True)
        for name, value in (("memory/pid_mib", sample.pid_mib), ("memory/total_mib", sample.total_mib))
    ]


def milliseconds(utc: str) -> int:
    """An ISO 8601 time as MLflow counts it."""
    return round(utc_seconds(utc) * 1000)


def _run(key: str, parent: str, experiment: str, name: str, utc: str) -> Record:
    start = milliseconds(utc)
    return {
        "op": "run",
        "run": key,
        "parent": parent,
        "experiment": experiment,
        "name": name,
        "start_ms": start,
    }


def _end(key: str, outcome: Outcome | None, utc: str) -> Record:
    return {"op": "end", "run": key, "status": status(outcome), "end_ms": milliseconds(utc)}


def status(outcome: Outcome | None) -> str:
    """MLflow's word for an outcome; without one the run was interrupted."""
    return (
        "KILLED"
        if outcome is None
        else "FINISHED"
        if outcome in (Outcome.PASSED, Outcome.MEASURED)
        else "FAILED"
    )


def _text(key: str, path: str, text: str) -> Record:
    return {"op": "text", "run": key, "path": path, "text": text}


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {_key(name): str(value) for name, value in tags.items() if value}


def _key(name: str) -> str:
    """A name as MLflow takes it: a clean relative path of word characters."""
    parts = [re.sub(r"[^\w.\- ]", "_", part) for part in name.split("/")]
    return "/".join(part for part in parts if part not in ("", ".", ".."))[:250] or "_"


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= MAX_PARAM_CHARS
        else text[: MAX_PARAM_CHARS - 40] + " … (whole text: artifact params/)"
    )
