"""From what a user writes to a checked member; and a member's settings as plain values, for a checkpoint.

    {"lr": 0.1, "momentum": 0.9, "schedule": {"kind": "Cosine", "steps": 100, "floor": 0.0}}

Only what differs from torch.optim's default is written. A custom schedule stays the object that it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from headrace_torch.hydro.fuse.errors import MemberError
from headrace_torch.hydro.fuse.member import FIELDS, LossScale, Member, OptimizerName
from headrace_torch.hydro.fuse.schedules import Cosine, OneCycle, StepDecay, WarmUp

KINDS: Final[Mapping[str, type[Any]]] = {
    one.__name__: one for one in (StepDecay, Cosine, WarmUp, OneCycle, LossScale)
}


def listed(members: Sequence[Mapping[str, Any] | Member]) -> Sequence[Mapping[str, Any] | Member]:
    """Returns members as they are given.

    Raises:
        MemberError: one mapping, or one member, was given instead of a list.
    """
    if isinstance(members, Mapping | Member):
        raise MemberError(f"members must be a list with one mapping for each member: [{members!r}]")
    return members


def parse_member(given: Mapping[str, Any] | Member, optimizer: OptimizerName, position: int) -> Member:
    """Makes a member of a mapping such as `{"lr": 1e-3, "betas": (0.9, 0.95)}`.

    Raises:
        MemberError: a key is unknown, a value out of range, or the optimizer does not know the setting.
    """
    if isinstance(given, Member):
        values: dict[str, Any] = {one.name: getattr(given, one.name) for one in fields(Member)}
        said = {one.name for one in fields(Member) if values[one.name] != one.default}
    elif not isinstance(given, Mapping):
        raise MemberError(
            f'member {position} must be a mapping such as {{"lr": 1e-3}}, not {given!r}', member=position
        )
    else:
        values = {name: value if name == "model" else _read(value) for name, value in given.items()}
        said = set(given)
    if unknown := sorted(values.keys() - FIELDS.keys()):
        raise MemberError(
            f"member {position}: {unknown[0]!r} is not a hyperparameter that members may differ in; they are "
            f"{', '.join(FIELDS)}; what changes the model's shapes belongs to a group of its own",
            member=position,
        )
    if "lr" not in values:
        raise MemberError(f"member {position} has no lr", member=position)
    for name, value in values.items():
        rule = FIELDS[name]
        if not rule.valid(value):
            raise MemberError(f"member {position}: {name} must {rule.must}, not {value!r}", member=position)
        if name in said and optimizer not in rule.optimizers:
            raise MemberError(
                f"member {position}: {name} is a setting of {' and '.join(rule.optimizers)}, not of {optimizer}",
                member=position,
            )
    if "betas" in values:
        values["betas"] = (values["betas"][0], values["betas"][1])
    member = Member(**values)
    if member.nesterov and (member.momentum <= 0 or member.dampening != 0):
        raise MemberError(
            f"member {position}: nesterov needs a momentum and no dampening, as in torch.optim.SGD",
            member=position,
        )
    return member


def plain(member: Member) -> dict[str, Any]:
    """Returns the settings in which a member differs from the defaults; `add` accepts them."""
    values = {one.name: getattr(member, one.name) for one in fields(Member)}
    default = Member(lr=0.0)
    return {
        name: _plain(value)
        for name, value in values.items()
        if name == "lr" or value != getattr(default, name)
    }


def _plain(value: Any) -> Any:
    if type(value) in KINDS.values():
        inner = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        return {"kind": type(value).__name__, **inner}
    return dict(value) if isinstance(value, Mapping) else value


def _read(value: Any) -> Any:
    if not isinstance(value, Mapping) or (kind := KINDS.get(str(value.get("kind")))) is None:
        return value
    names = {one.name for one in fields(kind)}
    given = {name: _read(one) for name, one in value.items() if name != "kind"}
    return kind(**given) if given.keys() <= names else value
