"""How the ledger names an attempt and writes the time."""

from __future__ import annotations

from datetime import UTC, datetime

from pipeline.core.types import Attempt


def attempt_id(attempt: Attempt) -> str:
    """The ledger's name of an attempt: `<run id>/<stage>/<number>`."""
    return f"{attempt.run_id}/{attempt.stage}/{attempt.number}"


def utc_now() -> str:
    """The time as ISO 8601 with microseconds and `Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
