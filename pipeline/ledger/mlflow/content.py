"""What MLflow gets of a run or an attempt: pure functions of the journal's row and the attempt's folder."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.core.types import AttemptEnd, Outcome, ProbeRow
from pipeline.guard.trace import MemorySample, TraceError, load_samples
from pipeline.ledger import devlog
from pipeline.ledger.schema import AttemptRow, RunRow, State
from pipeline.ledger.step_plot import STEPS_NAME
from stages.contract.clock import utc_seconds
from stages.contract.events import Event, EventKind

MAX_PARAM_CHARS = 6000
"""MLflow's limit on the value of a parameter."""
PROBES_FILE = "probes.json"
FILES = ("request.json", "command.txt", "trace.png", "trace.json", "trace.csv", STEPS_NAME)
"""Files of an attempt's folder that go to MLflow where they exist."""

Metric = tuple[str, float, int, int]
"""Name, value, time in milliseconds since the epoch, step."""


@dataclass(frozen=True)
class Content:
    """What a run in MLflow gets. Getting it twice changes nothing."""

    tags: dict[str, str] = field(default_factory=dict)
    """Empty ones are left out."""
    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    """Path of the artifact → its text."""
    files: list[Path] = field(default_factory=list)
    status: str = ""
    """`FINISHED`, `FAILED` or `KILLED`; empty while the run goes on."""
    end_ms: int = 0


def run_opened(row: RunRow) -> Content:
    """The command and the settings of a run."""
    tags = {"experiment": row.experiment, "command": row.command, "kind": "run"}
    return Content(tags, texts={"command.txt": row.command + "\n", "settings.yaml": row.settings_yaml})


def run_ended(row: RunRow) -> Content:
    """How a run ended."""
    tags = {"outcome": row.end.outcome if row.end else State.INTERRUPTED, "reason": row.reason}
    if row.end:
        tags |= {"weight": row.end.final_weight, "weight_sha256": row.end.final_sha256}
        tags["mlflow.note.content"] = _list(row.end.summary)
    return Content(tags, texts={"DevLog.md": devlog.run_ended(row) + "\n"}, **end(row))


def attempt_opened(row: AttemptRow) -> Content:
    """The parameters of an attempt, and where it starts from."""
    attempt = row.attempt
    params = {"stage": attempt.stage, "attempt": str(attempt.number), "start_from": attempt.start_from}
    params = flat(attempt.recipe) | params
    names = ("stage", "content_key", "input_weight", "input_sha256", "folder", "command", "why")
    tags = {"kind": "attempt"} | {name: getattr(attempt, name) for name in names}
    tags |= {"changes": devlog.changes_text(attempt.changes)}
    tags |= {f"data.{path}": sha for path, sha in attempt.data.items()}
    long = {name: value for name, value in params.items() if len(value) > MAX_PARAM_CHARS}
    return Content(
        tags,
        {name: _cut(value) for name, value in params.items()},
        texts={f"params/{name}.txt": value for name, value in long.items()},
    )


def attempt_ended(row: AttemptRow, root: Path, trace_points: int, metrics: Sequence[Metric]) -> Content:
    """Verdict, memory, probe table and files of an attempt.

    Args:
        row: closed or interrupted.
        root: where the path of the attempt's folder starts.
        trace_points: memory samples at most.
        metrics: those of its events that MLflow does not have yet.
    """
    tags = {"outcome": row.end.outcome if row.end else State.INTERRUPTED, "reason": row.reason}
    folder, texts = root / row.attempt.folder, {"DevLog.md": devlog.attempt_ended(row) + "\n"}
    metrics = [*metrics, *_memory(folder / "trace.csv", trace_points)]
    if row.end:
        evidence = row.end.verdict.evidence if row.end.verdict else ()
        tags |= {"error": row.end.error, "exit_code": str(row.end.exit_code), "weight": row.end.output_weight}
        tags |= {"weight_sha256": row.end.output_sha256, "evidence": "\n".join(evidence)}
        tags["mlflow.note.content"] = _list((row.attempt.why, *evidence, row.end.error))
        when = milliseconds(row.closed_utc)
        metrics += [(name, value, when, 0) for name, value in _figures(row.end).items()]
        if row.end.verdict and row.end.verdict.rows:
            texts[PROBES_FILE] = probe_table(row.end.verdict.rows)
            tags["mlflow.loggedArtifacts"] = json.dumps([{"path": PROBES_FILE, "type": "table"}])
    files = [folder / name for name in FILES if (folder / name).is_file()]
    return Content(tags, metrics=metrics, texts=texts, files=files, **end(row))


