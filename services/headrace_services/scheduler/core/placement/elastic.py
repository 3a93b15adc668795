"""What a trial takes, by its configuration and by the spec's table as it advances, and which trials may take spare
slots.

`request_of` is the one place where a trial's request is computed. A configuration that determines the size never
changes (`headrace.spec.sizes`), so a trial keeps its size for its whole life, except for what the table of
`elastic` adds.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from headrace.spec import StudySpec
from headrace.spec.resources import WHOLE, ElasticGrant
from headrace_services.scheduler.core.placement.values import Request
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.study_status import Reserved

SUSPECTED_AFTER: Final = 2
"""A trial that shared a GPU at this many faults without a known culprit is a suspect."""


def request_at(
    spec: StudySpec, params: Mapping[str, object], step: int, avoided: Iterable[str] = ()
) -> Request:
    """Return what a trial with this configuration and `step` steps done takes."""
    own = Request.of(spec.resources.of(params), avoided)
    row = spec.elastic.row_at(step) if spec.elastic else None
    return own if row is None else _grown(spec, own, row)


def request_of(spec: StudySpec, trial: Trial, avoided: Iterable[str] = ()) -> Request:
    """Return what a trial takes now. A suspect of faults on shared GPUs takes a whole one."""
    own = request_at(spec, trial.params, trial.position, avoided)
    return own.grown(own.slots) if is_suspect(trial) else own


def is_suspect(trial: Trial) -> bool:
    """Whether a trial was there at so many faults of shared GPUs that it may be their cause."""
    return trial.shared_faults >= SUSPECTED_AFTER


def accepts_ephemeral(spec: StudySpec) -> bool:
    """Whether trials of the study may have ephemeral slots: the study file's key is `bubbles`."""
    return spec.bubbles


def with_ephemeral(spec: StudySpec, request: Request) -> Request:
    """Return the request so that ephemeral slots may serve it too, if the study allows them. For a bundle, only
    one trial has to fit, with its part of what a full bundle needs."""
    if not accepts_ephemeral(spec):
        return request
    most = 1 if spec.fuse is None else spec.fuse.first
    return replace(request, ephemeral_memory_bytes=-(-request.memory_bytes // most))


def requests_of(spec: StudySpec, avoided: Iterable[str] = ()) -> tuple[Request, ...]:
    """Return everything that trials of a study may take at any time, without duplicates, smallest first."""
    own = [Request.of(each, avoided) for each in spec.resources.each]
    rows = spec.elastic.grants if spec.elastic else ()
    grown = [_grown(spec, one, row) for one in own for row in rows]
    found = {request.shape: request for request in (*own, *grown)}
    return tuple(sorted(found.values(), key=lambda request: (request.size, request.shape)))


def sizes_differ(spec: StudySpec, reserved: Reserved | None = None) -> bool:
    """Whether trials of a study differ in size, by their configurations or as they advance, or because what is
    `reserved` for a suspect is more than the others take."""
    if spec.resources.by is not None or (spec.elastic and spec.elastic.grants):
        return True
    if reserved is None or reserved.milli is None:
        return False
    return reserved.shape not in {request.shape for request in requests_of(spec)}


def spare_slots(spec: StudySpec, milestone: int | None) -> int:
    """Return up to how many slots a trial on its way to `milestone` may take while nothing waits; 0 for none."""
    if spec.elastic is None or milestone is None or milestone < spec.max_steps:
        return 0
    return spec.elastic.spare


def _grown(spec: StudySpec, own: Request, row: ElasticGrant) -> Request:
    """The request by the table. If trials differ in size, none gets less than its own."""
    slots, milli = row.part
    grown = own.grown(slots, WHOLE if spec.resources.exclusive else milli)
    return own if spec.resources.by is not None and grown.size < own.size else grown
