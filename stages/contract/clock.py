"""Times as every event, trace and journal entry carries them: ISO 8601 in UTC with microseconds and `Z`."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def utc_now() -> str:
    """The present time."""
    return utc_text(time.time())


def utc_text(seconds: float) -> str:
    """Seconds since the epoch as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def utc_seconds(text: str) -> float:
    """Seconds since the epoch; the inverse of `utc_text`.

    Raises:
        ValueError: if the text is no ISO 8601 time.
    """
    return datetime.fromisoformat(text).timestamp()
