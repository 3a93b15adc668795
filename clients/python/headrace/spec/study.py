"""The complete description of a study, and the only way to check it.

`parse_spec` takes plain data (from YAML, protobuf or JSON) and raises `InvalidFieldError` with every violation
at once. Pydantic stops at the first invalid model. If it does, the checks across several fields still run over
the valid fields (`_Parts`): a bad bound of one parameter does not hide a bad rung list.

`StudySpec(...)` itself raises pydantic's `ValidationError`, a ValueError with the same findings.
`spec.model_dump(mode="json")` is the canonical JSON. It survives JSONB, which loses the order of keys (so the
space is a list there) and the type of large floats (see `headrace.spec.scalars`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Final, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    StrictBool,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import names, shape
from headrace.spec import space as spaces
from headrace.spec.auto import AutoPolicy
from headrace.spec.bubbles import bubble_problems
from headrace.spec.code import OnCodeChange
from headrace.spec.domains import Domain, SpecModel, Written
from headrace.spec.extended import Extended, extended_problems
from headrace.spec.fuse import Fuse, fuse_problems
from headrace.spec.names import StudyName
from headrace.spec.objective import (
    Constraint,
    Goal,
    Keep,
    Objective,
    Scope,
    WarmStart,
    objective_problems,
)
from headrace.spec.pbt import PbtPolicy, mutable_problems, population_problems
from headrace.spec.pilot import SCALE, pilot_fields, pilot_space
from headrace.spec.plan import TransferPlan, TrialPlan
from headrace.spec.policy import Policy, RunAllPolicy, ladder_problems
from headrace.spec.problems import Loc, Problem, first, joined, path_of, problems_of
from headrace.spec.resources import Elastic, Priority, Resources, Weight, elastic_problems
from headrace.spec.rungs import EvenPolicy, GeometricPolicy
from headrace.spec.sampler import RandomSampler, Sampler, grid_problems, sampler_problems
from headrace.spec.scalars import Count, CountOrZero, Seed, Steps, Text, Value, existing
from headrace.spec.sizes import size_problems
from headrace.spec.surrogate import GateOrSwitch, Surrogate, gate_fields, surrogate_problems
from headrace.spec.template import TrialTemplate, placeholder_problems
from headrace.spec.transfer import Transfer, transfer_problems
from headrace.spec.until import Until, until_problems

_STORED: Final = object()
_NOT_THE_TARGETS: Final = {
    "space",
    "surrogate",
    "gate",
    "after",
    "transfer",
    "fuse",
    "elastic",
    "baseline",
    "enqueued",
    "warm_start",
    "max_parallel",
    "bubbles",
    "until",
    "extended",
}
"""The fields that the study of a transfer does not take from the first one, besides those that `Transfer` sets."""
_THE_GATES: Final = {"surrogate", "gate", "after", "seed", "weight", "priority", "on_code_change"}
"""The fields that a gate takes from its study, besides the space."""
_THE_PILOTS: Final = {
    "objective",
    "constraints",
    "template",
    "max_retries",
    "max_early_failures",
    "seed",
    "weight",
    "priority",
    "after",
    "on_code_change",
}
"""The fields that a pilot takes from its study, besides those of `pilot_fields`."""


def _space_by_name(data: Any) -> Any:
    """The space as a mapping. In canonical JSON it is a list, whose order JSONB preserves."""
    if not isinstance(data, list) or not all(
        isinstance(entry, Mapping) and "name" in entry for entry in data
    ):
        return data
    return {entry["name"]: {key: entry[key] for key in entry if key != "name"} for entry in data}


def _space_to_json(space: dict[str, Domain]) -> list[dict[str, Any]]:
    return [{"name": name, **domain.model_dump(mode="json")} for name, domain in space.items()]


Space = Annotated[
    dict[Text, Domain], BeforeValidator(_space_by_name), PlainSerializer(_space_to_json, when_used="json")
]


class StudySpec(SpecModel):
    """A user's specification of a study; see the messages of the same names in `spec.proto`."""

    model_config = ConfigDict(defer_build=False)

    objective: Objective
    space: Space
    sampler: Sampler = Field(default_factory=RandomSampler)
    policy: Policy = Field(default_factory=AutoPolicy)
    template: Annotated[TrialTemplate | None, Written("trial")] = None
    resources: Resources = Field(default_factory=Resources)
    max_trials: Annotated[Count, Written("trials")]
    max_parallel: Annotated[CountOrZero, Written("parallel")] = 0
    max_steps: Annotated[Steps, Written("steps")]
    max_retries: Annotated[CountOrZero, Written("retries")] = 1
    max_early_failures: Annotated[Count, Written("early_failures")] = 3
    seed: Seed = 0
    baseline: dict[Text, Value] | None = None
    enqueued: Annotated[
        tuple[Annotated[dict[Text, Value], BeforeValidator(existing)], ...], FailFast(), Written("enqueue")
    ] = ()
    checkpoints_kept: CountOrZero = 1
    weight: Weight = 1.0
    priority: Priority = 0
    elastic: Elastic | None = None
    fuse: Fuse | None = None
    bubbles: StrictBool = False
    surrogate: Surrogate | None = None
    gate: GateOrSwitch | None = None
    after: StudyName | None = None
    transfer: Transfer | None = None
    further_objectives: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    warm_start: WarmStart | None = None
    until: Until | None = None
    extended: Annotated[Extended | None, Written(None)] = None
    on_code_change: OnCodeChange = OnCodeChange.WARN

    @model_validator(mode="wrap")
    @classmethod
    def _sound(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo[object]
    ) -> Self:
        if info.context is _STORED:
            return handler(data)
        data = _with_max_steps(data)
        try:
            spec = handler(data)
        except ValidationError as error:
            found = _Parts.of(data).problems() if isinstance(data, Mapping) else []
            raise joined(found, error) from None
        # Values are stored as their domains write them: 3.0 becomes 3 for an int. The instance is still being
        # created.
        object.__setattr__(spec, "space", spaces.on_grids(spec.space))
        object.__setattr__(spec, "resources", spec.resources.as_written_by(spec.space))
        problems = _Parts.of_spec(spec).problems()
        if problems:
            raise joined(problems)
        if spec.baseline is not None:
            object.__setattr__(spec, "baseline", spaces.admitted(spec.space, spec.baseline))
        enqueued = tuple(spaces.admitted(spec.space, assignment) for assignment in spec.enqueued)
        object.__setattr__(spec, "enqueued", enqueued)
        return spec

    @classmethod
    def stored(cls, data: Any) -> Self:
        """The spec of stored canonical JSON. Each field is checked; the checks across fields were passed
        earlier.
        """
        return cls.model_validate(data, context=_STORED)

    def target(self, name: str) -> "StudySpec":
        """The study that trains the best configurations of this study, whose name is given.

        Raises `InvalidFieldError` if `transfer` and the rest do not make a valid study.
        """
        assert self.transfer is not None
        assert self.template is not None
        kept = self.model_dump(exclude=_NOT_THE_TARGETS)
        return spec_of({**kept, "space": self.space, **self.transfer.fields(name, self.template)})

    @property
    def plan(self) -> TransferPlan | None:
        """The plan for splitting the transfer's target, if there is one."""
        return self.transfer.plan if self.transfer is not None else None

    @property
    def open_plan(self) -> TransferPlan | None:
        """The same, if a planner must still be asked before the study can be created."""
        return None if self.plan is None or self.plan.answered else self.plan

    def with_answer(self, answer: TrialPlan | Mapping[str, Any]) -> "StudySpec":
        """The same study with a planner's answer. Raises `InvalidFieldError` if plan and resources do not match."""
        assert self.transfer is not None
        assert self.plan is not None
        own = {name: getattr(self, name) for name in StudySpec.model_fields}
        plan = {**self.plan.model_dump(), "answer": answer}
        return spec_of({**own, "transfer": {**self.transfer.model_dump(), "plan": plan}})

    def gate_study(self) -> "StudySpec | None":
        """The study that checks this one's surrogate before it starts; None if there is nothing to check."""
        if self.surrogate is None or self.surrogate.scale_by is not None:
            return None
        if self.gate is not None and self.gate.off:
            return None
        assert self.template is not None
        kept = self.model_dump(include=_THE_GATES)
        return spec_of({**kept, "space": self.space, **gate_fields(self.template, self.resources)})

    def pilot_study(self, tried: Sequence[Mapping[str, Value]]) -> "StudySpec":
        """The study that trains these configurations on the model and on copies, to find out how small a copy
        may be.
        """
        assert self.surrogate is not None
        assert self.surrogate.pilot is not None
        pilot = self.surrogate.pilot
        own = self.surrogate.model_dump(exclude={"pilot"}) | {"scale_by": SCALE}
        fields = pilot_fields(
            pilot,
            tried,
            rungs=self.rungs(),
            fuse=self.fuse,
            resources=self.resources,
            transfer=self.transfer,
        )
        kept = self.model_dump(include=_THE_PILOTS)
        kept["objective"]["keep"] = Keep.LAST  # a pilot's models are never loaded
        return spec_of({**kept, "space": pilot_space(pilot, self.space), "surrogate": own, **fields})

    @property
    def shares_checkpoints(self) -> bool:
        """Whether a trial may be given another's checkpoint."""
        return isinstance(self.policy, PbtPolicy)

    @property
    def scope(self) -> Scope:
        """Which value of a trial counts. With several objectives, those of its last report, whatever is kept."""
        return Scope.LAST if self.further_objectives else self.objective.scope

    @property
    def keeps_best(self) -> bool:
        """Whether the checkpoint of a trial's best value is kept."""
        return self.objective.keep is Keep.BEST

    @property
    def retains_checkpoints(self) -> bool:
        """Whether more than a trial's last checkpoints may have to be kept, as the scheduler says with each
        decision.
        """
        return self.shares_checkpoints or self.keeps_best

    @property
    def pauses(self) -> bool:
        """Whether the policy may let a trial wait and continue later. With a single rung it never does."""
        return self.policy.pauses and len(self.rungs()) > 1

    @property
    def prices_pauses(self) -> bool:
        """Whether a trial is paused only if that is worth its price."""
        return isinstance(self.policy, GeometricPolicy) and self.policy.price_pauses

    def as_created(self) -> "StudySpec":
        """The spec without its extensions."""
        if self.extended is None:
            return self
        first = {"max_trials": self.extended.trials, "max_steps": self.budgets[0]}
        return self.model_copy(update={**first, "extended": None})

    def extended_to(self, *, trials: int, steps: int) -> "StudySpec":
        """The spec with this number of trials and this full budget. Neither may be less than before."""
        before = self.extended or Extended(trials=self.max_trials)
        if steps > self.max_steps:
            before = Extended(trials=before.trials, steps=(*before.steps, self.max_steps))
        return self.model_copy(update={"max_trials": trials, "max_steps": steps, "extended": before})

    @property
    def first_trials(self) -> int:
        """How many configurations the study was created with."""
        return self.max_trials if self.extended is None else self.extended.trials

    @property
    def budgets(self) -> tuple[int, ...]:
        """All full budgets, oldest first; the last one is max_steps."""
        return (*(self.extended.steps if self.extended else ()), self.max_steps)

    def rungs(self) -> tuple[int, ...]:
        """The rung levels of bracket 0 in steps; the last one is max_steps. An extension adds rungs without
        moving any.
        """
        first, *later = self.budgets
        levels = self._ladder(first)
        for budget in later:
            levels += self.policy.beyond(levels[-1], budget, first=first)
        return levels

    def count_rungs(self) -> int:
        """The number of rungs of bracket 0. Those of extensions are counted, not listed."""
        first = self.budgets[0]
        further = (
            self.policy.count_beyond(before, after, first=first) for before, after in pairwise(self.budgets)
        )
        return len(self._ladder(first)) + sum(further)

    def _ladder(self, max_steps: int) -> tuple[int, ...]:
        """The rungs of bracket 0 for a full budget: those of `auto` depend on the sampler."""
        policy = self.policy.asha(self.sampler) if isinstance(self.policy, AutoPolicy) else self.policy
        return policy.ladder(max_steps)

    def due_rungs(self, bracket: int) -> tuple[int, ...]:
        """The rungs at which a trial of a bracket must report, in steps: no report may skip one.

        Checks at a default interval are left out: such a trial is checked whenever it reports.
        """
        if isinstance(self.policy, EvenPolicy) and not (self.policy.rungs or self.policy.interval):
            return (self.max_steps,)
        return self.rungs()[bracket:]

    def maximizes(self) -> bool:
        """Whether larger values of the metric are better."""
        return self.objective.goal is Goal.MAXIMIZE

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that the study reads from a report: those of the objectives and of the constraints."""
        objectives = [objective.metric for objective in self.objectives]
        return tuple(dict.fromkeys([*objectives, *(constraint.metric for constraint in self.constraints)]))

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """All objectives in order."""
        return (self.objective, *self.further_objectives)


@dataclass(slots=True, kw_only=True)
class _Parts:
    """The valid parts of a spec, for the checks across several fields. None or absent: invalid."""

    declared: dict[str, None]
    """The names in the order of the space."""
    space: dict[str, Domain]
    fields: dict[str, Any]

    @classmethod
    def of_spec(cls, spec: StudySpec) -> "_Parts":
        fields = {name: getattr(spec, name) for name in StudySpec.model_fields}
        return cls(declared=dict.fromkeys(spec.space), space=dict(spec.space), fields=fields)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "_Parts":
        fields: dict[str, Any] = {}
        for name, field in StudySpec.model_fields.items():
            if name in data and name != "space":
                ok, value = _sound_alone(_field(name), data[name])
                if ok:
                    fields[name] = value
            elif not field.is_required():
                fields[name] = field.get_default(call_default_factory=True)
        raw = _space_by_name(data.get("space"))
        space: dict[str, Domain] = {}
        named = [name for name in raw if isinstance(name, str)] if isinstance(raw, Mapping) else []
        declared = dict.fromkeys(named)
        for name in declared:
            ok, domain = _sound_alone(_domain(), raw[name])
            if ok:
                space[name] = domain
        if isinstance(raw, Mapping):
            fields["space"] = space
        return cls(declared=declared, space=space, fields=fields)

    def problems(self) -> list[Problem]:
        """As many problems as are reported at once."""
        return first(self._found())

    def _found(self) -> Iterator[Problem]:
        known = self.fields
        if "space" in known:
            yield from self._of_space()
        if known.get("elastic") is not None and "resources" in known and "max_steps" in known:
            yield from elastic_problems(known["elastic"], known["resources"], known["max_steps"])
        if known.get("fuse") is not None:
            yield from fuse_problems(known["fuse"], known, self.declared)
        if known.get("bubbles") is True:
            yield from bubble_problems(known)
        yield from surrogate_problems(known, tuple(self.declared), self.space)
        if known.get("transfer") is not None:
            yield from transfer_problems(known["transfer"], known)
        if known.get("resources") is not None and known["resources"].by is not None and "space" in known:
            table = known["resources"].by
            for problem in size_problems(table, self.declared, self.space, known.get("policy")):
                yield problem.under("resources", "by")
        extended: Extended | None = known.get("extended")
        if extended is not None:
            yield from extended_problems(extended, known)
        if "policy" in known and "max_steps" in known:
            first = extended.steps[0] if extended is not None and extended.steps else known["max_steps"]
            yield from ladder_problems(known["policy"], first)
        if known.get("until") is not None:
            yield from until_problems(known["until"], known)
        if isinstance(policy := known.get("policy"), PbtPolicy):
            yield from mutable_problems(policy, self.declared)
            yield from population_problems(policy, known["max_trials"]) if "max_trials" in known else ()
        yield from self._aims()
        most = known.get("max_trials")
        if most is not None and len(known.get("enqueued", ())) > most:
            yield Problem(
                loc=("enqueued",),
                message=f"has {len(known['enqueued'])} configurations, but only {most} are to be tried",
                remedy="Raise the number of trials, or enqueue fewer.",
            )

    def _of_space(self) -> Iterator[Problem]:
        known = self.fields
        unsound = first(spaces.space_problems(self.declared, self.space))
        yield from (problem.under("space") for problem in unsound)
        # It is unknown whether a parameter with invalid conditions belongs to a configuration.
        for problem in unsound:
            self.space.pop(str(problem.loc[0]) if problem.loc else "", None)
        if "sampler" in known:
            yield from grid_problems(known["sampler"], self.declared, self.space)
        if known.get("template") is not None:
            conditional = {name for name, domain in self.space.items() if domain.conditions}
            yield from placeholder_problems(known["template"], self.declared, conditional)
        if known.get("baseline") is not None:
            yield from self._assignment("baseline", known["baseline"])
        for index, assignment in enumerate(known.get("enqueued", ())):
            yield from self._assignment("enqueued", assignment, index)

    def _aims(self) -> list[Problem]:
        known = self.fields
        found: list[Problem] = []
        further, constraints = known.get("further_objectives", ()), known.get("constraints", ())
        if "objective" in known and "policy" in known:
            run_all = isinstance(known["policy"], RunAllPolicy)
            found += objective_problems(known["objective"], further, constraints, run_all=run_all)
        if "sampler" in known:
            warm_start = known.get("warm_start")
            found += sampler_problems(
                known["sampler"],
                further=further,
                constraints=constraints,
                warm_start=warm_start,
                max_trials=known.get("max_trials"),
            )
        return found

    def _assignment(self, field: str, assignment: dict[str, Any], *index: int) -> Iterator[Problem]:
        for problem in spaces.assignment_problems(assignment, self.declared, self.space):
            yield problem.under(field, *index)


@cache
def _domain() -> TypeAdapter[Domain]:
    """Validates one domain by itself."""
    return TypeAdapter(Domain)


@cache
def _field(name: str) -> TypeAdapter[Any]:
    """Validates one field by itself."""
    field = StudySpec.model_fields[name]
    extras = [*field.metadata, *([Field(discriminator=field.discriminator)] if field.discriminator else [])]
    annotation: Any = field.annotation
    for extra in extras:
        annotation = Annotated[annotation, extra]
    return TypeAdapter(annotation)


def spec_of(data: Any, *, stored: bool = False) -> StudySpec:
    """The spec that plain data describes under the spec's own names; raises `InvalidFieldError` with all
    violations.

    With `stored`, only single fields are checked, as in `StudySpec.stored`.
    """
    try:
        return StudySpec.stored(data) if stored else StudySpec.model_validate(data)
    except ValidationError as error:
        raise InvalidFieldError(violations_of(error)) from None


def violations_of(error: ValidationError) -> list[Violation]:
    """The violations of a `StudySpec(...)` that raised `ValidationError`."""
    return [problem.violation() for problem in spec_problems(error)]


def spec_problems(error: ValidationError) -> list[Problem]:
    """The same as problems, whose paths can still be prefixed. The paths do not contain pydantic's union tags."""
    found: dict[tuple[str, str], Problem] = {}
    for problem in problems_of(error, known_keys):
        plain = Problem(
            loc=plain_loc(problem.loc), message=problem.message, remedy=problem.remedy, value=problem.value
        )
        found.setdefault((path_of(plain.loc), plain.message), plain)
    return list(found.values())


