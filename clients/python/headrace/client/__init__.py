"""The Python SDK: `Client`, `AsyncClient` and the values they return.

`flows` holds every operation once, without I/O; `transport` performs it, blocking or async; `sync` and `aio` are the
two surfaces; `convert` is the only module that knows protos; `model` and `events` are what users hold in their hands.
"""

from headrace.client.aio import AsyncAskedTrial, AsyncClient, AsyncStudy, AsyncTrial
from headrace.client.events import (
    Action,
    Decision,
    DecisionMade,
    Event,
    Explanation,
    ReportRecorded,
    RungRecorded,
    StudyMoved,
    TrialCreated,
    TrialExploited,
    TrialMoved,
    TrialStory,
    TrialWarned,
    Update,
)
from headrace.client.machines import Slot, Worker
from headrace.client.missing import MissingExtraError
from headrace.client.model import (
    Checkpoint,
    Exploit,
    Preview,
    PreviewRung,
    PreviewSize,
    Report,
    RungResult,
    RungStatus,
    StudyInfo,
    StudyState,
    TerminationReason,
    TrialCounts,
    TrialInfo,
    TrialRef,
    TrialState,
)
from headrace.client.planning import Planner, SearchCall, SearchProgress, TrainingPlan
from headrace.client.sync import AskedTrial, Client, Study, Trial

__all__ = [
    "Action",
    "AskedTrial",
    "AsyncAskedTrial",
    "AsyncClient",
    "AsyncStudy",
    "AsyncTrial",
    "Checkpoint",
    "Client",
    "Decision",
    "DecisionMade",
    "Event",
    "Explanation",
    "Exploit",
    "MissingExtraError",
    "Planner",
    "Preview",
    "PreviewRung",
    "PreviewSize",
    "Report",
    "ReportRecorded",
    "RungRecorded",
    "RungResult",
    "RungStatus",
    "SearchCall",
    "SearchProgress",
    "Slot",
    "Study",
    "StudyInfo",
    "StudyMoved",
    "StudyState",
    "TerminationReason",
    "TrainingPlan",
    "Trial",
    "TrialCounts",
    "TrialCreated",
    "TrialExploited",
    "TrialInfo",
    "TrialMoved",
    "TrialRef",
    "TrialState",
    "TrialStory",
    "TrialWarned",
    "Update",
    "Worker",
]
