"""The dimensions of a search space, and the conditions under which one exists."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from headrace.errors import show_value
from headrace.spec.problems import Problem, joined, reject
from headrace.spec.scalars import INT64_MAX, Flag, Integer, Real, Text, Value, meaning

_STEP_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Written:
    """The word for a field in a study file, if it differs. None: nobody writes the field. Empty: its value is
    written in place of the whole model.
    """

    word: str | None


class SpecModel(BaseModel):
    """The base of all models of a spec: immutable, and without unknown keys."""

    # A part of a spec is mostly validated with the whole spec, so its own validator is built only on first use.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _beside_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Check the rest without unknown keys, so that they do not hide other problems."""
        try:
            return handler(data)
        except ValidationError as error:
            unknown = (
                {key for key in data if key not in cls.model_fields} if isinstance(data, Mapping) else set()
            )
            if not unknown:
                raise
            try:
                cls.model_validate({key: data[key] for key in data if key not in unknown})
            except ValidationError as further:
                raise joined([], error, further) from None
            raise


Values = Annotated[tuple[Value, ...], FailFast()]
"""A list of values. Only the first invalid one is reported, as there may be thousands."""


class Condition(SpecModel):
    """`parameter` has one of `values`, or is a number within the bounds. Exactly one of the two is given."""

    parameter: Text
    values: Values = ()
    at_least: Real | None = None
    above: Real | None = None
    at_most: Real | None = None
    below: Real | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """The given bounds, by name."""
        named = {"at_least": self.at_least, "above": self.above, "at_most": self.at_most, "below": self.below}
        return {name: bound for name, bound in named.items() if bound is not None}

    @cached_property
    def meanings(self) -> frozenset[tuple[bool, object]]:
        """The meanings of the values."""
        return frozenset(map(meaning, self.values))

    def holds(self, value: object) -> bool:
        if self.values:
            return meaning(value) in self.meanings
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return not (self.too_low(value) or self.too_high(value))

    def too_low(self, value: float) -> bool:
        """Whether a number is below the bounds."""
        return (self.at_least is not None and value < self.at_least) or (
            self.above is not None and value <= self.above
        )

    def too_high(self, value: float) -> bool:
        """Whether a number is above the bounds."""
        return (self.at_most is not None and value > self.at_most) or (
            self.below is not None and value >= self.below
        )

    def as_written_by(self, domain: "Domain") -> "Condition":
        """The same, with each number as the parameter's domain writes it: 0.3 becomes the grid value
        0.30000000000000004.
        """
        if not isinstance(domain, FloatDomain) or domain.step is None:
            return self
        bounds = {name: domain.written(bound) for name, bound in self.bounds.items()}
        values = tuple(map(domain.written, self.values))
        return Condition.model_construct(**{**dict(self), **bounds, "values": values})

    def describe(self) -> str:
        """The parameter's possible values if the condition holds: `'sgd' or 'adam'`, `at least 64 and below
        128`.
        """
        if self.values:
            return listed(self.values, " or ")
        return " and ".join(f"{name.replace('_', ' ')} {show_real(it)}" for name, it in self.bounds.items())


Conditions = Annotated[tuple[Condition, ...], Written("when")]


