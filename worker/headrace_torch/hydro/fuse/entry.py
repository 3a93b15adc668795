"""`fuse`: from hyperparameters and a model to a group."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from headrace_torch.hydro.fuse.buckets import Batching
from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.group import Group
from headrace_torch.hydro.fuse.layout import layout_of
from headrace_torch.hydro.fuse.member import OPTIMIZERS, Member, OptimizerName
from headrace_torch.hydro.fuse.running import EngineChoice, Running
from headrace_torch.hydro.fuse.settings import listed, parse_member
from headrace_torch.hydro.fuse.source import Models, Source, template_of
from headrace_torch.hydro.fuse.updates import updates_of
from headrace_torch.hydro.gate import Gate, ask, same_rules
from headrace_torch.hydro.shrink.surrogate import Surrogate

ENGINES: tuple[EngineChoice, ...] = ("auto", "grouped", "vmap", "separate", "pool")


def fuse(
    source: Source,
    members: Sequence[Mapping[str, Any] | Member] | None = None,
    optimizer: OptimizerName = "adamw",
    *,
    engine: EngineChoice = "auto",
    workers: int | None = None,
    batching: Batching = "bucket",
    device: torch.device | str | None = None,
    gate: Gate = None,
) -> Group:
    """Makes a group of members that train together.

    Args:
        source: a surrogate of `hydro.shrink` (members train under its parametrization), a module (all members
            start with its tensors), or a factory (called once per seed, with torch's generator seeded).
        members: one mapping of hyperparameters per member; see `Member`. None makes a group without members, for
            `Group.add`.
        optimizer: "adamw", "adam" or "sgd", as in torch.optim.
        engine: "auto" probes at the first step and picks one; any other name is used as given.
        workers: processes for what cannot be fused; None and 0 start none, and members run in this process.
        batching: how different batch sizes are handled: a fused call per size ("bucket"), or one call with rows
            that do not count ("pad": the loss returns one number per row; not with BatchNorm).
        device: where the members train; None means the device of the source's tensors.
        gate: for a surrogate, the report of its coordinate check; None uses the last one of its family and warns
            if there is none, False continues without.

    Raises:
        MemberError: a hyperparameter is unknown, out of range, or not one of this optimizer's.
        StaticShapeError: members' models differ in shape; names the layer.
        CoordinateCheckError: the surrogate's coordinate check failed.
        FuseError: an empty list of members, no trainable parameter, or parameters of several dtypes; or no
            members, with a factory that needs arguments.
    """
    if optimizer not in OPTIMIZERS:
        raise FuseError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, not {optimizer!r}")
    if engine not in ENGINES:
        raise FuseError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    parsed = [parse_member(one, optimizer, position) for position, one in enumerate(listed(members or ()))]
    if members is not None and not parsed:
        raise FuseError(
            "a group needs at least one member; leave members out for a group that they join later"
        )
    if isinstance(source, Surrogate) and not source.is_target:
        known = source.family.gates.get(same_rules(optimizer)) if gate is None else gate
        ask(known, what="fuse of a surrogate")
    models = Models(source)
    where = None if device is None else torch.device(device)
    template = template_of(_first(models, parsed), where)
    layout = layout_of(template)
    updates = updates_of(optimizer, layout, models.parametrization(template, optimizer), template)
    running = Running(
        template=template, models=models, updates=updates, choice=engine, workers=workers, batching=batching
    )
    return Group(
        template=template, models=models, layout=layout, updates=updates, running=running, members=parsed
    )


def _first(models: Models, members: Sequence[Member]) -> nn.Module:
    """The model of the first member, or of one with the defaults if there is none yet."""
    if not members:
        models.refuse_arguments()
    return models.make(members[:1] or [Member(lr=0.0)], [0], None)[0]
