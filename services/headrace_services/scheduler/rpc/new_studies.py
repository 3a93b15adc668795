"""What one CreateStudy creates: the study, the pilot and the gate after which it begins, and the study that follows."""

import asyncio
import secrets
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import InvalidFieldError, StudyExistsError, Violation, show_value
from headrace.spec import (
    BestOfSampler,
    Gate,
    GpSampler,
    OwnPolicy,
    OwnSampler,
    StudySpec,
    check_study_id,
    from_proto,
)
from headrace.spec.pilot import pilot_name
from headrace.spec.surrogate import gate_name
from headrace.v1.spec_pb2 import StudySpec as SpecMessage
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Event, Study
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.rpc.spec_faults import refuse_unknown
from headrace_services.scheduler.samplers import expected_trials, require_own
from headrace_services.scheduler.samplers.spread import pilot_configurations
from headrace_services.scheduler.store import after, aside, code, studies
from headrace_torch.what_transfers import WHY, Verdict, verdict_on

LOAD_S = 10.0
"""So long a call waits for the import of a package with a policy or a sampler."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A study that is to be created."""

    name: str
    spec: StudySpec
    planned: int
    """How many configurations it tries."""
    checks: str | None = None
    """Of a gate: the key of what it checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStudies:
    """The study that was asked for, and those that come with it."""

    first: Wanted
    pilot: Wanted | None
    gate: Wanted | None
    follower: Wanted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The study that was asked for, and all that were created."""

    first: Study
    all: tuple[Study, ...]


async def wanted_studies(study_id: str, message: SpecMessage) -> WantedStudies:
    """The new study and those that come with it. Raises InvalidFieldError with every violation of spec and id."""
    checks = Checks()
    is_named = checks.take(lambda: check_study_id(study_id)) is not None
    checks.take(lambda: refuse_unknown(message))
    spec = checks.take(lambda: from_proto(message))
    if spec is not None and isinstance(spec.sampler, GpSampler) and find_spec("torch") is None:
        checks.note(
            "sampler.kind",
            spec.sampler.kind,
            "needs PyTorch, which this scheduler lacks",
            "Install headrace[torch] beside the scheduler, or choose tpe.",
        )
    first = pilot = gate = follower = None
    if spec is not None:
        checks.take(partial(refuse_what_stays, spec))
        await checks.take_later(load_own(spec))
        checks.take(partial(refuse_open_plan, spec))
        checks.take(partial(refuse_unshipped, spec))
        if is_named and spec.surrogate is not None and spec.surrogate.pilot is not None:
            pilot = checks.take(partial(_pilot, spec, pilot_name(study_id)))
            spec = _after_pilot(spec, pilot_name(study_id))
        first = checks.take(partial(_wanted, study_id, _without_files(spec)))
        if is_named and (checking := spec.gate_study()) is not None:
            key = spec.gate.key if spec.gate is not None and pilot is None else ""
            name = gate_name(study_id)
            gate = checks.take(lambda: _wanted(check_study_id(name), checking, key or None))
        if is_named and spec.transfer is not None:
            target = spec.transfer.study_name(study_id)
            follower = checks.take(lambda: _wanted(check_study_id(target), spec.target(study_id)))
    checks.done()
    assert first is not None
    return WantedStudies(first=first, pilot=pilot, gate=gate, follower=follower)


def refuse_what_stays(spec: StudySpec) -> None:
    """Raises InvalidFieldError where a surrogate would be searched for values that do not carry over to its model."""
    if spec.surrogate is None:
        return
    verdicts = {name: verdict_on(name) for name in spec.space if name not in spec.surrogate.accept}
    problems = [
        Violation(
            field=f"space.{name}",
            message=f"is not searched on a small copy of the model: {WHY[verdict]}",
            remedy=f"Leave it out here and tune it on the model, or accept the risk: surrogate: {{accept: [{name}]}}.",
        )
        for name, verdict in verdicts.items()
        if verdict is not Verdict.TRANSFERS
    ]
    if problems:
        raise InvalidFieldError(problems)


async def load_own(spec: StudySpec) -> None:
    """Import what a study names of installed packages, in a thread: a slow import holds up no other call.

    Raises InvalidFieldError where it cannot be had, and where that takes longer than `LOAD_S`.
    """
    own = {"policy.name": spec.policy, "sampler.name": spec.sampler}
    named = {field: one.name for field, one in own.items() if isinstance(one, OwnPolicy | OwnSampler)}
    if not named:
        return
    try:
        await asyncio.wait_for(asyncio.to_thread(require_own, spec), LOAD_S)
    except TimeoutError:
        remedy = "Its import goes on: try again later, and let the package do less when it is imported."
        said = f"was not imported within {LOAD_S:g} s"
        raise InvalidFieldError(
            Violation(field=field, value=show_value(name), message=said, remedy=remedy)
            for field, name in named.items()
        ) from None