def attempt_reused(row: AttemptRow) -> Content:
    """For the run that reuses a finished attempt: which one."""
    return Content({f"reused.{row.attempt.stage}.{row.attempt.number}": row.id})


def event_metrics(events: Sequence[Event]) -> list[Metric]:
    """The figures of steps, and the memory at phases; other events have none."""
    prefixes = {EventKind.STEP: "", EventKind.PHASE: "phase/{}/"}
    return [
        (prefixes[event.kind].format(event.phase) + name, value, milliseconds(event.time_utc), event.step)
        for event in events
        if event.kind in prefixes
        for name, value in event.values.items()
    ]


def end(row: RunRow | AttemptRow) -> dict[str, Any]:
    """The fields of `Content` that end a run."""
    outcome = row.end.outcome if row.end else None
    good = outcome in (Outcome.PASSED, Outcome.MEASURED)
    status = "FINISHED" if good else "FAILED" if outcome else "KILLED"
    return {"status": status, "end_ms": milliseconds(row.closed_utc)}


def probe_table(rows: Sequence[ProbeRow]) -> str:
    """The probe rows in the form of MLflow's own tables, which its page shows as one."""
    table = [asdict(row) | {"flags": ", ".join(row.flags)} for row in rows]
    data = [list(row.values()) for row in table]
    return json.dumps({"columns": list(table[0]), "data": data}, ensure_ascii=False)


def thinned(samples: Sequence[MemorySample], most: int) -> list[MemorySample]:
    """At most that many samples: of each stretch of time the one with the most memory, so no peak is lost."""
    if len(samples) <= most:
        return list(samples)
    edges = [round(i * len(samples) / most) for i in range(most + 1)]
    stretches = (samples[a:b] for a, b in itertools.pairwise(edges))
    return [max(stretch, key=lambda sample: sample.pid_mib) for stretch in stretches]


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A recipe as dotted names and texts; an empty mapping becomes `{}`."""
    out: dict[str, str] = {}
    for key, value in recipe.items():
        if isinstance(value, dict) and value:
            out |= flat(value, f"{prefix}{key}.")
        else:
            as_json = isinstance(value, (list, dict))
            out[prefix + key] = json.dumps(value, ensure_ascii=False) if as_json else str(value)
    return out


def milliseconds(utc: str) -> int:
    """An ISO 8601 time as MLflow counts it."""
    return round(utc_seconds(utc) * 1000)


def _figures(end: AttemptEnd) -> dict[str, float]:
    figures = {"peak_mib": end.peak_mib, "seconds": end.seconds}
    figures |= {f"stage/{name}": value for name, value in end.figures.items()}
    verdict = end.verdict.figures if end.verdict else {}
    return figures | {f"verdict/{name}": value for name, value in verdict.items()}


def _memory(path: Path, points: int) -> list[Metric]:
    """Memory as metrics; their step is the time since the first sample in milliseconds."""
    try:
        samples = thinned(load_samples(path), points) if path.is_file() else []
    except TraceError:
        return []  # the file itself goes along as an artifact
    times = [milliseconds(sample.time_utc) for sample in samples]
    return [
        (name, value, when, when - times[0])
        for sample, when in zip(samples, times, strict=True)
        for name, value in (("memory/pid_mib", sample.pid_mib), ("memory/total_mib", sample.total_mib))
    ]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines if line)


def _cut(text: str) -> str:
    if len(text) <= MAX_PARAM_CHARS:
        return text
    return text[: MAX_PARAM_CHARS - 40] + " … (whole text: artifact params/)"
