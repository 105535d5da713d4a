"""The one door between the two packages: requests in, events and a result out, and the row files of both.

It imports neither torch nor hydra, so that `pipeline` starts in well under a second, and `pipeline` imports
nothing else from `stages`.
"""

from stages.contract.events import Answer, Event, EventKind, ExitCode, Finish, Phase, StageResult
from stages.contract.recipe import (
    ComputeDtype,
    DataSource,
    LossKind,
    OptimizerStateMode,
    Overflow,
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
from stages.contract.rows import Probe, ProbeKind, RowFileError, read_probes, read_rows
from stages.contract.serial import RequestError

__all__ = [
    "WRITE_ROOT",
    "Answer",
    "ComputeDtype",
    "DataSource",
    "Event",
    "EventKind",
    "ExitCode",
    "ExternalRequest",
    "Finish",
    "InferencePath",
    "InitRequest",
    "LossKind",
    "OptimizerStateMode",
    "Overflow",
    "Phase",
    "Probe",
    "ProbeKind",
    "ProbeRequest",
    "RequestError",
    "Rounding",
    "RowFileError",
    "Sampling",
    "ScaleRule",
    "Schedule",
    "StageResult",
    "Template",
    "TrainRequest",
    "read_probes",
    "read_rows",
]
