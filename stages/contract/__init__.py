"""The one door between the two houses: requests in, events and a result out, and the row files that both
read.

Imports neither torch nor hydra, so that `pipeline` may import it and start in well under a second. It is the
only part of `stages` that `pipeline` imports; a lint contract holds that.
"""

from stages.contract.events import Answer, Event, EventKind, ExitCode, Finish, Phase, StageResult
from stages.contract.offload import offload_problems
from stages.contract.recipe import (
    ComputeDtype,
    DataSource,
    LossKind,
    OptimizerStateMode,
    Overflow,
    Recipe,
    Rounding,
    Sampling,
    ScaleRule,
    Schedule,
    Template,
)
from stages.contract.requests import (
    WRITE_ROOT,
    ExternalRequest,
    InferencePath,
    InitRequest,
    ProbeRequest,
    TrainRequest,
)
from stages.contract.rows import Expectation, Probe, ProbeKind, Row, RowFileError, read_probes, read_rows
from stages.contract.serial import RequestError

__all__ = [
    "WRITE_ROOT",
    "Answer",
    "ComputeDtype",
    "DataSource",
    "Event",
    "EventKind",
    "ExitCode",
    "Expectation",
    "ExternalRequest",
    "Finish",
    "InferencePath",
    "InitRequest",
    "LossKind",
    "OptimizerStateMode",
    "Overflow",
    "Phase",
    "Probe",
    "Recipe",
    "ProbeKind",
    "ProbeRequest",
    "RequestError",
    "Rounding",
    "Row",
    "RowFileError",
    "Sampling",
    "ScaleRule",
    "Schedule",
    "StageResult",
    "Template",
    "TrainRequest",
    "offload_problems",
    "read_probes",
    "read_rows",
]
