"""The violations of a study whose fields are out of bounds, in the same words for every client.

The bounds of messages (`headrace.bounds`) are checked first. They name a field by its place in the message, such
as `spec.space[0].float.high`. A study has its own checks, with a path that a user knows, `space.x.high`, and a
remedy for this field. If both find a fault, the study's own words are used. So a client that checks a study before
it sends it, as Python's does, and one that leaves this to the server report the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import from_proto
from headrace.v1 import study_pb2 as pb
from headrace.v1.spec_pb2 import StudySpec as SpecMessage

LARGEST_BYTES: Final = 64 * 1024
"""A larger spec is not checked again: it may be larger than any that is within bounds."""
_SPEC: Final = "spec."


def in_own_words(request: Message, found: Sequence[Violation]) -> Sequence[Violation]:
    """The violations of a request, those of its spec in the words of the study's own checks."""
    if not isinstance(request, pb.CreateStudyRequest | pb.PreviewStudyRequest):
        return found
    others = [one for one in found if not one.field.startswith(_SPEC)]
    if len(others) == len(found) or request.spec.ByteSize() > LARGEST_BYTES:
        return found
    own: Sequence[Violation] = ()
    with suppress(
        ValueError, OverflowError, TypeError
    ):  # a check may not expect values that no field may hold
        try:
            from_proto(request.spec)
        except InvalidFieldError as error:
            own = error.violations
    return [*others, *own] if own else found


def refuse_unknown(spec: SpecMessage) -> None:
    """Raise InvalidFieldError if a spec has fields of a later release, which this one does not know.

    Protobuf would drop them: a study with a policy of a later release would run with the default one.
    """
    unknown = list(_unknown(spec, ""))
    if unknown:
        raise InvalidFieldError(unknown)


def _unknown(message: Message, path: str) -> Iterator[Violation]:
    unknown = UnknownFieldSet(message)
    for one in (unknown[place] for place in range(len(unknown))):
        yield Violation(
            field=path or "spec",
            value=f"field {one.field_number}",
            message="has a field that this scheduler does not know: the client is of a later release",
            remedy="Update the scheduler, or leave out what it does not know.",
        )
    for field, value in message.ListFields():
        inside = f"{path}.{field.name}" if path else field.name
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = [(f"{inside}.{key}", part) for key, part in value.items()]
        elif isinstance(value, Message):
            parts = [(inside, value)]
        else:
            parts = [(f"{inside}[{place}]", part) for place, part in enumerate(value)]
        for where, part in parts:
            if isinstance(part, Message):  # a map may have plain values
                yield from _unknown(part, where)
