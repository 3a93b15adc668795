"""The operations of a client as flows (see `headrace.client.flow`), and what those of its studies (`study_flows`)
and trials (`trial_flows`) share.

The first parameter is the handle of which the operation becomes a method: a client, a study, a trial or an asked
trial. Each mutating operation draws one request id, and the transport repeats exactly the same request. So a
scheduler that did the work, but whose answer was lost, does it only once.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.client import cluster, convert
from headrace.client.arguments import seconds, whole_number
from headrace.client.flow import Flow, rpc
from headrace.client.machines import StudyShare, Worker
from headrace.client.model import Annotation, Listing, Preview, Report, StudyInfo
from headrace.client.names import study_name
from headrace.client.repeats import creation_warnings
from headrace.client.upkeep import KeptKind, ServerInfo, TableSize, Upkeep
from headrace.client.warning import warn as tell
from headrace.errors import InvalidFieldError, StudyExistsError, StudyNotFoundError, Violation, show_value
from headrace.spec import StudySpec, check_study_id, load_study_file, parse_named_spec, to_proto
from headrace.v1 import study_pb2 as pb

PAGE_SIZE = 500

AnySpec = StudySpec | Mapping[str, Any] | str | Path
"""A spec, a mapping with the keys of a study file, or a study file's path."""


def request_id() -> str:
    """The id of a new request; its repeats carry the same id."""
    return uuid.uuid4().hex


def require_free(_: object, name: str, spec: StudySpec) -> Flow[None]:
    """Raises `StudyExistsError` for a study whose name is taken, if its plan is still to be computed: the search
    would be wasted.
    """
    if spec.open_plan is None:
        return
    try:
        yield from rpc(pb.GetStudyResponse, pb.GetStudyRequest(name=study_name(name)))
    except StudyNotFoundError:
        return
    raise StudyExistsError(f"a study '{name}' exists already")


def create_study(_: object, name: str, spec: StudySpec) -> Flow[StudyInfo]:
    """Creates a study, whose plan has been answered, and starts it."""
    request = pb.CreateStudyRequest(request_id=request_id(), study_id=name, spec=to_proto(spec))
    response = yield from rpc(pb.CreateStudyResponse, request)
    return convert.study(response.study)


def studies(_: object, filter: str = "") -> Flow[Listing[StudyInfo]]:  # noqa: A002  # the name of the field
    """All studies, newest first, or those that match a filter such as `tag:paper created>7d`. Their `failures` are
    empty; `study(name).status()` has them.
    """
    found = Listing[StudyInfo]()
    request = pb.ListStudiesRequest(page_size=PAGE_SIZE, filter=filter)
    while True:
        page = yield from rpc(pb.ListStudiesResponse, request)
        found += map(convert.study, page.studies)
        found.unshown += map(convert.unshown, page.unshown)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def preview(
    _: object,
    spec: AnySpec,
    slots: int | None = None,
    seconds_per_step: float | None = None,
    target_seconds_per_step: float | None = None,
) -> Flow[Preview]:
    """What a spec would do, before anything is spent: rungs, trials and steps, and the time if the seconds per
    step are known. Without `slots`, the connected slots are assumed. A step of a target takes as long as the
    others unless `target_seconds_per_step` says otherwise.
    """
    found = _named_spec(spec)[1]
    request = pb.PreviewStudyRequest(
        spec=to_proto(found),
        slots=whole_number("slots", slots or 0, "Give how many slots there are, such as slots=8."),
        seconds_per_step=seconds("seconds_per_step", seconds_per_step or 0.0),
        target_seconds_per_step=seconds("target_seconds_per_step", target_seconds_per_step or 0.0),
    )
    response = yield from rpc(pb.PreviewStudyResponse, request)
    return replace(convert.preview(response, order=found.space), warnings=tuple(creation_warnings(found)))


def to_create(name: str | None, spec: AnySpec, *, warn: bool) -> tuple[str, StudySpec]:
    """The name and the spec of a study to create. With `warn`, each of `creation_warnings` is issued as a
    `UserWarning`. Raises InvalidFieldError.
    """
    its_name, found = _named_spec(spec)
    study_id = check_study_id(name or its_name or "", field="name")
    if warn:
        for message in creation_warnings(found):
            tell(message)
    return study_id, found


