"""Plans: how the trials that train a transfer's target split their job, `transfer: {plan: {model: …, cluster:
…}}`.

The question is in the study's spec. The client that creates the study first asks a planner and stores the answer
next to the question, so an impossible plan is rejected before anything is spent. The answer's files go to the
study that trains the target, in its `template`; its trials find them in a folder.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel, Written
from headrace.spec.names import PLAN_FILE
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.resources import Processes, Resources
from headrace.spec.scalars import Count, Flag, Real, Text, integer_within
from headrace.userfile import parse_json

DESCRIBES: Final = "{"
"""The first character of a model or a cluster that is a description in JSON; any other is a name."""
FILE: Final = ".json"
"""The ending of a model or a cluster that is a file name, which only a study file may have."""

Degree = Annotated[int, PlainValidator(integer_within(1, numbers.DEGREE))]
Sequences = Annotated[int, PlainValidator(integer_within(1, numbers.SEQUENCES))]
Tokens = Annotated[int, PlainValidator(integer_within(1, numbers.TOKENS))]
Small = Annotated[int, PlainValidator(integer_within(1, 64))]


def _described(value: Any) -> Any:
    """A description as compact JSON; a name unchanged."""
    is_text = isinstance(value, str) and value.startswith(DESCRIBES)
    if isinstance(value, str) and value.endswith(FILE) and not is_text:
        raise fault("is a file, and none is read here", "Give its content, as a mapping.")
    if not (is_text or isinstance(value, Mapping)):
        return value
    try:
        found = parse_json(value) if is_text else dict(value)
        return json.dumps(found, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise fault(f"is not JSON: {error}", "Describe it with texts, numbers, lists and mappings.") from None


Described = Annotated[Text, BeforeValidator(_described)]
"""A name that the planner knows, or a description."""


class PlanDegrees(SpecModel):
    """The degrees of parallelism: data · tensor · pipeline devices."""

    data: Degree = 1
    tensor: Degree = 1
    optimizer: Degree = 1
    pipeline: Degree = 1
    micro_batches: Sequences = 1
    expert: Degree = 1

    @property
    def devices(self) -> int:
        """The number of devices that the plan is for."""
        return self.data * self.tensor * self.pipeline

    def __str__(self) -> str:
        shared = [("optimizer", self.optimizer), ("experts", self.expert)]
        over = "".join(f", {name} over {ranks}" for name, ranks in shared if ranks > 1)
        batches = f"{self.micro_batches} micro-batch{'' if self.micro_batches == 1 else 'es'}"
        return f"data {self.data} × tensor {self.tensor} × pipeline {self.pipeline}{over}, {batches}"


class TrialPlan(SpecModel):
    """A planner's answer, as trials get it: `files` by name."""

    degrees: PlanDegrees
    iteration_s: Real
    files: dict[Text, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = [found for name in self.files if (found := PLAN_FILE.problem(name, "files", name))]
        size = sum(len(text.encode()) for text in self.files.values())
        if size > numbers.PLAN_BYTES:
            problems.append(
                Problem(
                    loc=("files",),
                    message=f"come to {size:,} bytes, more than the {numbers.PLAN_BYTES:,} that a study keeps",
                    remedy="Plan without a target, or write the plan to a folder that all workers see "
                    "(headrace plan --out).",
                )
            )
        reject(problems)
        return self

    def __str__(self) -> str:
        return f"{self.degrees}, {self.iteration_s:.3g} s an iteration (predicted)"


class TransferPlan(SpecModel):
    """The question to a planner, and its answer. The planner checks the values; None is its own default."""

    model: Described
    cluster: Described
    target: Text | None = None
    batch: Sequences | None = None
    sequence: Tokens | None = None
    schedule: Text | None = None
    chunks: Small | None = None
    zero: Annotated[int, PlainValidator(integer_within(1, 3))] | None = None
    attention: Text | None = None
    mode: Text | None = None
    method: Text | None = None
    gradients: Text | None = None
    overlap: Text | None = None
    sequence_parallel: Flag | None = None
    usable_memory: Real | None = None
    seconds: Real | None = None
    budget: Count | None = None
    answer: Annotated[TrialPlan | None, Written(None)] = None

    @property
    def answered(self) -> bool:
        """Whether a planner has answered and its files are here."""
        return self.answer is not None and bool(self.answer.files)

    def question(self) -> dict[str, Any]:
        """The question, with the names of the planner's messages; a model or a cluster is a name or a mapping."""
        asked = self.model_dump(exclude={"answer"}, exclude_none=True)
        for name in ("model", "cluster"):
            if asked[name].startswith(DESCRIBES):
                asked[name] = json.loads(asked[name])
        return asked


def plan_problems(plan: TransferPlan, resources: Resources) -> Iterator[Problem]:
    """Conflicts between an answered plan and its trials' resources. A process without devices of its own may
    start the job elsewhere, so that is not a conflict.
    """
    devices = plan.answer.degrees.devices if plan.answer is not None else 0
    for size in resources.each if devices else ():
        if (size.on_gpu or size.processes is Processes.PER_SLOT) and size.slots != devices:
            unit = "gpus" if size.on_gpu else "cpus"
            yield Problem(
                loc=("plan", "cluster"),
                message=f"is for {devices} devices, and a target trial takes {size.slots}",
                remedy=f"Ask for as many, resources: {{{unit}: {devices}}}, or plan for {size.slots}.",
            )
            return
