"""What is wrong with a study whose fields are out of bounds, in the words that every client has for it.

The bounds of messages (`headrace.bounds`) are checked first. They know a field by its place in the message, such as
`spec.space[0].float.high`. A study has checks of its own, with a path that a user knows, `space.x.high`, and a remedy
for this field. Where both find fault, the study's own words are told. So a client that checks a study before it sends
it, as Python's does, and one that leaves this to the server say the same.
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
"""A larger spec is not looked at again: it may be larger than any that is within bounds."""
_SPEC: Final = "spec."


def in_own_words(request: Message, found: Sequence[Violation]) -> Sequence[Violation]:
    """The violations of a request, those of its spec as the study itself tells them."""
    if not isinstance(request, pb.CreateStudyRequest | pb.PreviewStudyRequest):
        return found
    others = [one for one in found if not one.field.startswith(_SPEC)]
    if len(others) == len(found) or request.spec.ByteSize() > LARGEST_BYTES:
        return found
    own: Sequence[Violation] = ()
    with suppress(
        ValueError, OverflowError, TypeError
    ):  # what no field may hold can be more than a check expects
        try:
            from_proto(request.spec)
        except InvalidFieldError as error:
            own = error.violations
    return [*others, *own] if own else found


def refuse_unknown(spec: SpecMessage) -> None:
    """Raises InvalidFieldError where a spec has fields that this release does not know: those of a later one.

    Protobuf would drop them: a study with a policy of a later release would run with the default one."""
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