def plain_loc(loc: Loc) -> Loc:
    """A pydantic path without the tags of unions and the marks of keys."""
    return shape.unmarked(StudySpec, loc)


def known_keys(loc: Loc) -> Sequence[str]:
    """The keys of the model at a pydantic path; after "?", the kinds of the union there."""
    if loc and loc[-1] == "?":
        kinds = shape.models_at(StudySpec, loc[:-1])
        return list(kinds) if len(kinds) > 1 else []
    models = list(shape.models_at(StudySpec, loc).values())
    return list(models[0].model_fields) if len(models) == 1 else []


def check_assignment(spec: StudySpec, assignment: Mapping[str, object], *, field: str) -> dict[str, Any]:
    """A configuration as the space's domains write it; raises `InvalidFieldError` under `field` otherwise."""
    return check_assignments(spec, {field: assignment})[0]


def check_assignments(
    spec: StudySpec, assignments: Mapping[str, Mapping[str, object]]
) -> list[dict[str, Any]]:
    """Configurations, each by its field, as the space's domains write them; raises `InvalidFieldError` otherwise."""
    problems = first(
        problem.under(field)
        for field, assignment in assignments.items()
        for problem in spaces.assignment_problems(assignment, spec.space, spec.space)
    )
    if problems:
        raise InvalidFieldError([problem.violation() for problem in problems])
    return [spaces.admitted(spec.space, assignment) for assignment in assignments.values()]


def check_study_id(study_id: str, *, field: str = "study_id") -> str:
    """The id, if it is valid; raises `InvalidFieldError` otherwise."""
    problem = names.STUDY.problem(study_id, field)
    if problem is not None:
        raise InvalidFieldError([problem.violation()])
    return study_id


def _with_max_steps(data: Any) -> Any:
    """The last rung as the full budget, if only rungs are given."""
    if not isinstance(data, Mapping) or "max_steps" in data:
        return data
    policy = data.get("policy")
    rungs = policy.get("rungs") if isinstance(policy, Mapping) else getattr(policy, "rungs", None)
    return {**data, "max_steps": rungs[-1]} if isinstance(rungs, list | tuple) and rungs else data


def _sound_alone(adapter: TypeAdapter[Any], data: Any) -> tuple[bool, Any]:
    try:
        return True, adapter.validate_python(data)
    except ValidationError:
        return False, None
