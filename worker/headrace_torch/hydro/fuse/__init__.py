"""Fuse: many trials of one model, each with its own hyperparameters, trained as one batched model.

    fuse                  makes a `Group` of a surrogate, a module or a factory
    Group                 step, drop, add, member_state, state_dict
    EpochBatches          each member's own next batch
    schedules             StepDecay, Cosine, WarmUp, OneCycle
    PerMember, LossScale  a separate batch, or a separate gradient scaler, for each member
    ProbeReport           which engine was picked for this model, and why
    plan_capacity         how many members fit, and how many are worth it

A member computes what it would alone: its own gradient, rate, clipping, dropout masks and step count.
"""

from headrace_torch.hydro.fuse.buckets import PerMember
from headrace_torch.hydro.fuse.capacity import CapacityPlan, plan_capacity
from headrace_torch.hydro.fuse.entry import fuse
from headrace_torch.hydro.fuse.epoch_batches import EpochBatches
from headrace_torch.hydro.fuse.errors import (
    FuseError,
    FusionGapError,
    LossShapeError,
    MemberError,
    MemoryBudgetError,
    OutOfMemoryError,
    PoolError,
    StaticShapeError,
)
from headrace_torch.hydro.fuse.first_step import FirstStep
from headrace_torch.hydro.fuse.group import Group
from headrace_torch.hydro.fuse.member import LossScale, Member
from headrace_torch.hydro.fuse.report import ProbeReport
from headrace_torch.hydro.fuse.schedules import Cosine, OneCycle, Schedule, Setting, StepDecay, WarmUp

__all__ = [
    "CapacityPlan",
    "Cosine",
    "EpochBatches",
    "FirstStep",
    "FuseError",
    "FusionGapError",
    "Group",
    "LossScale",
    "LossShapeError",
    "Member",
    "MemberError",
    "MemoryBudgetError",
    "OneCycle",
    "OutOfMemoryError",
    "PerMember",
    "PoolError",
    "ProbeReport",
    "Schedule",
    "Setting",
    "StaticShapeError",
    "StepDecay",
    "WarmUp",
    "fuse",
    "plan_capacity",
]
