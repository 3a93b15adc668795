"""What a trial occupies while it runs, and how that grows during the trial."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.grants import WHOLE as WHOLE
from headrace.spec.domains import Domain, SpecModel
from headrace.spec.names import LabelName
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import Bytes, Milli, SlotsOrZero, Steps, Text, integer_within
from headrace.spec.sizes import SizeTable, TrialSize, row_problems

_WEIGHT_MIN: Final = 1e-6
_SIZE: Final = re.compile(r"(\d+(?:\.\d*)?)\s*([KMGT]i?)?B?", re.IGNORECASE | re.ASCII)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Processes(StrEnum):
    """How many processes run on a grant of several slots."""

    ONE = "one"
    PER_SLOT = "per_slot"


def _size(value: Any) -> Any:
    """Parses bytes as people write them: `16GiB`, `500MB`. Anything else is left to the check for whole numbers."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    unit = (match[2] or "").upper()
    base = 1024 if unit.endswith("I") else 1000
    return int(float(match[1]) * base ** _POWERS[unit[:1]])


Size = Annotated[Bytes, BeforeValidator(_size)]
Priority = Annotated[int, PlainValidator(integer_within(-numbers.PRIORITY, numbers.PRIORITY))]


def _weight(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not _WEIGHT_MIN <= value <= numbers.WEIGHT
    ):
        raise fault(
            f"must be a number above 0, from {_WEIGHT_MIN:g} to {numbers.WEIGHT:g}",
            "1 is ordinary, 3 is three times as much.",
        )
    return float(value)


Weight = Annotated[float, PlainValidator(_weight)]


class Resources(SpecModel):
    """What one trial occupies while it runs: whole GPUs, a share of one, or CPU slots if it requests no GPU."""

    gpus: SlotsOrZero = 0
    gpu_memory_bytes: Size = 0
    labels: dict[LabelName, Text] = Field(default_factory=dict)
    gpu_milli: Milli = 0
    gpu_types: tuple[Text, ...] = ()
    cpus: SlotsOrZero = 0
    processes: Processes = Processes.ONE
    by: SizeTable | None = None
    """Sizes by a parameter; `of` gives the resources of a configuration."""
    exclusive: bool = False
    """Whether a trial with a share of a GPU has the GPU to itself."""

    @property
    def on_gpu(self) -> bool:
        """Whether it requests a GPU, or a share of one."""
        of_rows = self.by is not None and any(size.on_gpu for size in self.by.sizes)
        return bool(self.gpus or self.gpu_milli) or of_rows

    @property
    def slots(self) -> int:
        """How many slots of one worker it takes; the most if there are several sizes."""
        if self.by is not None:
            return max(size.slots for size in self.each)
        return self.gpus or (1 if self.gpu_milli else max(1, self.cpus))

    @property
    def milli(self) -> int:
        """Thousandths of each slot. If there are several sizes, ask each of them."""
        return WHOLE if self.exclusive else self.gpu_milli or WHOLE

    def of(self, params: Mapping[str, object]) -> "Resources":
        """The resources of a trial with this configuration, without a table; unchanged if there is no table.

        Raises `InvalidFieldError` for a configuration that the table has no size for.
        """
        return self if self.by is None else self._sized[self.by.place_of(params)]

    def as_written_by(self, space: Mapping[str, Domain]) -> "Resources":
        """The same, with the values of the table as the parameter's domain writes them."""
        domain = space.get(self.by.parameter) if self.by is not None else None
        if self.by is None or domain is None:
            return self
        return Resources.model_construct(**{**dict(self), "by": self.by.as_written_by(domain)})

    @property
    def each(self) -> tuple["Resources", ...]:
        """The possible resources of trials, without duplicates, smallest first."""
        return (self,) if self.by is None else self._each

    @cached_property
    def _each(self) -> tuple["Resources", ...]:
        found = {(one.slots * one.milli, one.slots, one.cpus): one for one in self._sized}
        return tuple(found[size] for size in sorted(found))

    @cached_property
    def _sized(self) -> tuple["Resources", ...]:
        return tuple(map(self._with, self.by.sizes)) if self.by is not None else ()

    def _with(self, size: TrialSize) -> "Resources":
        own = {name: getattr(self, name) for name in Resources.model_fields}
        gpus = (size.gpus, size.gpu_milli) if size.on_gpu else (self.gpus, self.gpu_milli)
        sized = {"gpus": gpus[0], "gpu_milli": gpus[1], "cpus": size.cpus or self.cpus, "by": None}
        return Resources.model_construct(**{**own, **sized})

    def _row_problems(self) -> Iterator[Problem]:
        """Problems of the table and its rows."""
        if self.by is None:
            return
        yield from row_problems(self.by)
        for place, (size, one) in enumerate(zip(self.by.sizes, self._sized, strict=True)):
            loc = ("rows", place) if place < len(self.by.rows) else ("otherwise",)
            if size.gpus and size.gpu_milli:
                remedy = "Give whole GPUs with gpus, or a share of one with gpu_milli."
                yield Problem(
                    loc=(*loc, "gpu_milli"), value=size.gpu_milli, message="excludes gpus", remedy=remedy
                )
            elif self.on_gpu and not one.on_gpu:
                remedy = "Give a share of a GPU, such as 0.25, or at least 1."
                yield Problem(
                    loc=(*loc, "gpus"),
                    value=0,
                    message="is no GPU, while other rows have some",
                    remedy=remedy,
                )

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = [problem.under("by") for problem in self._row_problems()]
        if self.gpus and self.gpu_milli:
            remedy = "Give whole GPUs with gpus, or a share of one with gpu_milli."
            problems.append(
                Problem(loc=("gpu_milli",), value=self.gpu_milli, message="excludes gpus", remedy=remedy)
            )
        for name, value in (
            ("gpu_memory_bytes", self.gpu_memory_bytes),
            ("gpu_types", self.gpu_types),
            ("exclusive", self.exclusive),
        ):
            if value and not self.on_gpu:
                problems.append(
                    Problem(
                        loc=(name,),
                        value=value,
                        message="has no meaning without a GPU",
                        remedy="Remove it, or ask for GPUs with gpus.",
                    )
                )
        reject(problems)
        return self


