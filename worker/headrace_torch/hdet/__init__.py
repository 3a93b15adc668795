"""HDET: the replicas of a data-parallel job explore learning rates, and converge.

Data-parallel replicas compute the same step N times. HDET gives each its own learning rate around the
schedule's, averages the parameters every T steps, and moves the schedule toward the rates that did better
(Cheng et al. 2026). Any scalar that leaves the architecture alone can be explored the same way.

    OneCycleAutoLR      the paper's algorithm behind OneCycleLR's signature: pass the loss to `step`
    HDETController      any hyperparameters, scored on a common probe, moved in log space under a rate cap
    HDETScheduler       any schedule, times what a controller has learnt

`rules`, `transforms` and `designs` are functions of numbers; `replicas`, `averaging` and `exchange` are all
that communicates.
"""

from headrace_torch.hdet.controller import HDETController
from headrace_torch.hdet.deepspeed import deepspeed_replicas
from headrace_torch.hdet.errors import (
    HdetConfigError,
    HdetError,
    NotReplicasError,
    ResumeError,
    StallError,
    SyncError,
)
from headrace_torch.hdet.hyperparameter import (
    ScalarHyperparameter,
    attention_temperature,
    dropout,
    label_smoothing,
    learning_rates,
    weight_decay,
)
from headrace_torch.hdet.one_cycle import OneCycleAutoLR
from headrace_torch.hdet.plot import draw_trajectory
from headrace_torch.hdet.probe import Probe
from headrace_torch.hdet.records import HyperparameterRecord, JsonLines, SyncReport, read_records
from headrace_torch.hdet.replicas import ReplicaGroup
from headrace_torch.hdet.rules import LogSpaceRule, PaperRule
from headrace_torch.hdet.scheduler import HDETScheduler
from headrace_torch.hdet.warm_init import warm_init_

__all__ = [
    "HDETController",
    "HDETScheduler",
    "HdetConfigError",
    "HdetError",
    "HyperparameterRecord",
    "JsonLines",
    "LogSpaceRule",
    "NotReplicasError",
    "OneCycleAutoLR",
    "PaperRule",
    "Probe",
    "ReplicaGroup",
    "ResumeError",
    "ScalarHyperparameter",
    "StallError",
    "SyncError",
    "SyncReport",
    "attention_temperature",
    "deepspeed_replicas",
    "draw_trajectory",
    "dropout",
    "label_smoothing",
    "learning_rates",
    "read_records",
    "warm_init_",
    "weight_decay",
]
