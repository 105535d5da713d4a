"""The environment of computing processes holds nothing of MLflow's."""

from __future__ import annotations

import os

from pipeline.core.environment import child_environment


def test_only_mlflows_variables_are_left_out() -> None:
    given = {"MLFLOW_RUN_ID": "x", "MLFLOW_TRACKING_URI": "y", "PATH": "p", "NOT_MLFLOW_X": "z"}
    assert child_environment(given) == {"PATH": "p", "NOT_MLFLOW_X": "z"}
    assert child_environment().keys() <= os.environ.keys()
