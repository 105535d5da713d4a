"""The environment variables of the processes that compute."""

from __future__ import annotations

import os
from collections.abc import Mapping


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a computing process: without MLflow's variables; only the control process uses it.

    Args:
        environment: what to start from; None: this process's own.
    """
    source = os.environ if environment is None else environment
    return {key: value for key, value in source.items() if not key.startswith("MLFLOW_")}
