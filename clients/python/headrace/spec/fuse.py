"""Bundles: several trials of one model that train in one process, on one grant of slots.

Trials differ in settings that a fused group can keep separate (learning rates, weight decay, seeds). Parameters
that determine shapes are listed in `apart`: a bundle's trials have equal values of them. Without `fuse`, each
trial has its own process.

With `fuse: auto`, the scheduler measures and decides how many trials share a process. An additional `most` is an
upper limit.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Self

from pydantic import PlainValidator, StrictBool, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem, Unknown, fault, reject
from headrace.spec.resources import Elastic, Resources
from headrace.spec.scalars import Text, Value, integer_within, value_to_json
from headrace.spec.template import TrialTemplate

START: Final = 2
"""The number of trials with which `auto` starts, before anything is measured: on a CPU a single member is padded
to two.
"""


class Fuse(SpecModel):
    """How trials share a process."""

    most: Annotated[int, PlainValidator(integer_within(2, numbers.SEATS))]
    apart: tuple[Text, ...] = ()
    auto: StrictBool = False
    """The scheduler chooses by measurement how many trials share a process, at most `most`."""

    @model_validator(mode="before")
    @classmethod
    def _chosen(cls, data: Any) -> Any:
        """`auto` alone, or in place of a number."""
        if isinstance(data, str):
            if data != "auto":
                raise fault("must be auto or a mapping", "Write fuse: auto, or fuse: {most: 16}.")
            return {"auto": True, "most": numbers.SEATS}
        if not isinstance(data, Mapping):
            return data
        if data.get("most") == "auto":
            return {**data, "auto": data.get("auto", True), "most": numbers.SEATS}
        return {"most": numbers.SEATS, **data} if data.get("auto") is True else data

    @model_validator(mode="after")
    def _sound(self) -> Self:
        twice = [place for place, name in enumerate(self.apart) if name in self.apart[:place]]
        reject(
            [
                Problem(
                    loc=("apart", place),
                    value=self.apart[place],
                    message="stands twice",
                    remedy="Name it once.",
                )
                for place in twice
            ]
        )
        return self

    @property
    def first(self) -> int:
        """How many trials the first bundle has seats for: the study's number, or the number with which `auto`
        starts.
        """
        return min(self.most, START) if self.auto else self.most

    def key(self, params: Mapping[str, Value]) -> str:
        """What the trials of one bundle have in common: the values of `apart`, as text that is equal for equal
        values.
        """
        return json.dumps([value_to_json(params[name]) if name in params else None for name in self.apart])


def fuse_problems(fuse: Fuse, known: Mapping[str, Any], declared: Collection[str]) -> Iterator[Problem]:
    """Conflicts between `fuse` and the study's other valid fields."""
    for place, name in enumerate(fuse.apart):
        if name not in declared:
            unknown = Unknown(word=name, known=declared, noun="parameter")
            yield Problem(
                loc=("fuse", "apart", place), value=name, message="is not a parameter", unknown=unknown
            )
    template: TrialTemplate | None = known.get("template")
    if "template" in known and (template is None or template.callable is None):
        yield Problem(
            loc=("fuse",),
            message="needs a trial that is a callable, which takes a bundle",
            remedy="Name a function: trial: {callable: train:train}.",
        )
    resources: Resources | None = known.get("resources")
    if resources is not None and resources.slots > 1:
        yield Problem(
            loc=("fuse",),
            message=f"trains on one slot, and the study's resources ask for {resources.slots}",
            remedy="Ask for one GPU, a share of one, or one CPU slot.",
        )
    if resources is not None and resources.by is not None:
        yield Problem(
            loc=("resources", "by"),
            message="gives trials sizes of their own, and those of a bundle share one grant",
            remedy="Give all trials one size, or leave out fuse.",
        )
    elastic: Elastic | None = known.get("elastic")
    if elastic is not None:
        yield Problem(
            loc=("elastic",),
            message="changes the grant of each trial, and those of a bundle share one",
            remedy="Leave out elastic, or fuse.",
        )