class FloatDomain(SpecModel):
    """The closed interval [low, high] of real numbers, or its grid low, low+step, … ≤ high."""

    type: Literal["float"] = "float"
    low: Real
    high: Real
    log: Flag = False
    step: Real | None = None
    conditions: Conditions = ()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = _interval_problems(self.low, self.high, log=self.log)
        if self.low == self.high:
            problems.append(_one_value(self.low))
        if self.step is not None:
            if self.log:
                problems.append(
                    Problem(
                        loc=("step",),
                        value=self.step,
                        message="cannot be combined with log",
                        remedy="Remove step, or set log to false.",
                    )
                )
            problems += _step_problems(self.low, self.high, self.step)
            if self.step > 0 and (self.high - self.low) / self.step > INT64_MAX:
                problems.append(
                    Problem(
                        loc=("step",),
                        value=self.step,
                        message="cuts the interval too finely to count",
                        remedy="Leave it out.",
                    )
                )
        reject(problems)
        return self

    @property
    def count(self) -> int | None:
        """The number of values; None for a continuous range."""
        if self.step is None:
            return None
        return math.floor((self.high - self.low) / self.step + _STEP_TOLERANCE) + 1

    def value_at(self, index: int) -> float:
        """The value number `index`, from 0, of a domain with a step."""
        return min(self.low + index * (self.step or 0.0), self.high)

    def admit(self, value: object) -> float | None:
        """The value as this domain writes it, or None when it does not belong."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not self.low <= value <= self.high:
            return None
        if self.step is None:
            return float(value)
        place = (value - self.low) / self.step
        near = round(place)
        # A position far from `low` is accurate to a few units in the last place of its quotient.
        return self.value_at(near) if abs(place - near) <= max(1e-6, 1e-15 * abs(near)) else None

    def written(self, value: Value) -> Value:
        """The value as this domain writes it; unchanged if it does not belong."""
        found = self.admit(value)
        return value if found is None else found

    def describe(self) -> str:
        grid = f" in steps of {show_real(self.step)}" if self.step is not None else ""
        return f"a number from {show_real(self.low)} to {show_real(self.high)}{grid}"


class IntDomain(SpecModel):
    """The closed interval [low, high] of integers, or its grid low, low+step, … ≤ high."""

    type: Literal["int"] = "int"
    low: Integer
    high: Integer
    log: Flag = False
    step: Integer = 1
    conditions: Conditions = ()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = _interval_problems(self.low, self.high, log=self.log)
        if self.log and self.step > 1:
            problems.append(
                Problem(
                    loc=("step",),
                    value=self.step,
                    message="cannot be combined with log",
                    remedy="Remove step, or set log to false.",
                )
            )
        if self.low < self.high or self.step != 1:
            problems += _step_problems(self.low, self.high, self.step)
        reject(problems)
        return self

    @property
    def count(self) -> int:
        """How many values there are."""
        return (self.high - self.low) // self.step + 1

    def value_at(self, index: int) -> int:
        """The value number `index`, from 0."""
        return self.low + index * self.step

    def admit(self, value: object) -> int | None:
        """The value as this domain writes it, or None when it does not belong."""
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return None
        if not self.low <= value <= self.high or value != int(value):
            return None
        return int(value) if (int(value) - self.low) % self.step == 0 else None

    def describe(self) -> str:
        grid = f" in steps of {self.step}" if self.step != 1 else ""
        return f"a whole number from {self.low} to {self.high}{grid}"


class CategoricalDomain(SpecModel):
    """A finite set of choices, of any scalar types."""

    type: Literal["categorical"] = "categorical"
    values: Values
    conditions: Conditions = ()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems: list[Problem] = []
        if not self.values:
            problems.append(
                Problem(loc=("values",), message="is empty", remedy="List at least one value to choose from.")
            )
        problems += [
            Problem(
                loc=("values", index),
                value=value,
                message="is listed twice",
                remedy="Remove the duplicate; a repeated value would only skew the draw.",
            )
            for index, value in enumerate(self.values)
            if self._places[meaning(value)] != index
        ]
        reject(problems)
        return self

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.values)

    def value_at(self, index: int) -> bool | int | float | str:
        """The value number `index`, from 0."""
        return self.values[index]

    def admit(self, value: object) -> bool | int | float | str | None:
        """The value as this domain writes it, or None when it does not belong."""
        place = self.place_of(value)
        return None if place is None else self.values[place]

    def place_of(self, value: object) -> int | None:
        """The position of the value with the same meaning, if it belongs."""
        return self._places.get(meaning(value))

    @cached_property
    def _places(self) -> dict[tuple[bool, object], int]:
        """The first position of each meaning."""
        return {meaning(value): place for place, value in reversed(list(enumerate(self.values)))}

    def describe(self) -> str:
        return f"one of {listed(self.values)}"


Domain = Annotated[FloatDomain | IntDomain | CategoricalDomain, Field(discriminator="type")]


def listed(values: tuple[object, ...], joint: str = ", ") -> str:
    """Values as shown in a sentence: the first dozen."""
    return joint.join(map(show_value, values[:12])) + (f"{joint}…" if len(values) > 12 else "")


def show_real(value: float) -> str:
    """A number, written as short as possible without changing it."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _interval_problems(low: float, high: float, *, log: bool) -> list[Problem]:
    problems: list[Problem] = []
    if low > high:
        problems.append(
            Problem(
                loc=("low",),
                value=low,
                message=f"is above high, which is {show_real(high)}",
                remedy="Swap the two, or correct one of them.",
            )
        )
    if log and low <= 0:
        problems.append(
            Problem(
                loc=("low",),
                value=low,
                message="must be above 0 where log is true",
                remedy="Choose a positive bound, or set log to false.",
            )
        )
    return problems


def _one_value(value: float) -> Problem:
    return Problem(
        loc=("low",),
        value=value,
        message="equals high, so there is nothing to search",
        remedy=f"Raise high, or fix the value with `type: categorical, values: [{show_real(value)}]`.",
    )


def _step_problems(low: float, high: float, step: float) -> list[Problem]:
    if step <= 0:
        return [
            Problem(
                loc=("step",),
                value=step,
                message="must be above 0",
                remedy="Leave it out, or choose a positive step.",
            )
        ]
    if low <= high and step > high - low:
        return [
            Problem(
                loc=("step",),
                value=step,
                message=f"is larger than the interval, which is {show_real(high - low)} wide",
                remedy="Choose a smaller step, or a wider interval.",
            )
        ]
    return []
