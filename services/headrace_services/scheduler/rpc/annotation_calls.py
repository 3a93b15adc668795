"""Annotate: tags and notes of studies and trials."""
# ruff: noqa: ARG002  (every method takes the call's context)

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import InvalidFieldError, TrialNotFoundError
from headrace.spec.names import TAG
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import names
from headrace_services.scheduler.rpc.calls import Calls, Context, find_brief, identity_of, once
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.store import annotations
from headrace_services.scheduler.store.annotations import Annotation

MOST_TAGS = 32


class AnnotationCalls(Calls):
    """Calls about what users note."""

    async def Annotate(self, request: pb.AnnotateRequest, context: Context) -> pb.AnnotateResponse:
        """Change the tags and the note of a study, which may have ended, or of a trial."""
        study_id, number = names.parse_parent(request.name, field="name")
        _check(request)

        async def annotate(conn: AsyncConnection) -> pb.AnnotateResponse:
            study = await find_brief(conn, study_id)
            found = await annotations.change(conn, study.id, number, lambda old: _changed(old, request))
            if found is None:
                raise TrialNotFoundError(f"study '{study_id}' has no trial {number}")
            return pb.AnnotateResponse(tags=found.tags, note=found.note)

        response = await once(self.hub.engine, identity_of(request, request.request_id), annotate)
        return pb.AnnotateResponse.FromString(response)


def _changed(old: Annotation, request: pb.AnnotateRequest) -> Annotation:
    """The annotation after a request. Raises InvalidFieldError if there are too many tags."""
    tags = sorted((set(old.tags) | set(request.add_tags)) - set(request.remove_tags))
    checks = Checks()
    if len(tags) > MOST_TAGS:
        checks.note(
            "add_tags", len(tags), f"makes more than {MOST_TAGS} tags", "Remove some, or use the note."
        )
    checks.done()
    return Annotation(tags=tags, note=request.note if request.HasField("note") else old.note)


def _check(request: pb.AnnotateRequest) -> None:
    problems = [
        problem.violation()
        for field, tags in (("add_tags", request.add_tags), ("remove_tags", request.remove_tags))
        for place, tag in enumerate(tags)
        if (problem := TAG.problem(tag, f"{field}[{place}]")) is not None
    ]
    if problems:
        raise InvalidFieldError(problems)
    checks = Checks()
    for place, tag in enumerate(request.add_tags):
        if tag in request.remove_tags:
            checks.note(f"add_tags[{place}]", tag, "is also in remove_tags", "Name it in one of them.")
    if not request.add_tags and not request.remove_tags and not request.HasField("note"):
        checks.note("add_tags", "nothing", "leaves nothing to change", "Give tags or a note.")
    checks.done()