def refuse_open_plan(spec: StudySpec) -> None:
    """Raises InvalidFieldError where no planner was asked: a scheduler asks none."""
    if spec.open_plan is not None:
        violation = Violation(
            field="transfer.plan",
            message="has no answer of a planner",
            remedy="Create the study with `headrace run` or the Python client: they ask one first.",
        )
        raise InvalidFieldError([violation])


def refuse_unshipped(spec: StudySpec) -> None:
    """Raises InvalidFieldError where code is to be shipped and nobody did it: a scheduler sees no folder."""
    how = spec.template.code if spec.template is not None else None
    if how is not None and how.ship and not how.digest:
        violation = Violation(
            field="trial.code",
            message="has no digest, for nobody shipped the folder",
            remedy="Create the study with `headrace run` or the Python client: they ship it first.",
        )
        raise InvalidFieldError([violation])


async def create_studies(conn: AsyncConnection, wanted: WantedStudies) -> Created:
    """Create them. No gate is created where one has passed with the same key."""
    first, gate = wanted.first, wanted.gate
    before = []
    if wanted.pilot is not None:
        before.append(await _create(conn, wanted.pilot))
    if gate is not None:
        passed = await after.passed_gate(conn, gate.checks) if gate.checks else None
        if passed is None:
            before.append(await _create(conn, gate))
            first = replace(first, spec=_checked_by(first.spec, gate.name, waits=True))
        else:
            first = replace(first, spec=_checked_by(first.spec, passed, waits=False))
    study = await _create(conn, first)
    follower = [] if wanted.follower is None else [await _create(conn, wanted.follower)]
    return Created(first=study, all=(*before, study, *follower))


def _after_pilot(spec: StudySpec, name: str) -> StudySpec:
    """The spec with the name of its pilot, after which its gate begins, and so it does itself."""
    assert spec.surrogate is not None
    assert spec.surrogate.pilot is not None
    pilot = spec.surrogate.pilot.model_copy(update={"study": name})
    surrogate = spec.surrogate.model_copy(update={"pilot": pilot})
    return spec.model_copy(update={"surrogate": surrogate, "after": name})


def _pilot(spec: StudySpec, name: str) -> Wanted:
    """The pilot, with configurations that are spread over the space."""
    return _wanted(check_study_id(name), spec.pilot_study(pilot_configurations(spec)))


def _without_files(spec: StudySpec) -> StudySpec:
    """The spec without the files of its transfer's plan: they are in the study that follows, once."""
    if spec.transfer is None:
        return spec
    return spec.model_copy(update={"transfer": spec.transfer.without_files()})


def _wanted(name: str, spec: StudySpec, checks: str | None = None) -> Wanted:
    return Wanted(name, spec, expected_trials(spec), checks)


def _checked_by(spec: StudySpec, gate: str, *, waits: bool) -> StudySpec:
    """The spec with the name of the study that checks it, or has; and it begins after that one."""
    known = spec.gate or Gate()
    changes = {"gate": known.model_copy(update={"study": gate})}
    return spec.model_copy(update={**changes, **({"after": gate} if waits else {})})


async def _create(conn: AsyncConnection, wanted: Wanted) -> Study:
    if await aside.brief(conn, name=wanted.name) is not None:
        raise StudyExistsError(f"a study '{wanted.name}' exists already")
    await _check_sources(conn, wanted.spec)
    await _keep_code(conn, wanted.spec)
    return await studies.create(
        conn,
        name=wanted.name,
        uid=secrets.token_hex(6),
        spec=wanted.spec,
        planned=wanted.planned,
        event=_created(),
        checks=wanted.checks,
    )


async def _check_sources(conn: AsyncConnection, spec: StudySpec) -> None:
    """Raises InvalidFieldError where there is no study to begin from, or after."""
    named = []
    if spec.warm_start is not None:
        named.append(("warm_start.study", spec.warm_start.study, "leave warm_start out"))
    if isinstance(spec.sampler, BestOfSampler):
        named.append(("sampler.study", spec.sampler.study, "choose another sampler"))
    if spec.after is not None:
        named.append(("after", spec.after, "leave after out"))
    for field, name, otherwise in named:
        if await aside.brief(conn, name=name) is None:
            violation = Violation(
                field=field,
                value=name,
                message="is not a study",
                remedy=f"Name a study that exists (`headrace studies` lists them), or {otherwise}.",
            )
            raise InvalidFieldError([violation])


async def _keep_code(conn: AsyncConnection, spec: StudySpec) -> None:
    """Raises InvalidFieldError where the study's code is not kept here (any more)."""
    digest = studies.code_of(spec)
    if digest and not await code.touch(conn, digest):
        violation = Violation(
            field="trial.code.digest",
            value=digest,
            message="is not kept by this scheduler",
            remedy="Create the study with `headrace run` or the Python client: they ship the folder first.",
        )
        raise InvalidFieldError([violation])


def _created() -> Event:
    detail: dict[str, object] = {"from_state": "", "to_state": StudyState.ACTIVE.value, "detail": "created"}
    return Event(number=None, kind="study_moved", message="study created", detail=detail)
