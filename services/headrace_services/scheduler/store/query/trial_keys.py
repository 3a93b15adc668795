"""The keys of a study's trials: fields of a trial, parameters of its space, and metrics."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, and_, case, cast, func

from headrace.errors import InvalidFieldError, Violation
from headrace.query import LEADING, parse_filter
from headrace.spec import CategoricalDomain, StudySpec
from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.store import counting, tables
from headrace_services.scheduler.store.columns import metric_in
from headrace_services.scheduler.store.query.keys import (
    Key,
    Number,
    Parameter,
    Prose,
    Tags,
    Time,
    Words,
    condition,
)
from headrace_services.scheduler.store.query.orders import Order

_T = tables.trial
_NUMBERS: Final[Mapping[str, ColumnElement[Any]]] = {
    "number": _T.c.number,
    "step": _T.c.step,
    "value": _T.c.value,
    "score": _T.c.score,
    "best": _T.c.best_value,
    "bracket": _T.c.bracket,
    "generation": _T.c.generation,
    "attempt": _T.c.attempt,
    "failures": _T.c.failures,
    "interruptions": _T.c.interruptions,
    "steps": _T.c.steps_spent,
    "seconds": func.extract("epoch", func.coalesce(_T.c.end_time, func.now()) - _T.c.start_time),
}
_STATES: Final = {
    **{state.lower(): _T.c.state == state.value for state in State},
    **{reason.lower(): _T.c.reason == reason.value for reason in Reason},
}
FIELDS: Final[Mapping[str, Key]] = {
    "state": Words(_STATES),
    "tag": Tags(_T.c.tags),
    "note": Prose(_T.c.note),
    "detail": Prose(_T.c.detail),
    "created": Time(_T.c.create_time),
    "started": Time(_T.c.start_time),
    "ended": Time(_T.c.end_time),
    **{name: Number(of) for name, of in _NUMBERS.items()},
}
"""The fields of a trial. They go before a parameter or a metric of the same name."""


def filtered(spec: StudySpec, text: str, now: datetime) -> ColumnElement[bool]:
    """The trials that meet a filter. Raises InvalidFieldError."""
    terms = parse_filter(text)
    return and_(True, *(condition(_key(spec, term.key, term.refused), term, now) for term in terms))


def ordered(spec: StudySpec, text: str) -> Order | None:
    """The order that a request names; None for the order of numbers. Raises InvalidFieldError."""
    if not text:
        return None
    if text == LEADING:
        if spec.further_objectives:
            return None
        return Order(by=Number(_T.c.score).sortable(), descending=spec.maximizes())
    name = text.removeprefix("-")

    def refused(message: str, remedy: str) -> InvalidFieldError:
        return InvalidFieldError(
            [Violation(field="order_by", value=f"'{text}'", message=message, remedy=remedy)]
        )

    by = _key(spec, name, refused).sortable()
    if by is None:
        raise refused(f"sorts by {name}, which has no order", "Sort by a number, a time or a text.")
    return Order(by=by, descending=text != name)


def _key(spec: StudySpec, name: str, refused: Callable[[str, str], InvalidFieldError]) -> Key:
    kind, _, rest = name.partition(".")
    if kind == "param" and rest in spec.space:
        return _parameter(spec, rest)
    if kind == "metric" and rest:
        return _metric(rest)
    if name in FIELDS:
        return FIELDS[name]
    if name in spec.space:
        return _parameter(spec, name)
    if name in spec.metrics:
        return _metric(name)
    raise refused(
        f"uses '{name}', which is neither a field of trials nor a parameter of this study",
        f"Use {', '.join(FIELDS)}, or a parameter ({_some(spec)}); write any metric as metric.NAME.",
    )


def _some(spec: StudySpec) -> str:
    names = list(spec.space)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _parameter(spec: StudySpec, name: str) -> Key:
    text = _T.c.params.op("->>")(name)
    is_number = func.json_typeof(_T.c.params.op("->")(name)) == "number"
    domain = spec.space[name]
    choices = tuple(map(_told, domain.values)) if isinstance(domain, CategoricalDomain) else None
    return Parameter(number=case((is_number, cast(text, Double))), text=text, choices=choices)


def _told(value: object) -> str:
    """A choice as Postgres writes it: JSON, without the quotes of a text."""
    return value if isinstance(value, str) else json.dumps(value)


def _metric(name: str) -> Key:
    """A metric in the report that counts; absent for a trial that ended as infeasible."""
    return Number(case((~counting.is_infeasible(_T), metric_in(counting.metrics(_T), name))))
