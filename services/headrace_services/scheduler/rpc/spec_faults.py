"""What is wrong with a study whose fields are out of bounds, in the words that every client has for it.

The bounds of messages (`headrace.bounds`) are checked first. They know a field by its place in the message, such as
`spec.space[0].float.high`. A study has checks of its own, with a path that a user knows, `space.x.high`, and a remedy
for this field. Where both find fault, the study's own words are told. So a client that checks a study before it sends
it, as Python's does, and one that leaves this to the server say the same.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from google.protobuf.message import Message

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import from_proto
from headrace.v1 import study_pb2 as pb

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
