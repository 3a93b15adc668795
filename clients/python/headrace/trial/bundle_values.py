"""The values that a bundle reports: one per member, by metric. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.metrics import MetricError, to_floats
from headrace.trial.bundle_member import Member


class MemberValueError(TypeError):
    """One member's value is invalid; those of the others are valid."""

    def __init__(self, message: str, member: int | None) -> None:
        """`member` is its id in the group."""
        super().__init__(message)
        self.member = member


def rows(
    metrics: Mapping[str, Any] | None, named: Mapping[str, Any], members: Sequence[Member]
) -> list[dict[str, float]]:
    """Each member's metrics, in the order of `members`.

    Raises `TypeError` for anything other than a list of numbers, and `ValueError` for a list of the wrong length
    and for a missing metric that the study reads.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(
            "bundle.report(...) takes metrics by name, as in bundle.report(val_loss=values), one for each"
        )
    both = (metrics or {}).keys() & named.keys()
    if both:
        raise TypeError(
            f"bundle.report(...): metric {min(both)!r} is given twice, in the dictionary and by name; report it once"
        )
    columns = {name: _column(name, value, members) for name, value in {**(metrics or {}), **named}.items()}
    _check_roles(columns, members)
    return [_row(columns, place, member) for place, member in enumerate(members)]


def _column(name: str, value: Any, members: Sequence[Member]) -> Sequence[Any]:
    shape = getattr(value, "shape", None)
    if shape is not None and len(shape) > 1:
        raise TypeError(
            f"bundle.report({name}=...) got a {type(value).__name__} of shape {tuple(shape)}; give one number for each "
            f"member, {len(members)} in all, such as its mean over the other axes"
        )
    if shape is not None and len(shape) == 1 and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping | str | bytes) or not isinstance(value, Iterable) or shape == ():
        raise TypeError(
            f"bundle.report({name}=...) got {_short(value)}, and a mean over members cannot be compared: give one "
            f"number for each of the {len(members)} members, in the order of group.ids"
        )
    column = list(value)
    if len(column) != len(members):
        ids = [member.id for member in members]
        raise ValueError(
            f"bundle.report({name}=...) got {len(column)} values for {len(members)} members: give one for each, in the "
            f"order of group.ids, {ids}"
        )
    return column


def _check_roles(columns: Mapping[str, Any], members: Sequence[Member]) -> None:
    for member in members:
        missing = [f"{name!r} ({role})" for name, role in member.roles.items() if name not in columns]
        if missing:
            raise ValueError(
                f"bundle.report(...) has no {', '.join(missing)}; it has {', '.join(sorted(columns)) or 'nothing'}. "
                "Report it under that name, or correct the study file"
            )


def _row(columns: Mapping[str, Sequence[Any]], place: int, member: Member) -> dict[str, float]:
    try:
        row = to_floats({name: column[place] for name, column in columns.items()}, {})
    except MetricError as error:
        raise MemberValueError(f"bundle.report(...): of {member.name}: {error}", member.id) from None
    for name in member.roles:
        if name not in row:
            raise MemberValueError(
                f"bundle.report({name}=...): that of {member.name} is None; report a number, or NaN if it has none",
                member.id,
            )
    return row


def _short(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
