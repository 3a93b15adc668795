"""The studies that one CreateStudy creates: the requested one, the pilot and gate before it, and the one after it."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import (
    InvalidFieldError,
    StudyExistsError,
    Violation,
    show_value,
)
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
from headrace.spec.resources import WHOLE
from headrace.spec.surrogate import gate_name
from headrace.v1.spec_pb2 import StudySpec as SpecMessage
from headrace_services.scheduler.core import placement as places
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Event, Study
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.rpc.spec_faults import refuse_unknown
from headrace_services.scheduler.samplers import expected_trials, require_own
from headrace_services.scheduler.samplers.spread import pilot_configurations
from headrace_services.scheduler.store import after, code, quarantine, quotas, studies
from headrace_services.scheduler.store.quotas import ProjectView
from headrace_torch.what_transfers import WHY, Verdict, verdict_on

LOAD_S = 10.0
"""How long a call waits for the import of a package with a policy or a sampler."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A study to be created."""

    name: str
    spec: StudySpec
    planned: int
    """How many configurations to try."""
    checks: str | None = None
    """For a gate: the key of what it checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStudies:
    """The requested study, and those that are created with it."""

    first: Wanted
    pilot: Wanted | None
    gate: Wanted | None
    follower: Wanted | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """The requested study, and all studies that were created."""

    first: Study
    all: tuple[Study, ...]


async def wanted_studies(study_id: str, message: SpecMessage) -> WantedStudies:
    """The new study and those that are created with it. Raises InvalidFieldError with every violation of spec and
    id."""
    checks = Checks()
    is_named = checks.run(lambda: check_study_id(study_id)) is not None
    checks.run(lambda: refuse_unknown(message))
    spec = checks.run(lambda: from_proto(message))
    if spec is not None and isinstance(spec.sampler, GpSampler) and find_spec("torch") is None:
        checks.note(
            "sampler.kind",
            spec.sampler.kind,
            "needs PyTorch, which this scheduler lacks",
            "Install headrace[torch] beside the scheduler, or choose tpe.",
        )
    first = pilot = gate = follower = None
    if spec is not None:
        checks.run(partial(refuse_what_stays, spec))
        await checks.run_later(load_own(spec))
        checks.run(partial(refuse_open_plan, spec))
        checks.run(partial(refuse_unshipped, spec))
        if is_named and spec.surrogate is not None and spec.surrogate.pilot is not None:
            pilot = checks.run(partial(_pilot, spec, pilot_name(study_id)))
            spec = _after_pilot(spec, pilot_name(study_id))
        first = checks.run(partial(_wanted, study_id, _without_files(spec)))
        if is_named and (checking := spec.gate_study()) is not None:
            key = spec.gate.key if spec.gate is not None and pilot is None else ""
            name = gate_name(study_id)
            gate = checks.run(lambda: _wanted(check_study_id(name), checking, key or None))
        if is_named and spec.transfer is not None:
            target = spec.transfer.study_name(study_id)
            follower = checks.run(lambda: _wanted(check_study_id(target), spec.target(study_id)))
    checks.done()
    assert first is not None
    return WantedStudies(first=first, pilot=pilot, gate=gate, follower=follower)


def refuse_what_stays(spec: StudySpec) -> None:
    """Raise InvalidFieldError if a surrogate would search for values that do not transfer to its model."""
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
    """Import the policy and sampler of installed packages that a study names, in a thread: a slow import delays no
    other call.

    Raises InvalidFieldError if one is not available, or takes longer than `LOAD_S`.
    """
    own = {"policy.name": spec.policy, "sampler.name": spec.sampler}
    named = {field: one.name for field, one in own.items() if isinstance(one, OwnPolicy | OwnSampler)}
    if not named:
        return
    try:
        await asyncio.wait_for(asyncio.to_thread(require_own, spec), LOAD_S)
    except TimeoutError:
        remedy = "The import is still running: try again later, and make the package do less at import time."
        said = f"was not imported within {LOAD_S:g} s"
        raise InvalidFieldError(
            Violation(field=field, value=show_value(name), message=said, remedy=remedy)
            for field, name in named.items()
        ) from None


def refuse_open_plan(spec: StudySpec) -> None:
    """Raise InvalidFieldError if the client did not run the planner: a scheduler does not run it."""
    if spec.open_plan is not None:
        violation = Violation(
            field="transfer.plan",
            message="has no answer of a planner",
            remedy="Create the study with `headrace run` or the Python client: they ask one first.",
        )
        raise InvalidFieldError([violation])


def refuse_unshipped(spec: StudySpec) -> None:
    """Raise InvalidFieldError if code must be shipped and was not: a scheduler sees no folder."""
    how = spec.template.code if spec.template is not None else None
    if how is not None and how.ship and not how.digest:
        violation = Violation(
            field="trial.code",
            message="has no digest, because the folder was never uploaded",
            remedy="Create the study with `headrace run` or the Python client: they ship it first.",
        )
        raise InvalidFieldError([violation])


async def create_studies(conn: AsyncConnection, project: str, wanted: WantedStudies) -> Created:
    """Create them in a project, which is created with its first study. No gate is created if one of the project
    has passed with the same key.

    Raises QuotaExceededError if the project may not have this many studies, and InvalidFieldError if a trial could
    never get its slots within the project's quota.
    """
    first, gate = wanted.first, wanted.gate
    await quotas.make(conn, project)
    limits = await quotas.project(conn, project, lock=True)
    assert limits is not None, "it was created, and projects are never deleted"
    before = []
    if wanted.pilot is not None:
        before.append(await _create(conn, project, wanted.pilot))
    if gate is not None:
        passed = await after.passed_gate(conn, project, gate.checks) if gate.checks else None
        if passed is None:
            before.append(await _create(conn, project, gate))
            first = replace(first, spec=_checked_by(first.spec, gate.name, waits=True))
        else:
            first = replace(first, spec=_checked_by(first.spec, passed, waits=False))
    study = await _create(conn, project, first)
    follower = [] if wanted.follower is None else [await _create(conn, project, wanted.follower)]
    made = (*before, study, *follower)
    _check_limits(limits, made)
    return Created(first=study, all=made)


def _check_limits(limits: ProjectView, made: Sequence[Study]) -> None:
    """Raise QuotaExceededError or InvalidFieldError if the project may not have these studies."""
    if limits.of_studies is not None:
        limits.of_studies.require(len(made))
    largest = max((size.size for study in made for size in _sizes(study.spec)), default=0)
    if limits.slots is not None and largest > WHOLE * limits.slots:
        violation = Violation(
            field="resources",
            value=f"{largest / WHOLE:g} slots",
            message=f"is more than the quota of project '{limits.name}', which is {limits.slots} slots",
            remedy="Ask for less, or have an admin raise the quota: `headrace project set`.",
        )
        raise InvalidFieldError([violation])


def _sizes(spec: StudySpec) -> Iterable[places.Request]:
    """All requests that its trials may make."""
    return places.requests_of(spec) if spec.template is not None else ()


def _after_pilot(spec: StudySpec, name: str) -> StudySpec:
    """The spec with the name of its pilot, which the study and its gate wait for."""
    assert spec.surrogate is not None
    assert spec.surrogate.pilot is not None
    pilot = spec.surrogate.pilot.model_copy(update={"study": name})
    surrogate = spec.surrogate.model_copy(update={"pilot": pilot})
    return spec.model_copy(update={"surrogate": surrogate, "after": name})


def _pilot(spec: StudySpec, name: str) -> Wanted:
    """The pilot, with configurations spread over the space."""
    return _wanted(check_study_id(name), spec.pilot_study(pilot_configurations(spec)))


def _without_files(spec: StudySpec) -> StudySpec:
    """The spec without the files of its transfer's plan: only the study that follows has them."""
    if spec.transfer is None:
        return spec
    return spec.model_copy(update={"transfer": spec.transfer.without_files()})