def _named_spec(spec: object) -> tuple[str | None, StudySpec]:
    match spec:
        case StudySpec():
            return None, spec
        case Mapping():
            return parse_named_spec(spec)
        case str() | Path():
            file = load_study_file(spec)
            return file.name, file.spec
    violation = Violation(
        field="spec",
        value=show_value(spec),
        message="is neither a spec nor a mapping nor the path of a study file",
        remedy="Give a mapping with the keys of a study file.",
    )
    raise InvalidFieldError([violation])


def workers(_: object, history: bool = False) -> Flow[Listing[Worker]]:
    """The workers that are or were connected. Their slots have the load of the latest minute or, with `history`,
    of each minute of the last hour.
    """
    found = Listing[Worker]()
    request = pb.ListWorkersRequest(page_size=PAGE_SIZE, history=history)
    while True:
        page = yield from rpc(pb.ListWorkersResponse, request)
        found += map(cluster.worker, page.workers)
        found.unshown += map(convert.unshown, page.unshown)
        if not page.next_page_token:
            return found
        request = pb.ListWorkersRequest(page_size=PAGE_SIZE, page_token=page.next_page_token, history=history)


def server_info(_: object) -> Flow[ServerInfo]:
    """Information on the scheduler that answers: its release, its schema, where it serves metrics."""
    found = yield from rpc(pb.GetServerInfoResponse, pb.GetServerInfoRequest())
    return ServerInfo(
        version=found.version,
        replica=found.replica,
        database_schema=found.database_schema,
        program_schema=found.program_schema,
        protocol=found.protocol,
        metrics=found.metrics,
    )


def upkeep(_: object) -> Flow[Upkeep]:
    """How long the scheduler keeps finished data, what is due for deletion, and how large its tables are."""
    response = yield from rpc(pb.GetUpkeepResponse, pb.GetUpkeepRequest())
    return Upkeep(
        kinds=tuple(
            KeptKind(kind=one.kind, age=one.age, due=one.due, what=one.what) for one in response.kinds
        ),
        tables=tuple(
            TableSize(table=one.table, size_bytes=one.size_bytes, rows=one.rows) for one in response.tables
        ),
        deleted_studies=response.deleted_studies,
        restores=response.restores,
    )


def clean_up(_: object) -> Flow[None]:
    """Makes the scheduler start to delete data that is due. Otherwise it checks every minute."""
    yield from rpc(pb.CleanUpResponse, pb.CleanUpRequest())


def shares(_: object) -> Flow[list[StudyShare]]:
    """Each active study's share of the cluster, in the order in which the studies get free slots."""
    page = yield from rpc(pb.ListWorkersResponse, pb.ListWorkersRequest(page_size=1))
    return [cluster.share(proto) for proto in page.shares]


def annotated(
    name: str, add_tags: Iterable[str], remove_tags: Iterable[str], note: str | None
) -> Flow[Annotation]:
    """Changes the tags and the note of a study or a trial, by its full name."""
    added, removed = ([tags] if isinstance(tags, str) else list(tags) for tags in (add_tags, remove_tags))
    request = pb.AnnotateRequest(
        request_id=request_id(), name=name, add_tags=added, remove_tags=removed, note=note
    )
    response = yield from rpc(pb.AnnotateResponse, request)
    return Annotation(tags=tuple(response.tags), note=response.note)


def reports_of(parent: str) -> Flow[Listing[Report]]:
    """The reports of a study or a trial, by its full name."""
    found = Listing[Report]()
    token = ""
    while True:
        request = pb.ListReportsRequest(parent=parent, page_size=PAGE_SIZE, page_token=token)
        page = yield from rpc(pb.ListReportsResponse, request)
        found += map(convert.report, page.reports)
        found.unshown += map(convert.unshown, page.unshown)
        token = page.next_page_token
        if not token:
            return found
