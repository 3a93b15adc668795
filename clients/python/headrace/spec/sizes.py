"""Resources by configuration: how much a trial takes, by the value of one parameter.

A table has a row for each value, or for each threshold (`from_value`: a row applies from its value up to the
next one). `otherwise` is for configurations without the parameter and for values without a row. The whole space
is checked before a study starts: each value that the parameter can take must have a size.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import islice, pairwise
from typing import Final, TypeGuard

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec.domains import CategoricalDomain, Domain, FloatDomain, SpecModel, listed, show_real
from headrace.spec.pbt import PbtPolicy
from headrace.spec.problems import Problem, Unknown
from headrace.spec.scalars import Flag, Milli, SlotsOrZero, Text, Value, meaning

_MOST_SHOWN: Final = 12


class TrialSize(SpecModel):
    """How much a trial takes. 0 means the value in the study's `resources`."""

    gpus: SlotsOrZero = 0
    gpu_milli: Milli = 0
    cpus: SlotsOrZero = 0

    @property
    def on_gpu(self) -> bool:
        """Whether it specifies GPUs, or a share of one."""
        return bool(self.gpus or self.gpu_milli)


class SizeRow(TrialSize):
    """The size for a value of the parameter."""

    value: Value


class SizeTable(SpecModel):
    """Sizes by the values of one parameter."""

    parameter: Text
    from_value: Flag = False
    rows: tuple[SizeRow, ...]
    otherwise: TrialSize | None = None

    @property
    def sizes(self) -> tuple[TrialSize, ...]:
        """The size of each row, then `otherwise`."""
        return (*self.rows, self.otherwise) if self.otherwise else self.rows

    def place_of(self, params: Mapping[str, object]) -> int:
        """Which of `sizes` a configuration has; raises `InvalidFieldError` if it has none."""
        place = self._row_of(params[self.parameter]) if self.parameter in params else None
        if place is not None:
            return place
        if self.otherwise is not None:
            return len(self.rows)
        message, value = "is missing, and resources depend on it", params.get(self.parameter)
        if value is not None:
            message = f"has no size in the study's resources (got {show_value(value)})"
        remedy = "Choose a value that `resources` have a row for."
        raise InvalidFieldError([Violation(field=self.parameter, message=message, remedy=remedy)])

    def as_written_by(self, domain: Domain) -> "SizeTable":
        """The same, with the values of its rows as the parameter's domain writes them."""
        if not isinstance(domain, FloatDomain) or domain.step is None:
            return self
        rows = tuple(row.model_copy(update={"value": domain.written(row.value)}) for row in self.rows)
        return SizeTable.model_construct(**{**dict(self), "rows": rows})

    def _row_of(self, value: object) -> int | None:
        if not self.from_value:
            return self._places.get(meaning(value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        place = bisect_right(self._thresholds, value) - 1
        return place if place >= 0 else None

    @cached_property
    def _places(self) -> dict[tuple[bool, object], int]:
        return {meaning(row.value): place for place, row in enumerate(self.rows)}

    @cached_property
    def _thresholds(self) -> list[float]:
        return [row.value for row in self.rows if _is_number(row.value)]


def size_problems(
    table: SizeTable, declared: Collection[str], space: Mapping[str, Domain], policy: object
) -> Iterator[Problem]:
    """Conflicts between a table and a space. `space` lacks parameters that are invalid in themselves."""
    name = table.parameter
    if name not in declared:
        unknown = Unknown(word=name, known=declared, noun="parameter")
        yield Problem(loc=("parameter",), value=name, message="is not a parameter", unknown=unknown)
        return
    domain = space.get(name)
    if domain is None:
        return
    yield from _of_thresholds(table, domain) if table.from_value else _of_values(table, domain)
    if domain.conditions and table.otherwise is None:
        yield Problem(
            loc=("parameter",),
            value=name,
            message="is missing from configurations that do not meet its conditions",
            remedy="Say what those take (`else`).",
        )
    if isinstance(policy, PbtPolicy):
        yield from _of_population(name, domain, policy)


def row_problems(table: SizeTable) -> Iterator[Problem]:
    """Problems of the rows in themselves."""
    if not table.rows:
        yield Problem(loc=("rows",), message="is empty", remedy="Give each value of the parameter its size.")
    if table.from_value:
        numbers = [row.value for row in table.rows if _is_number(row.value)]
        if len(numbers) < len(table.rows):
            return
        for place, (before, number) in enumerate(pairwise(numbers), start=1):
            if number <= before:
                yield Problem(
                    loc=("rows", place, "value"),
                    value=number,
                    message=f"does not come after {show_value(before)}",
                    remedy="List the thresholds increasing.",
                )
        return
    seen: set[tuple[bool, object]] = set()
    for place, row in enumerate(table.rows):
        if meaning(row.value) in seen:
            yield Problem(
                loc=("rows", place, "value"),
                value=row.value,
                message="is listed twice",
                remedy="Remove one of the rows.",
            )
        seen.add(meaning(row.value))


def _of_values(table: SizeTable, domain: Domain) -> Iterator[Problem]:
    if isinstance(domain, FloatDomain) and domain.step is None:
        yield Problem(
            loc=("parameter",),
            value=table.parameter,
            message="is continuous, so it hits no listed value",
            remedy=f"Give thresholds: `from: {{{show_real(domain.low)}: 1, …}}`.",
        )
        return
    known: set[tuple[bool, object]] = set()
    for place, row in enumerate(table.rows):
        value = domain.admit(row.value)
        if value is None:
            yield Problem(
                loc=("rows", place, "value"),
                value=row.value,
                message=f"is not a value of {table.parameter}",
                remedy=f"Choose {domain.describe()}.",
            )
        elif meaning(value) in known:
            yield Problem(
                loc=("rows", place, "value"),
                value=row.value,
                message="is listed twice",
                remedy="Remove one of the rows.",
            )
        else:
            known.add(meaning(value))
    if table.otherwise is not None or domain.count is None or len(known) >= domain.count:
        return
    values = (domain.value_at(index) for index in range(min(domain.count, len(known) + _MOST_SHOWN + 1)))
    missing = tuple(islice((v for v in values if meaning(v) not in known), _MOST_SHOWN + 1))
    yield Problem(
        loc=(),
        message=f"has no size for {table.parameter} = {listed(missing)}",
        remedy="Add rows for them, or one for all other values (`else`).",
    )


def _of_thresholds(table: SizeTable, domain: Domain) -> Iterator[Problem]:
    values = domain.values if isinstance(domain, CategoricalDomain) else (domain.low, domain.high)
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len(values):
        yield Problem(
            loc=("parameter",),
            value=table.parameter,
            message="has values that are no numbers, so it has no thresholds",
            remedy="List its values, without `from`.",
        )
        return
    low, high = min(numbers), max(numbers)
    thresholds: list[float] = []
    for place, row in enumerate(table.rows):
        if not _is_number(row.value):
            yield Problem(
                loc=("rows", place, "value"),
                value=row.value,
                message="must be a number",
                remedy=f"Choose a threshold from {show_real(low)} to {show_real(high)}.",
            )
        elif row.value > high:
            yield Problem(
                loc=("rows", place, "value"),
                value=row.value,
                message=f"is above {show_real(high)}, the greatest value of {table.parameter}, so it never holds",
                remedy="Remove it, or lower it.",
            )
        else:
            thresholds.append(row.value)
    if thresholds and min(thresholds) > low and table.otherwise is None:
        yield Problem(
            loc=(),
            message=f"has no size for {table.parameter} from {show_real(low)} to below {show_real(min(thresholds))}",
            remedy=f"Begin at {show_real(low)}, or add one for all other values (`else`).",
        )


def _of_population(name: str, domain: Domain, policy: PbtPolicy) -> Iterator[Problem]:
    """A member of a population keeps its size, so nothing may change the parameter."""
    if name in policy.mutable:
        yield Problem(
            loc=("parameter",),
            value=name,
            message="is changed by policy pbt while a trial trains, but a trial keeps its size",
            remedy=f"Remove {name} from policy.mutable.",
        )
    if domain.conditions:
        yield Problem(
            loc=("parameter",),
            value=name,
            message="comes and goes with its conditions, which policy pbt may change",
            remedy="Choose a parameter without conditions.",
        )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