def _wanted(name: str, spec: StudySpec, checks: str | None = None) -> Wanted:
    return Wanted(name, spec, expected_trials(spec), checks)


def _checked_by(spec: StudySpec, gate: str, *, waits: bool) -> StudySpec:
    """The spec with the name of the study that checks it or has checked it, and that it waits for if needed."""
    known = spec.gate or Gate()
    changes = {"gate": known.model_copy(update={"study": gate})}
    return spec.model_copy(update={**changes, **({"after": gate} if waits else {})})


async def _create(conn: AsyncConnection, project: str, wanted: Wanted) -> Study:
    if await quarantine.brief_named(conn, project, wanted.name) is not None:
        raise StudyExistsError(f"a study '{wanted.name}' exists already")
    await _check_sources(conn, project, wanted.spec)
    await _keep_code(conn, project, wanted.spec)
    return await studies.create(
        conn,
        project=project,
        name=wanted.name,
        uid=secrets.token_hex(6),
        spec=wanted.spec,
        planned=wanted.planned,
        event=_created(),
        checks=wanted.checks,
    )


async def _check_sources(conn: AsyncConnection, project: str, spec: StudySpec) -> None:
    """Raise InvalidFieldError if the study to start from or to wait for does not exist."""
    named = []
    if spec.warm_start is not None:
        named.append(("warm_start.study", spec.warm_start.study, "leave warm_start out"))
    if isinstance(spec.sampler, BestOfSampler):
        named.append(("sampler.study", spec.sampler.study, "choose another sampler"))
    if spec.after is not None:
        named.append(("after", spec.after, "leave after out"))
    for field, name, otherwise in named:
        if await quarantine.brief_named(conn, project, name) is None:
            violation = Violation(
                field=field,
                value=name,
                message="is not a study",
                remedy=f"Name a study that exists (`headrace studies` lists them), or {otherwise}.",
            )
            raise InvalidFieldError([violation])


async def _keep_code(conn: AsyncConnection, project: str, spec: StudySpec) -> None:
    """Raise InvalidFieldError if the project does not have this code, or no longer has it."""
    digest = studies.code_of(spec)
    if digest and not await code.touch(conn, digest, project):
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