class ElasticGrant(SpecModel):
    """The number of slots, or the share of a GPU, from a rung on."""

    from_step: Steps
    slots: SlotsOrZero = 0
    gpu_milli: Milli = 0

    @property
    def part(self) -> tuple[int, int]:
        """The number of slots, and thousandths of each."""
        return (1, self.gpu_milli) if self.gpu_milli else (self.slots, WHOLE)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        remedy = "Give whole slots with slots, or a share of a GPU with gpu_milli."
        if self.slots and self.gpu_milli:
            reject(
                [Problem(loc=("gpu_milli",), value=self.gpu_milli, message="excludes slots", remedy=remedy)]
            )
        if not self.slots and not self.gpu_milli:
            reject([Problem(loc=("slots",), message="is required, and at least 1", remedy=remedy)])
        return self


class Elastic(SpecModel):
    """How a trial's grant grows during the trial. Before the first row of `grants`, the study's `resources`
    apply.
    """

    grants: tuple[ElasticGrant, ...] = ()
    spare: SlotsOrZero = 0

    @model_validator(mode="after")
    def _sound(self) -> Self:
        steps = [row.from_step for row in self.grants]
        problems = [
            Problem(
                loc=("grants", index, "from_step"),
                value=step,
                message=f"does not come after {before}",
                remedy="List the rows by from_step, increasing.",
            )
            for index, (before, step) in enumerate(pairwise(steps), start=1)
            if step <= before
        ]
        reject(problems)
        return self

    def row_at(self, step: int) -> ElasticGrant | None:
        """The row that applies to a trial that has done `step` steps; None before the first one."""
        held = [row for row in self.grants if row.from_step <= step]
        return held[-1] if held else None


def elastic_problems(elastic: Elastic, resources: Resources, max_steps: int) -> list[Problem]:
    """Problems of a table for these resources and this budget."""
    found = []
    for index, row in enumerate(elastic.grants):
        if row.gpu_milli and not resources.on_gpu:
            found.append(
                Problem(
                    loc=("elastic", "grants", index, "gpu_milli"),
                    value=row.gpu_milli,
                    message="is a share of a GPU, and the study's resources ask for none",
                    remedy="Ask for a GPU, or for a share of one, in resources; or give whole slots here.",
                )
            )
        if row.from_step >= max_steps:
            found.append(
                Problem(
                    loc=("elastic", "grants", index, "from_step"),
                    value=row.from_step,
                    message=f"is not before the full budget of {max_steps} steps",
                    remedy="Name a rung before the last one.",
                )
            )
    return found
